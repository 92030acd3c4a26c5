"""The points of a model that the GPU-NDP study asks for, and their rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tokentape.flows.answers import stated
from tokentape.flows.cxl_ndp import routing as cxl_ndp_routing
from tokentape.flows.grid import load_hardware
from tokentape.flows.systems.cxl_ndp.settings import CHANGES, LINK, PAPER, Model, Settings, changed, setup
from tokentape.hw.fit_files import Fit
from tokentape.replay.cxl_ndp.checks import HEADLINE
from tokentape.replay.cxl_ndp.fit import Constants, calibrate, ratios_of
from tokentape.replay.cxl_ndp.routing import CXLNDPRouting
from tokentape.replay.cxl_ndp.setting import (
    COMPARED,
    GAINS,
    Floats,
    Setting,
    Variation,
    compared,
    decoded,
    gaussian_errors,
    metric_rows,
    stand_in_losses,
)
from tokentape.replay.cxl_ndp.system import Setup
from tokentape.warehouse.load import claims as every_claim

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
    told = {"link_gb_per_s": dict(machine.numbers())[LINK].value / 1e9} | fields
    given = {"batch": study.batch, "hot_experts": model.hot_experts} | fields
    setting = Setting(**{name: of for name, of in given.items() if name not in CHANGES})
    on, number = replace(made, machine=machine), float(told[value]) if value else None
    return Variation(series, name.format(**told), setting, on, study.compared, number)


def losses_of(study: Settings, made: Setup, seed: int) -> Floats:
    """(L, E, 4) stand-in of a model's losses."""
    return stand_in_losses(len(made.geometry.moe_layers), made.geometry.n_experts, gaussian_errors(), seed, study.losses.spread)


def rows(study: Settings, made: Setup, model: Model, tapes: dict[int, CXLNDPRouting]) -> Iterator[Row]:
    """Of a model. tapes: by seed. Constants are fitted on the study's first model."""
    claims = ratios_of(stated(PAPER).values(), "calibrate") if model == study.models[0] else ()
    fitted = {(f"OURS-{one.bits}", GAINS[one.over]) for one in claims}
    losses = {seed: losses_of(study, made, seed) for seed in tapes}
    for of in variations(study, made, model):
        by_seed = [compared(decoded(tape, seed, of, losses[seed])) for seed, tape in tapes.items()]
        yield from ({"source": DRAWN, "origin": "synthetic"} | row for row in metric_rows(of, by_seed, fitted))


def drawn(study: Settings, made: Setup, model: Model) -> dict[int, CXLNDPRouting]:
    """The model's tapes by seed."""
    return {seed: cxl_ndp_routing.drawn(made.geometry, study.sequences, seed) for seed in model.seeds}


def gains(study: Settings, made: Setup, model: Model, tapes: Mapping[int, CXLNDPRouting]) -> dict[tuple[int, str], float]:
    """Decode ratios of the headline by bits and baseline, medians over seeds."""
    of = replace(headline(study, made, model), systems=COMPARED)
    by_seed = [compared(decoded(tape, seed, of, losses_of(study, made, seed))) for seed, tape in tapes.items()]
    return {
        (bits, over): float(np.median([found[f"OURS-{bits}"][gain] for found in by_seed]))
        for bits in (2, 3)
        for over, gain in GAINS.items()
    }


def fitted(study: Settings) -> Fit[Constants]:
    """On claims of role calibrate alone. Under a minute; needs scipy."""
    model = study.models[0]
    tapes = drawn(study, setup(study, model.name), model)

    def ratios(constants: Constants) -> Mapping[tuple[int, str], float]:
        return gains(study, setup(study, model.name, constants), model, tapes)

    return calibrate(every_claim().to_pylist(), ratios)


def compared_with_claims(study: Settings, constants: Constants) -> list[tuple[str, str, float, float]]:
    """Role, what, published and ours, of every decode ratio of the fitted model that the paper prints."""
    model = study.models[0]
    made = setup(study, model.name, constants)
    ours = gains(study, made, model, drawn(study, made, model))
    return [
        (one.role, f"OURS-{one.bits} over {one.over}", one.published, ours[one.bits, one.over])
        for one in ratios_of(every_claim().to_pylist())
    ]
