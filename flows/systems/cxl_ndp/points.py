"""Rows of `ndp_points`: every system under every setting, median and range over the seeds of a model's drawn routing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from tokentape.flows.grid import load_hardware
from tokentape.flows.systems.cxl_ndp.settings import CHANGES, Model, Settings
from tokentape.flows.systems.cxl_ndp.tapes import DRAWN, gaussian_errors
from tokentape.replay.cxl_ndp.capacity import notes
from tokentape.replay.cxl_ndp.checks import HEADLINE
from tokentape.replay.cxl_ndp.decode import UNITS, Decoded
from tokentape.replay.cxl_ndp.fit import ratios_of
from tokentape.replay.cxl_ndp.routing import NDPRouting
from tokentape.replay.cxl_ndp.setting import Floats, Setting, Setup, compared, run, stand_in_losses
from tokentape.replay.cxl_ndp.system import HOBBIT, MONDE, Machine, machine_of
from tokentape.warehouse.load import claims

Row = dict[str, Any]
GAINS = {MONDE: "decode_gain", HOBBIT: "gain_over_hobbit"}
ALL_UNITS = UNITS | dict.fromkeys(GAINS.values(), "x")


@dataclass(frozen=True)
class Variation:
    """One point of a series: what it is called, the setting, and on what. value: the number in `name`."""

    series: str
    name: str
    setting: Setting
    machine: Machine
    systems: tuple[str, ...]
    value: float | None = None


def headline(study: Settings, made: Setup, model: Model) -> Variation:
    """The paper's setting."""
    setting = Setting(batch=made.knobs.batch, hot_experts=model.hot_experts)
    return Variation(HEADLINE, "", setting, made.machine, study.systems)


def variations(study: Settings, made: Setup, model: Model) -> Iterator[Variation]:
    """The headline, then the grid."""
    yield headline(study, made, model)
    for grid in study.grid:
        if model.is_swept or not grid.only_swept:
            yield from (_variation(study, made, model, grid.series, fields) for fields in grid.points())


def _variation(study: Settings, made: Setup, model: Model, series: str, fields: dict[str, Any]) -> Variation:
    """setting: a point's name; value: the field whose number stands beside it."""
    name, value = fields.pop("setting", ""), fields.pop("value", "")
    machine = machine_of(load_hardware(fields.pop("hardware", study.hardware)))
    for change in CHANGES.keys() & fields.keys():
        machine = CHANGES[change](machine, fields[change])
    told = {"link_gb_per_s": machine.link_bytes_per_s / 1e9} | fields
    given = {"batch": made.knobs.batch, "hot_experts": model.hot_experts} | fields
    setting = Setting(**{name: of for name, of in given.items() if name not in CHANGES})
    return Variation(series, name.format(**told), setting, machine, study.compared, float(told[value]) if value else None)


def losses_of(study: Settings, made: Setup, seed: int) -> Floats:
    """(L, E, 4) stand-in of a model's losses."""
    return stand_in_losses(made.shape.n_layers, made.shape.n_experts, gaussian_errors(), seed, study.losses.spread)


def decoded(study: Settings, made: Setup, tape: NDPRouting, seed: int, of: Variation) -> dict[str, Decoded]:
    """Every system's decode of one tape."""
    setting = replace(of.setting, seed=seed)
    return run(tape, made.shape, of.machine, made.knobs, setting, of.systems, losses_of(study, made, seed))


def rows(study: Settings, made: Setup, model: Model, tapes: dict[int, NDPRouting]) -> Iterator[Row]:
    """Of a model. tapes: by seed."""
    for of in variations(study, made, model):
        by_seed = [compared(decoded(study, made, tape, seed, of)) for seed, tape in tapes.items()]
        where = {"series": of.series, "setting": of.name, "setting_value": of.value, "source": DRAWN, "origin": "synthetic"}
        yield from metric_rows(study, made, of, where, by_seed)


def metric_rows(
    study: Settings, made: Setup, of: Variation, where: Row, by_seed: Sequence[dict[str, dict[str, float]]]
) -> Iterator[Row]:
    """One row per system and metric: median and range."""
    setting = of.setting
    said = "; ".join(notes(made.shape, of.machine, made.knobs, setting.hot_experts, setting.batch))
    for system in by_seed[0]:
        bits = float(system.removeprefix("OURS-")) if system.startswith("OURS-") else 16.0
        for metric in by_seed[0][system]:
            values = np.array([found[system][metric] for found in by_seed])
            if np.isnan(values).any():  # of an NDP that computes nothing
                continue
            yield {
                **where,
                "model_id": made.shape.name,
                "hardware": of.machine.name,
                "system": system,
                "batch": setting.batch,
                "hot_experts": setting.hot_experts,
                "mean_bits": bits,
                "n_seeds": len(by_seed),
                "role": role(study, made, of, system, metric),
                "notes": said,
                "metric": metric,
                "unit": ALL_UNITS[metric],
                "value": float(np.median(values)),
                "low": float(values.min()),
                "high": float(values.max()),
            }


def role(study: Settings, made: Setup, of: Variation, system: str, metric: str) -> str:
    """calibrate for what the knobs were fitted to, predict for the rest of the headline, report for sweeps.

    derived for the NDP's own gain, which is the assumed scaling.
    """
    if of.series != HEADLINE:
        return "report"
    if metric == "ndp_gain":
        return "derived"
    is_fitted = (system, metric) in _fitted() and made.shape.name == study.models[0].name
    return "calibrate" if is_fitted else "predict"


@cache
def _fitted() -> frozenset[tuple[str, str]]:
    """System and metric of every ratio that the knobs were fitted to."""
    stated = ratios_of(claims().to_pylist(), "calibrate")
    return frozenset((f"OURS-{one.bits}", GAINS[one.over]) for one in stated)
