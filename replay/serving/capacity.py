"""How much an engine can take: its saturation, and the highest rate that still meets a service level."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from tokentape.replay.serving.metrics import ServiceLevel, attained
from tokentape.replay.serving.run import ServingRun

DOUBLINGS = 40


@dataclass(frozen=True)
class Capacity:
    """rate_per_s: the highest rate found to meet the level; attained_frac: the share of requests that met it there (median);
    first_missed_per_s: the lowest rate found to miss it; infinite where none was."""

    rate_per_s: float
    attained_frac: float
    first_missed_per_s: float


def saturation_rate_per_s(run_at_once: ServingRun) -> float:
    """Requests per second that leave an engine whose requests were all there at the start (Requests.at_once)."""
    return len(run_at_once.requests) / run_at_once.wall_s


def attained_frac(
    serve_at: Callable[[float, int], ServingRun], rate_per_s: float, seeds: Iterable[int], level: ServiceLevel
) -> float:
    """Median over the seeds of the share of requests that meet both halves of a service level."""
    shares = []
    for seed in seeds:
        in_time, gaps_in_time = attained(serve_at(rate_per_s, seed), level)
        shares.append(float((in_time & gaps_in_time).mean()))
    return float(np.median(shares))


def capacity(
    serve_at: Callable[[float, int], ServingRun],
    level: ServiceLevel,
    seeds: Iterable[int],
    start_per_s: float = 1.0,
    precision_frac: float = 0.01,
) -> Capacity:
    """Highest rate at which level.frac of the requests meet the level, by doubling and bisection.

    serve_at: a run at a rate and a seed. Takes attainment to fall with the rate, as it does but for noise between seeds. A rate
    of 0 means that even start_per_s / 2^40 misses it. Raises ValueError for a start that is not positive.
    """
    if not start_per_s > 0:
        raise ValueError(f"start_per_s {start_per_s} must be above 0")
    numbers = tuple(seeds)
    met, best, missed = 0.0, float("nan"), float("inf")

    def tried(rate: float) -> bool:
        """Narrows what is met and missed."""
        nonlocal met, best, missed
        share = attained_frac(serve_at, rate, numbers, level)
        if share >= level.frac:
            met, best = rate, share
        else:
            missed = rate
        return share >= level.frac

    rate, is_met = start_per_s, tried(start_per_s)
    for _ in range(DOUBLINGS):
        rate = rate * 2.0 if is_met else rate / 2.0
        if tried(rate) != is_met:
            break
    while missed - met > precision_frac * met and met > 0.0 and missed < float("inf"):
        tried((met + missed) / 2.0)
    return Capacity(met, best, missed)
