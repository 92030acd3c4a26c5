"""Where attainment falls, read linearly between the rates at which it was computed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Curve:
    """Over rates (m,): shares (3, m) of a metric at the median and both ends of the band over seeds."""

    rates: Floats
    shares: Floats

    @classmethod
    def of(cls, points: Iterable[tuple[float, Sequence[float | None]]]) -> Curve:
        """Of a rate and its shares each, in any order."""
        rows = sorted(points)
        return cls(np.array([rate for rate, _ in rows]), np.array([ends for _, ends in rows], np.float64).T)

    def falls_below(self, share: float) -> list[float]:
        """The rate at which it does, by median and by both ends; the last rate where it does not, the first where always."""
        return [_crossing(self.rates, of, share) for of in self.shares]

    def led_by(self, other: Curve) -> Curve:
        """1 less what the other attains more, over the same rates; the ends of the band are each one's low over the other's
        high."""
        return Curve(self.rates, 1.0 - (other.shares - self.shares[[0, 2, 1]]))


def _crossing(rates: Floats, shares: Floats, share: float) -> float:
    below = np.flatnonzero(shares < share)
    if not below.size:
        return float(rates[-1])
    i = int(below[0])
    if i == 0:
        return float(rates[0])
    return float(np.interp(-share, -shares[i - 1 : i + 1], rates[i - 1 : i + 1]))
