"""What a step costs: bytes per tier and operations to seconds and joules, vectorised over steps.

    seconds = max(fast bytes / fast bandwidth, ops / engine) + fetch            (serial: a miss blocks the layer that needs it)
    seconds = max(fast bytes / fast bandwidth, ops / engine, fetch)             (overlapped: fetches hide behind other layers)
    fetch   = backing bytes / min(backing, link) bandwidth + fetches x latency
    joules  = fast reads + (backing reads + link + fast writes) of what is fetched + operations + background power x seconds

A fetched expert is written to the fast tier and read from it again, so its bytes are in `fast_bytes` too. Compute and fast reads
overlap (roofline). Background power is the machine's static power plus leakage and refresh of every tier. `n_devices` share bytes
and operations evenly. The low end of a cost takes every number of the spec at its favourable end, the high end at its worst.
Not covered: KV-cache traffic, writes of activations, contention between tiers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokentape.hw.spec import Engine, HardwareSpec, MemTier

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Band:
    """value, low, high: (n,) f64: nominal, and at the favourable and the worst end of the spec's ranges."""

    value: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True, eq=False)
class StepCost:
    """Of n steps: seconds, joules, and the parts the joules are the sum of (fast, backing, link, compute, background)."""

    seconds: Band
    joules: Band
    joules_of: dict[str, Band]


@dataclass(frozen=True)
class Rates:
    """What a machine does per second and per bit at one end of its ranges; rates of all its devices together."""

    fast_bytes_per_s: float
    ops_per_s: float
    fetch_bytes_per_s: float  # 0 without a backing tier
    fetch_latency_s: float
    fast_pj_per_bit: float
    fetch_pj_per_bit: dict[str, float]  # fast (the write), backing, link
    pj_per_op: float
    background_w: float


def rates(spec: HardwareSpec, end: str = "value") -> Rates:
    """The machine at its nominal values, or at the `low` (favourable) or `high` (worst) end of every cost."""
    cost = end
    rate = {"low": "high", "high": "low"}.get(end, "value")
    fast, engine = spec.tiers[spec.fast], spec.compute
    fetch_rate, latency, fetch_pj = 0.0, 0.0, {}
    if spec.backing:
        backing, link = spec.tiers[spec.backing], spec.link(spec.backing, spec.fast)
        fetch_rate = _bytes_per_s(backing, rate)
        latency = getattr(backing.latency_s, cost)
        fetch_pj = {"fast": getattr(fast.write_pj_per_bit, cost), "backing": _pj_per_bit(backing, cost)}
        if link is not None:
            fetch_rate = min(fetch_rate, getattr(link.peak_bytes_per_s, rate) * getattr(link.efficiency_frac, rate))
            latency += getattr(link.latency_s, cost)
            fetch_pj["link"] = getattr(link.energy_pj_per_bit, cost)
    return Rates(
        fast_bytes_per_s=_seen_by(spec.compute, fast, rate) * spec.n_devices,
        ops_per_s=getattr(engine.ops_per_s[spec.dtype], rate) * getattr(engine.efficiency_frac, rate) * spec.n_devices,
        fetch_bytes_per_s=fetch_rate * spec.n_devices,
        fetch_latency_s=latency,
        fast_pj_per_bit=_pj_per_bit(fast, cost),
        fetch_pj_per_bit=fetch_pj,
        pj_per_op=getattr(engine.energy_pj_per_op, cost),
        background_w=getattr(spec.static_w, cost) + sum(tier.background_w(cost) for tier in spec.tiers.values()) * spec.n_devices,
    )


def step_cost(
    spec: HardwareSpec,
    fast_bytes: NDArray[np.int64],
    backing_bytes: NDArray[np.int64],
    n_fetches: NDArray[np.int64],
    ops: Floats,
    overlap: bool = False,
) -> StepCost:
    """Cost of n steps; all inputs (n,). n_fetches: reads issued to the backing tier one after the other.

    Raises ValueError if bytes are fetched on a machine that names no backing tier.
    """
    if not spec.backing and backing_bytes.any():
        raise ValueError(f"{spec.name} has no backing tier to fetch missing experts from; choose a machine with one")
    work = (fast_bytes.astype(np.float64), backing_bytes.astype(np.float64), n_fetches.astype(np.float64), ops)
    ends = [_cost(rates(spec, end), *work, overlap) for end in ("value", "low", "high")]
    peak = spec.compute.memory_bytes_per_s or spec.tiers[spec.fast].peak_bytes_per_s
    assert np.all(ends[0][0] >= fast_bytes / (peak.value * spec.n_devices)), "faster than its peak"
    return StepCost(
        Band(*(seconds for seconds, _ in ends)),
        Band(*(np.sum(list(parts.values()), axis=0) for _, parts in ends)),
        {part: Band(*(parts[part] for _, parts in ends)) for part in ends[0][1]},
    )


def _cost(
    at: Rates, fast_bytes: Floats, backing_bytes: Floats, n_fetches: Floats, ops: Floats, overlap: bool
) -> tuple[Floats, dict[str, Floats]]:
    """Seconds, and joules by part, at one end of the ranges."""
    busy_s = np.maximum(fast_bytes / at.fast_bytes_per_s, ops / at.ops_per_s)
    seconds = busy_s
    if at.fetch_bytes_per_s:
        fetch_s = backing_bytes / at.fetch_bytes_per_s + n_fetches * at.fetch_latency_s
        seconds = np.maximum(busy_s, fetch_s) if overlap else busy_s + fetch_s
    parts = {part: 8e-12 * pj_per_bit * backing_bytes for part, pj_per_bit in at.fetch_pj_per_bit.items()}
    parts["fast"] = parts.get("fast", 0.0) + 8e-12 * at.fast_pj_per_bit * fast_bytes
    parts["compute"] = 1e-12 * at.pj_per_op * ops
    parts["background"] = at.background_w * seconds
    return seconds, parts


def _bytes_per_s(tier: MemTier, end: str) -> float:
    return float(getattr(tier.peak_bytes_per_s, end) * getattr(tier.efficiency_frac, end))


def _seen_by(engine: Engine, tier: MemTier, end: str) -> float:
    """What the engine reads from its memory: in-memory compute sees more than the tier's pins."""
    if engine.memory_bytes_per_s is None:
        return _bytes_per_s(tier, end)
    return float(getattr(engine.memory_bytes_per_s, end) * getattr(tier.efficiency_frac, end))


def _pj_per_bit(tier: MemTier, end: str) -> float:
    """Energy of a streamed bit: the read, and its share of opening a row where the spec keeps that apart."""
    if tier.activate_nj is None or tier.row_bytes is None:
        return float(getattr(tier.read_pj_per_bit, end))
    opposite = {"low": "high", "high": "low"}.get(end, end)
    return float(
        getattr(tier.read_pj_per_bit, end) + 1e3 * getattr(tier.activate_nj, end) / (8.0 * getattr(tier.row_bytes, opposite))
    )


def power_findings(spec: HardwareSpec, power_w: float) -> list[str]:
    """Sentences on a mean power that the machine cannot draw: above `max_w` or below `idle_w`, at the far end of their ranges."""
    findings = []
    if spec.max_w is not None and power_w > spec.max_w.high:
        findings.append(f"mean power {power_w:.3g} W is above {spec.name}'s limit of {spec.max_w.high:g} W")
    if spec.idle_w is not None and power_w < spec.idle_w.low:
        findings.append(f"mean power {power_w:.3g} W is below {spec.name}'s idle power of {spec.idle_w.low:g} W")
    return findings
