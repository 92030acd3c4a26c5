"""What the Kelle study says of one chip and one layer: roofline, lifetimes, parts of the chip, retention curves.

Lifetimes (section 6): how long a layer's data stays in eDRAM, and so has to be refreshed. T_s reads one C x C weight matrix from
SRAM, T_e one pass over the K (or V) of the kept tokens from eDRAM; matrix products are neglected beside them. Kelle reads weights
and KV side by side and consumes K and V of the new token as they come.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tokentape.hw.spec import HardwareSpec
from tokentape.hw.work import Rows
from tokentape.policies.kv.refresh import RetentionCurve
from tokentape.replay.kelle.fit import LOAD_CLAIM, RECOMPUTE_CLAIM
from tokentape.replay.kelle.recompute import roofline, seconds_of
from tokentape.replay.kelle.setup import Setup
from tokentape.replay.kelle.step import Step, kv_elements
from tokentape.replay.kelle.systems import KELLE, SYSTEMS
from tokentape.replay.kelle.work import PAPER, Work
from tokentape.warehouse.geometry import Geometry

Row = dict[str, Any]
LIFETIME_MODELS = ("llama-2-7b", "llama-2-13b")
ONCHIP_W, DRAM_W = "kelle/8/power/on-chip-total", "kelle/8/power/dram"
CURVE_POINTS = 61
# Part of the chip: tiers of the machine's file whose area it has, and parts of a step's energy that it draws. The special
# functions have neither: the machine's static power holds them with the array's.
PARTS = {
    "array": ((), ("array_j",)),
    "sram": (("weights",), ("weight_sram_j",)),
    "edram": (("kv", "activations"), ("kv_j", "refresh_j")),
    "special functions": ((), ()),
    "dram": (("dram",), ("dram_j",)),
}


def recompute(made: Setup) -> Iterator[Row]:
    """Rows of `kelle_recompute`: the paper's ratio of latencies, and the array's own."""
    of, work = made.chip, made.workloads[made.chip.workload]
    slowdown = made.stated[RECOMPUTE_CLAIM]["value"] / made.stated[LOAD_CLAIM]["value"]
    where = {"model_id": of.model, "workload": of.workload, "batch": work.batch}
    for mode, ratio in (("paper", slowdown), ("physical", None)):
        for point in roofline(made.geometries[of.model], made.systems[KELLE].machine, work, mode, ratio):
            yield where | {"mode": mode} | point


def layer_lifetimes(made: Setup) -> Iterator[Row]:
    """Rows of `kelle_lifetimes`."""
    work = made.workloads[made.chip.workload]
    for model in (name for name in LIFETIME_MODELS if name in made.geometries):
        where = {"model_id": model, "batch": work.batch, "budget_tokens": work.budget_tokens}
        for life in lifetimes(made.geometries[model], made.systems[KELLE].machine, work):
            yield where | life


def lifetimes(geometry: Geometry, machine: HardwareSpec, work: Work) -> list[Row]:
    """Of the baseline's schedule and of Kelle's, by tensor: X (the layer's input), Q, K and V. Starts are our reading of the
    schedule; the paper gives lengths only."""
    kept = min(work.n_tokens, work.budget_tokens or work.n_tokens)
    k_bytes = work.batch * kept * kv_elements(geometry, PAPER) / 2 * work.kv_bits / 8
    weights = Rows(kind="weights", tier="stage", bytes=float(geometry.hidden**2))
    t_s, t_e = seconds_of(machine, weights, Rows(kind="kv_read", tier="kv_cache", bytes=k_bytes))
    seconds = {
        "baseline": {"X": 3 * t_s, "Q": 2 * t_s + t_e, "K": t_s + t_e, "V": 2 * t_e},
        "kelle": {"X": 3 * t_s, "Q": t_s + t_e, "K": 0.0, "V": 0.0},
    }
    return [
        {"schedule": schedule, "tensor": tensor, "start_s": i * t_s, "seconds": lives}
        for schedule, of in seconds.items()
        for i, (tensor, lives) in enumerate(of.items())
    ]


def total_s(found: list[Row], schedule: str) -> float:
    """Of all tensors together: what refreshing them is proportional to."""
    return float(sum(one["seconds"] for one in found if one["schedule"] == schedule))


def chip_step(made: Setup, knobs: str) -> Step:
    """Kelle's step of the cell that the parts' power is of."""
    work = made.workloads[made.chip.workload]
    return made.steps(knobs).step(made.chip.model, KELLE, work)


def part_w(step: Step, part: str) -> float:
    """Mean power of a part over a step, without leakage."""
    return sum(step.joules[joule] for joule in PARTS[part][1]) / step.seconds


def parts(made: Setup) -> Iterator[Row]:
    """Rows of `kelle_parts`: our areas and powers beside the paper's; the array's power is the special functions' too."""
    machine = made.machines[SYSTEMS[KELLE][0]]
    chip_mm2, onchip_w = machine.area_mm2, made.stated[ONCHIP_W]["value"]
    assert chip_mm2 is not None
    array_mm2 = machine.compute.area_mm2
    for knobs in made.knobs:
        step = chip_step(made, knobs)
        for part, (tiers, joules) in PARTS.items():
            areas = [area.value for area in (machine.tiers[tier].area_mm2 for tier in tiers) if area is not None]
            areas += [array_mm2.value] if part == "array" and array_mm2 else []
            share, power = (shares.get(part) for shares in (made.chip.area_share, made.chip.power_share))
            yield {
                "hardware": machine.name,
                "part": part,
                "area_mm2": sum(areas) if areas else None,
                "published_area_mm2": share * chip_mm2.value if share is not None else None,
                "power_w": part_w(step, part) if joules else None,
                "published_power_w": made.stated[DRAM_W]["value"] if power is None else power * onchip_w,
                "knobs": knobs,
            }


def retention(made: Setup) -> Iterator[Row]:
    """Rows of `kelle_retention`: a curve for every assumed failure rate at 45 us, and the four intervals on each."""
    refresh = made.refresh
    drawn = np.geomspace(*refresh.curve_us, CURVE_POINTS)
    for curve in made.curves.values():
        yield from (_failure(curve, "", interval) for interval in drawn.tolist())
        yield from (_failure(curve, group, interval) for group, interval in refresh.intervals_us.items())


def _failure(curve: RetentionCurve, group: str, interval_us: float) -> Row:
    return {
        "sigma": curve.sigma,
        "anchor_frac": curve.failure_at_45us,
        "interval_s": 1e-6 * interval_us,
        "failure_frac": curve.failure_frac(interval_us),
        "refresh_group": group,
    }
