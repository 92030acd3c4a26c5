"""Rows of `cxl_ndp_points`: every system under every setting, median and range over the seeds of a model's drawn routing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from tokentape.flows.grid import load_hardware
from tokentape.flows.systems.cxl_ndp.settings import Model, Setup
from tokentape.flows.systems.cxl_ndp.tapes import DRAWN, gaussian_errors
from tokentape.replay.cxl_ndp.capacity import notes
from tokentape.replay.cxl_ndp.decode import UNITS, Decoded
from tokentape.replay.cxl_ndp.fit import ratios_of
from tokentape.replay.cxl_ndp.routing import CXLNDPRouting
from tokentape.replay.cxl_ndp.setting import Floats, Setting, compared, run, stand_in_losses
from tokentape.replay.cxl_ndp.system import HOBBIT, MONDE, Machine, machine_of
from tokentape.warehouse.load import claims

Row = dict[str, Any]
HEADLINE = "headline"
GAINS = {MONDE: "decode_gain", HOBBIT: "gain_over_hobbit"}
ALL_UNITS = UNITS | dict.fromkeys(GAINS.values(), "x")


@dataclass(frozen=True)
class Variation:
    """One point of a sweep: what is different, and where. value: the number in `name`."""

    series: str
    name: str
    setting: Setting
    machine: Machine
    systems: tuple[str, ...]
    value: float | None = None


def headline(made: Setup, model: Model) -> Variation:
    """The paper's setting."""
    setting = Setting(batch=made.knobs.batch, hot_experts=model.hot_experts)
    return Variation(HEADLINE, "", setting, made.machine, made.study.systems)


def variations(made: Setup, model: Model) -> Iterator[Variation]:
    """The headline, then one thing changed at a time; NDP bandwidth and what else is the paper's alone on its own model."""
    base, sweeps = headline(made, model), made.study.sweeps
    yield base
    base = replace(base, systems=made.study.compared)

    def machines(series: str, values: Sequence[float], name: str, changed: Any) -> Iterator[Variation]:
        for value in values:
            yield replace(base, series=series, name=name.format(value), value=value, machine=changed(value))

    def settings(series: str, values: Sequence[Any], name: str, field: str) -> Iterator[Variation]:
        for value in values:
            number = float(value) if isinstance(value, (int, float)) else None
            setting = replace(base.setting, **{field: value})
            yield replace(base, series=series, name=name.format(value), value=number, setting=setting)

    machine = made.machine
    yield from settings("batch", sweeps.batches, "batch {}", "batch")
    for label, hardware in sweeps.links.items():
        linked = machine_of(load_hardware(hardware))
        yield replace(base, series="link", name=label, value=linked.link_bytes_per_s / 1e9, machine=linked)
    yield from machines("ndp size", sweeps.ndp_devices, "{:g} devices", machine.times)
    if not model.is_swept:
        return
    yield from machines("link bandwidth", sweeps.link_gb_per_s, "{:g} GB/s", lambda v: machine.on(link_bytes_per_s=1e9 * v))
    yield from machines(
        "ndp bandwidth", sweeps.ndp_factors, "x {:g}", lambda v: machine.on(ndp_bytes_per_s=v * machine.ndp_bytes_per_s)
    )
    yield from machines("ndp macs", sweeps.ndp_factors, "x {:g}", lambda v: machine.on(ndp_ops_per_s=v * machine.ndp_ops_per_s))
    yield from settings("alpha", sweeps.alphas, "alpha {:g}", "alpha")
    yield from settings("hot experts", sweeps.hot_experts, "{} hot", "hot_experts")
    yield from settings("placement", sweeps.placements, "{}", "placement")
    yield from settings("bits rule", sweeps.rules, "{}", "rule")
    for batch in (1, base.setting.batch):
        for scales in (True, False):
            setting = replace(base.setting, batch=batch, compute_scales=scales)
            name = f"{'scales with bits' if scales else 'fixed'}, batch {batch}"
            yield replace(base, series="mac rate", name=name, value=float(batch), setting=setting)
    for overlaps in (False, True):
        setting = replace(base.setting, overlaps=overlaps)
        yield replace(base, series="overlap", name="beside computing" if overlaps else "before computing", setting=setting)


def losses_of(made: Setup, seed: int) -> Floats:
    """(L, E, 4) stand-in of a model's losses."""
    return stand_in_losses(made.shape.n_layers, made.shape.n_experts, gaussian_errors(), seed, made.study.losses.spread)


def decoded(made: Setup, tape: CXLNDPRouting, seed: int, of: Variation) -> dict[str, Decoded]:
    """Every system's decode of one tape."""
    setting = replace(of.setting, seed=seed)
    return run(tape, made.shape, of.machine, made.knobs, setting, of.systems, losses_of(made, seed))


def rows(made: Setup, model: Model, tapes: dict[int, CXLNDPRouting]) -> Iterator[Row]:
    """Of a model. tapes: by seed."""
    for of in variations(made, model):
        by_seed = [compared(decoded(made, tape, seed, of)) for seed, tape in tapes.items()]
        where = {"series": of.series, "setting": of.name, "setting_value": of.value, "source": DRAWN, "origin": "synthetic"}
        yield from metric_rows(made, of, where, by_seed)


def metric_rows(made: Setup, of: Variation, where: Row, by_seed: Sequence[dict[str, dict[str, float]]]) -> Iterator[Row]:
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
                "role": role(made, of, system, metric),
                "notes": said,
                "metric": metric,
                "unit": ALL_UNITS[metric],
                "value": float(np.median(values)),
                "low": float(values.min()),
                "high": float(values.max()),
            }


def role(made: Setup, of: Variation, system: str, metric: str) -> str:
    """calibrate for what the knobs were fitted to, predict for the rest of the headline, report for sweeps.

    derived for the NDP's own gain, which is the assumed scaling.
    """
    if of.series != HEADLINE:
        return "report"
    if metric == "ndp_gain":
        return "derived"
    is_fitted = (system, metric) in _fitted() and made.shape.name == made.study.models[0].name
    return "calibrate" if is_fitted else "predict"


@cache
def _fitted() -> frozenset[tuple[str, str]]:
    """System and metric of every ratio that the knobs were fitted to."""
    stated = ratios_of(claims().to_pylist(), "calibrate")
    return frozenset((f"OURS-{one.bits}", GAINS[one.over]) for one in stated)
