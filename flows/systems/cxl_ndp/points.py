"""The points of a model that the GPU-NDP study asks for, and their rows."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tokentape.flows.answers import queried, stated
from tokentape.flows.grid import load_hardware
from tokentape.flows.systems.cxl_ndp import routing as cxl_ndp_routing
from tokentape.flows.systems.cxl_ndp.settings import CHANGES, LINK, PAPER, Model, Settings, changed, setup
from tokentape.hw.fit_files import Fit
from tokentape.hw.work import Floats
from tokentape.replay.cxl_ndp.fit import Constants, calibrate
from tokentape.replay.cxl_ndp.routing import CXLNDPRouting
from tokentape.replay.cxl_ndp.setting import (
    COMPARED,
    GAINS,
    HEADLINE,
    Setting,
    Variation,
    compared,
    decoded,
    metric_rows,
    stand_in_losses,
)
from tokentape.replay.cxl_ndp.system import Setup

Row = dict[str, Any]
DRAWN = "context"  # source of drawn routing, in every table


def headline(study: Settings, made: Setup, model: Model) -> Variation:
    """The paper's setting."""
    setting = Setting(batch=study.batch, hot_experts=model.hot_experts)
    return Variation(HEADLINE, "", setting, made, study.systems)


def variations(study: Settings, made: Setup, model: Model) -> Iterator[Variation]:
    """The headline, then the grid."""
    yield headline(study, made, model)
    for grid in study.grid:
        if model.is_swept or not grid.only_swept:
            yield from (_variation(study, made, model, grid.series, fields) for fields in grid.points())


def _variation(study: Settings, made: Setup, model: Model, series: str, fields: dict[str, Any]) -> Variation:
    """setting: a point's name; value: the field whose number stands beside it."""
    name, value = fields.pop("setting", ""), fields.pop("value", "")
    machine = load_hardware(fields.pop("hardware", study.hardware))
    for change in (change for change in CHANGES if change in fields):
        machine = changed(machine, change, fields[change])
    link = dict(machine.numbers()).get(LINK)
    told = ({"link_gb_per_s": link.value / 1e9} if link else {}) | fields
    given = {"batch": study.batch, "hot_experts": model.hot_experts} | fields
    setting = Setting(**{name: of for name, of in given.items() if name not in CHANGES})
    try:
        on, number, called = replace(made, machine=machine), float(told[value]) if value else None, name.format(**told)
    except (LookupError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"series {series}: setting {name!r}, value {value!r}: {error}; fields are {', '.join(told)}") from error
    return Variation(series, called, setting, on, study.compared, number)


def losses_of(study: Settings, made: Setup, seed: int) -> Floats:
    """(L, E, 4) stand-in of a model's losses."""
    return stand_in_losses(len(made.geometry.moe_layers), made.geometry.n_experts, seed, study.losses.spread)


def ratios_of(study: Settings, role: str | None = None) -> dict[str, tuple[str, str]]:
    """System and metric of the headline's ratios that the paper prints, by claim: of one role or of all."""
    found = queried([study.ratios], PAPER, {})
    return {row["claim_id"]: (row["system"], row["metric"]) for row in found if role in (None, row["role"])}


def rows(study: Settings, made: Setup, model: Model, tapes: dict[int, CXLNDPRouting]) -> Iterator[Row]:
    """Of a model. tapes: by seed. Constants are fitted on the study's first model."""
    fitted = set(ratios_of(study, "calibrate").values()) if model == study.models[0] else ()
    losses = {seed: losses_of(study, made, seed) for seed in tapes}
    for of in variations(study, made, model):
        by_seed = [compared(decoded(tape, seed, of, losses[seed])) for seed, tape in tapes.items()]
        yield from ({"source": DRAWN, "origin": "synthetic"} | row for row in metric_rows(of, by_seed, fitted))


def drawn(study: Settings, made: Setup, model: Model) -> dict[int, CXLNDPRouting]:
    """The model's tapes by seed."""
    return {seed: cxl_ndp_routing.drawn(made.geometry, study.sequences, seed) for seed in model.seeds}


def gains(study: Settings, made: Setup, model: Model, tapes: Mapping[int, CXLNDPRouting]) -> dict[str, float]:
    """Decode ratios of the headline by claim, medians over seeds."""
    of = replace(headline(study, made, model), systems=COMPARED)
    by_seed = [compared(decoded(tape, seed, of, losses_of(study, made, seed))) for seed, tape in tapes.items()]
    asked = ratios_of(study).items()
    return {claim: float(np.median([found[system][metric] for found in by_seed])) for claim, (system, metric) in asked}


def fitted(study: Settings) -> Fit[Constants]:
    """On claims of role calibrate alone. Under a minute; needs scipy."""
    model = study.models[0]
    tapes = drawn(study, setup(study, model.name), model)
    published = {claim: float(stated(PAPER)[claim]["value"]) for claim in ratios_of(study, "calibrate")}
    return calibrate(published, lambda constants: gains(study, setup(study, model.name, constants), model, tapes))


def compared_with_claims(study: Settings, constants: Constants) -> list[tuple[str, str, float, float]]:
    """Role, what, published and ours, of every decode ratio of the fitted model that the paper prints."""
    model, claims = study.models[0], stated(PAPER)
    made = setup(study, model.name, constants)
    ours = gains(study, made, model, drawn(study, made, model))
    over = {gain: name for name, gain in GAINS.items()}
    asked = ratios_of(study).items()
    return [
        (claims[claim]["role"], f"{system} over {over[metric]}", claims[claim]["value"], ours[claim])
        for claim, (system, metric) in asked
    ]
