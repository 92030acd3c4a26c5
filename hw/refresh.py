"""Refresh of embedded DRAM: what it costs by group and interval. How many bits an interval loses: policies/kv/refresh.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def harmonic_mean_s(intervals_s: Sequence[float]) -> float:
    """The one interval at which equal groups together draw the same refresh power. Raises ValueError unless all are above 0."""
    if not intervals_s or min(intervals_s) <= 0.0:
        raise ValueError(f"refresh intervals are {list(intervals_s)}; give at least one, each above 0 s")
    return len(intervals_s) / sum(1.0 / interval for interval in intervals_s)


def refresh_w(j_per_byte: float, bytes_of: Mapping[str, float], interval_s_of: Mapping[str, float]) -> float:
    """Watts of refreshing the occupied bytes of each group at its interval; j_per_byte: of one pass."""
    return sum(j_per_byte * n_bytes / harmonic_mean_s([interval_s_of[group]]) for group, n_bytes in bytes_of.items())
