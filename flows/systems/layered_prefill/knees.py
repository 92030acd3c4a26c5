"""Where attainment falls: what the sweeps of service levels say about section 5.2, read linearly between the swept rates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.flows.systems.layered_prefill.settings import PAPER, Job, Settings, Sweep

Values = Mapping[str, tuple[float, float | None, float | None]]
Stated = Mapping[str, Mapping[str, Any]]
Floats = NDArray[np.float64]
HELD = 0.9  # of the requests: the paper's line
CHUNK = 512

# The paper's words, as shares (assumed): attainment below which a scheduler has dropped, collapsed, or no longer holds all.
DROPS = {"slo_drop_rate": HELD, "slo_degrades_beyond_rate": HELD, "slo_steep_decline_rate": HELD, "slo_collapse_rate": 0.5}
HOLDS = {"slo_full_through_rate": 0.95, "slo_above_90_through_rate": HELD, "no_ttft_violation_through_rate": 0.99}
CLEAR_LEAD = 0.5


@dataclass(frozen=True, eq=False)
class Curve:
    """Of a scheduler over rates (m,): shares (3, m) of a metric at the median and both ends of the band over seeds."""

    rates: Floats
    shares: Floats

    def falls_below(self, share: float) -> list[float]:
        """The rate at which it does, by median and by both ends; the last rate where it does not, the first where always."""
        return [_crossing(self.rates, of, share) for of in self.shares]


def _crossing(rates: Floats, shares: Floats, share: float) -> float:
    below = np.flatnonzero(shares < share)
    if not below.size:
        return float(rates[-1])
    i = int(below[0])
    if i == 0:
        return float(rates[0])
    return float(np.interp(-share, -shares[i - 1 : i + 1], rates[i - 1 : i + 1]))


def curve(
    wanted: Sequence[Job], values: Sequence[Values], series: str, scheduler: str, metric: str = "slo_frac", chunk: int = CHUNK
) -> Curve:
    """Of the swept points of a scheduler, by rate."""
    of = [
        (job.point.rate_per_s, found[metric])
        for job, found in zip(wanted, values, strict=True)
        if job.series == series and job.point.scheduler == scheduler and job.point.params.get("chunk_tokens", chunk) == chunk
    ]
    rows = sorted(of)
    return Curve(np.array([rate for rate, _ in rows]), np.array([ends for _, ends in rows], np.float64).T)


def led_by(curve: Curve, other: Curve) -> Curve:
    """1 less what the other attains more, over the same rates; the ends of the band are each one's low over the other's high."""
    return Curve(curve.rates, 1.0 - (other.shares - curve.shares[[0, 2, 1]]))


def knee_answers(study: Settings, stated: Stated, wanted: Sequence[Job], values: Sequence[Values]) -> Iterator[dict[str, Any]]:
    """Rows of `answers` of sections 5.2 and 5.3, as far as the study sweeps."""
    for sweep in study.sweeps:
        tail = f"{sweep.model}/{sweep.workload}"
        for claim in stated.values():
            if f"/{tail}-" in claim["claim_id"] and claim["metric"] in {*DROPS, *HOLDS, "slo_clear_advantage_rate"}:
                yield answer(claim, *_rate(wanted, values, sweep, claim))
    for workload in dict.fromkeys(sweep.workload for sweep in study.sweeps):
        claim = stated[f"{PAPER}/sec-5.2/mean_decode_batch/{workload}-slo-attainment-90-models-both"]
        of_workload = {sweep.series for sweep in study.sweeps if sweep.workload == workload}
        met = [
            found["decode_batch_mean"]
            for job, found in zip(wanted, values, strict=True)
            if job.series in of_workload and found["slo_frac"][0] > HELD
        ]
        if met:
            yield answer(claim, list(max(met)), f"largest of {len(met)} swept points with more than {HELD:.0%} within limits")
    gains = {sweep.series: _gain(wanted, values, sweep) for sweep in study.sweeps}
    for name, pick in (("min", min), ("max", max)):
        series = pick(gains, key=lambda series: gains[series])
        claim = stated[f"{PAPER}/sec-5.2/capacity_gain/{name}/layered-vs-chunked-models-both"]
        how = f"rate at which {HELD:.0%} are within limits, layered over chunked {CHUNK}; {name} of the sweeps: {series}"
        yield answer(claim, [100.0 * gains[series], None, None], how)


def _rate(
    wanted: Sequence[Job], values: Sequence[Values], sweep: Sweep, claim: Mapping[str, Any]
) -> tuple[list[float | None], str]:
    """The rate that a claim asks for, with its band, and how it was read."""
    metric = claim["metric"]
    scheduler = "layered" if claim["claim_id"].endswith("-layered") else "chunked"
    if metric in DROPS:
        rates = curve(wanted, values, sweep.series, scheduler).falls_below(DROPS[metric])
        return [*rates], f"attainment of {scheduler} falls below {DROPS[metric]:.0%}; {sweep.series}"
    if metric in HOLDS:
        of = "slo_ttft_frac" if metric.startswith("no_ttft") else "slo_frac"
        rates = curve(wanted, values, sweep.series, scheduler, of).falls_below(HOLDS[metric])
        how = f"{of} of {scheduler} stays at {HOLDS[metric]:.0%} to {rates[0]:.3g}/s; the paper sweeps to {sweep.last_rate:g}"
        return [min(rate, sweep.last_rate) for rate in rates], how
    ours, theirs = (curve(wanted, values, sweep.series, name) for name in ("layered", "chunked"))
    return [*led_by(theirs, ours).falls_below(1.0 - CLEAR_LEAD)], f"layered leads chunked by {CLEAR_LEAD:.0%}; {sweep.series}"


def _gain(wanted: Sequence[Job], values: Sequence[Values], sweep: Sweep) -> float:
    ours, theirs = (curve(wanted, values, sweep.series, name).falls_below(HELD)[0] for name in ("layered", "chunked"))
    return ours / theirs - 1.0


def answer(claim: Mapping[str, Any], ends: Sequence[float | None], how: str, mode: str = "paper") -> dict[str, Any]:
    """A row of `answers`; ends: value, and the band's two ends in any order."""
    value, *band = ends
    low, high = sorted(end for end in band if end is not None) if None not in band else (None, None)
    return {"claim_id": claim["claim_id"], "mode": mode, "value": value, "low": low, "high": high, "how": how}
