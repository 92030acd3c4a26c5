"""Systems compared at equal quality: each is swept over its router's strength, and read off where it keeps the same quality.

Stronger routing to resident experts misses less and strays further from what the router chose. What a replay can see of quality
is a proxy: the share of the natural route's gate mass that the applied experts keep, low-precision mass charged at a fixed cost.
It is no accuracy, and is never shown as one (SliceMoE section 6).
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from typing import Any

import numpy as np

from tokentape.replay.result import ReplayResult


@dataclass(frozen=True)
class Point:
    """One replay of a sweep. quality_frac: kept gate mass less the cost of low-precision mass; early: the first ten steps."""

    strength: float
    quality_frac: float
    high_bit_miss_frac: float
    critical_per_layer: float
    decode_step_s: float
    decode_energy_j_per_token: float
    flash_energy_frac: float
    early_step_s: float
    early_energy_j_per_token: float


METRICS = tuple(field.name for field in fields(Point))[2:]


def point_of(result: ReplayResult, strength: float, low_bit_cost: float) -> Point:
    """What a replay of a sliced system says, its router at this strength."""
    metrics = {name: metric.value for name, metric in result.metrics.items()}
    quality = metrics["kept_gate_mass_frac"] - low_bit_cost * metrics["low_bit_mass_frac"]
    return Point(strength, quality, *(metrics[name] for name in METRICS))


def at_quality(points: list[Point], quality_frac: float) -> Point:
    """Where a sweep first falls to the quality, linear between two replays.

    A sweep that starts below it is read at its first point, one that stays above at its last: `quality_frac` of what is returned
    says so.
    """
    below = next((i for i, point in enumerate(points) if point.quality_frac < quality_frac), None)
    if below is None:
        return points[-1]
    if below == 0:
        return points[0]
    before, after = points[below - 1], points[below]
    share = (before.quality_frac - quality_frac) / (before.quality_frac - after.quality_frac)
    mixed = np.array(astuple(before)) * (1.0 - share) + np.array(astuple(after)) * share
    return Point(*map(float, mixed))


def gains(baseline: Point, ours: Point) -> dict[str, float]:
    """How many times less energy and time a decoded token takes; `early_*` over the first ten."""
    pairs: dict[str, Any] = {
        "energy": "decode_energy_j_per_token",
        "speed": "decode_step_s",
        "early_energy": "early_energy_j_per_token",
        "early_speed": "early_step_s",
    }
    return {name: getattr(baseline, metric) / getattr(ours, metric) for name, metric in pairs.items()}
