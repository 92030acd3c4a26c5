"""Refresh of embedded DRAM: what it costs by group and interval, and how many cells an interval loses.

The failure curve is an assumption. Kelle's Figure 4 has no numbers in its text, so a lognormal goes through an assumed rate at
the retention time and has the width that gives the published mean over the four default intervals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from statistics import NormalDist

RETENTION_S = 45e-6  # Kelle Table 1
ANCHOR_FRAC = 3e-6  # failures at the retention time (assumed)
_MOST_FRAC = 0.5  # a cell that was lost reads as either value
_NORMAL = NormalDist()
_SIGMAS = (0.1, 20.0)  # between which the width is looked for


def harmonic_mean_s(intervals_s: Sequence[float]) -> float:
    """The one interval at which equal groups together draw the same refresh power. Raises ValueError unless all are above 0."""
    if not intervals_s or min(intervals_s) <= 0.0:
        raise ValueError(f"refresh intervals are {list(intervals_s)}; give at least one, each above 0 s")
    return len(intervals_s) / sum(1.0 / interval for interval in intervals_s)


def refresh_w(j_per_byte: float, bytes_of: Mapping[str, float], interval_s_of: Mapping[str, float]) -> float:
    """Watts of refreshing the occupied bytes of each group at its interval; j_per_byte: of one pass."""
    return sum(j_per_byte * n_bytes / harmonic_mean_s([interval_s_of[group]]) for group, n_bytes in bytes_of.items())


@dataclass(frozen=True)
class Retention:
    """Lognormal retention: sigma, the width of ln(time); anchor_frac, the share of cells lost within the retention time."""

    sigma: float
    anchor_frac: float = ANCHOR_FRAC

    def __post_init__(self) -> None:
        if not 0.0 < self.anchor_frac < _MOST_FRAC or not self.sigma > 0.0:
            raise ValueError(f"sigma {self.sigma} must be above 0 and anchor_frac {self.anchor_frac} between 0 and {_MOST_FRAC}")

    def failure_frac(self, interval_s: float) -> float:
        """Share of cells that lose their bit within an interval, at most 0.5. Raises ValueError for 0 s or less."""
        if not interval_s > 0.0:
            raise ValueError(f"refresh interval is {interval_s} s; it must be above 0")
        z = _NORMAL.inv_cdf(self.anchor_frac) + log(interval_s / RETENTION_S) / self.sigma
        return min(_NORMAL.cdf(z), _MOST_FRAC)

    def mean_failure_frac(self, intervals_s: Sequence[float]) -> float:
        """Over equal groups."""
        return sum(map(self.failure_frac, intervals_s)) / len(intervals_s)

    def interval_s(self, failure_frac: float) -> float:
        """The interval that loses this share of the cells."""
        lowest, most = self.failure_frac(1e-12), _MOST_FRAC
        if not lowest < failure_frac < most:
            raise ValueError(f"failure_frac is {failure_frac}; this curve reaches {lowest:g} to {most:g}")
        return _bisect(self.failure_frac, failure_frac, 1e-12, 1e6)


def fitted(mean_frac: float, intervals_s: Sequence[float], anchor_frac: float = ANCHOR_FRAC) -> Retention:
    """The curve whose mean failure over equal groups at these intervals is `mean_frac`. Raises ValueError where none is."""

    def lost(sigma: float) -> float:  # a wider curve rises more slowly: less is lost
        return -Retention(sigma, anchor_frac).mean_failure_frac(intervals_s)

    if not -lost(_SIGMAS[1]) < mean_frac < -lost(_SIGMAS[0]):
        raise ValueError(f"no retention curve through {anchor_frac:g} at 45 us loses {mean_frac:g} on average; check both")
    return Retention(_bisect(lost, -mean_frac, *_SIGMAS), anchor_frac)


def _bisect(rising, wanted: float, low: float, high: float) -> float:  # type: ignore[no-untyped-def]
    """Where a rising function takes a value, in geometric steps."""
    for _ in range(200):
        middle = float((low * high) ** 0.5)
        low, high = (middle, high) if rising(middle) < wanted else (low, middle)
    return low
