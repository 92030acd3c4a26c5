"""A cache policy of one's own: `tokentape replay TRACE --policy docs/examples/my_cache.py:DecayedLFU`."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np


@dataclass(frozen=True)
class DecayedLFU:
    """Recent lookups count more: the rank is when the expert was last used plus a bonus per lookup since it entered."""

    bonus_events: float = 200.0
    kind: ClassVar[str] = "ranked"
    bypass: ClassVar[bool] = False  # True: a missed expert of the lowest rank is streamed and not kept
    is_bound: ClassVar[bool] = False
    profile_frac: ClassVar[float] = 0.0  # share of the tape, from its start, that `profile` counts

    def params(self) -> np.ndarray:
        return np.array([self.bonus_events])

    @staticmethod
    def rank(of):
        return of.now + of.params[0] * of.n_cached
