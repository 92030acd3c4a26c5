"""What a step costs: bytes per tier and operations to seconds and joules, vectorised over steps.

    seconds = max(fast bytes / fast bandwidth, ops / engine) + fetch            (serial: a miss blocks the layer that needs it)
    seconds = max(fast bytes / fast bandwidth, ops / engine, fetch)             (overlapped: fetches hide behind other layers)
    fetch   = backing bytes / min(backing, link) bandwidth + fetches x latency
    joules  = fast reads + (backing reads + link + fast writes) of what is fetched + operations + static power x seconds

A fetched expert is written to the fast tier and read from it again, so its bytes are in `fast_bytes` too. Compute and fast reads
overlap (roofline). Low and high come from the ranges of the spec: low is every number at its favourable end, high at its worst.
Not covered: KV-cache traffic, writes of activations, contention between tiers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hw.spec import HardwareSpec, Sourced

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class StepCost:
    """seconds, joules: (n,) f64 nominal; *_low, *_high: the same at the favourable and the worst end of the spec's ranges."""

    seconds: Floats
    seconds_low: Floats
    seconds_high: Floats
    joules: Floats
    joules_low: Floats
    joules_high: Floats


def step_cost(
    spec: HardwareSpec,
    fast_bytes: NDArray[np.int64],
    backing_bytes: NDArray[np.int64],
    n_fetches: NDArray[np.int64],
    ops: NDArray[np.float64],
    overlap: bool = False,
) -> StepCost:
    """Cost of n steps; all inputs (n,). n_fetches: reads issued to the backing tier one after the other."""
    work = (fast_bytes.astype(np.float64), backing_bytes.astype(np.float64), n_fetches.astype(np.float64), ops)
    seconds, joules = _cost(spec, *work, overlap, "value", "value")
    low_s, low_j = _cost(spec, *work, overlap, "high", "low")
    high_s, high_j = _cost(spec, *work, overlap, "low", "high")
    assert np.all(seconds >= fast_bytes / spec.tiers[spec.fast].peak_bytes_per_s.value), "faster than the fast tier's peak"
    return StepCost(seconds, low_s, high_s, joules, low_j, high_j)


def _cost(
    spec: HardwareSpec,
    fast_bytes: Floats,
    backing_bytes: Floats,
    n_fetches: Floats,
    ops: Floats,
    overlap: bool,
    rate: str,
    cost: str,
) -> tuple[Floats, Floats]:
    """Seconds and joules with rates taken at one end of their range and costs (latency, energy, power) at the other."""

    def at(number: Sourced, end: str) -> float:
        return float(getattr(number, end))

    fast, backing, link, engine = spec.tiers[spec.fast], spec.tiers[spec.backing], spec.link, spec.engine
    read_s = fast_bytes / (at(fast.peak_bytes_per_s, rate) * at(fast.efficiency_frac, rate))
    compute_s = ops / (at(engine.ops_per_s[spec.dtype], rate) * at(engine.efficiency_frac, rate))
    fetch_rate = at(backing.peak_bytes_per_s, rate) * at(backing.efficiency_frac, rate)
    latency = at(backing.latency_s, cost)
    if link is not None:
        fetch_rate = min(fetch_rate, at(link.peak_bytes_per_s, rate) * at(link.efficiency_frac, rate))
        latency += at(link.latency_s, cost)
    fetch_s = backing_bytes / fetch_rate + n_fetches * latency
    busy_s = np.maximum(read_s, compute_s)
    seconds = np.maximum(busy_s, fetch_s) if overlap else busy_s + fetch_s
    fetched_pj_per_bit = at(backing.read_pj_per_bit, cost) + at(fast.write_pj_per_bit, cost)
    if link is not None:
        fetched_pj_per_bit += at(link.energy_pj_per_bit, cost)
    joules = (
        8e-12 * (fast_bytes * at(fast.read_pj_per_bit, cost) + backing_bytes * fetched_pj_per_bit)
        + 1e-12 * ops * at(engine.energy_pj_per_op, cost)
        + at(spec.static_w, cost) * seconds
    )
    return seconds, joules
