"""Refresh of embedded DRAM in groups at intervals of their own. How many bits an interval loses: policies/kv/refresh.py."""

from __future__ import annotations

from collections.abc import Sequence


def harmonic_mean_s(intervals_s: Sequence[float]) -> float:
    """The one interval at which equal groups together draw the same refresh power. Raises ValueError unless all are above 0."""
    if not intervals_s or min(intervals_s) <= 0.0:
        raise ValueError(f"refresh intervals are {list(intervals_s)}; give at least one, each above 0 s")
    return len(intervals_s) / sum(1.0 / interval for interval in intervals_s)
