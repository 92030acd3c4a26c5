"""Least frequently used, in the two readings the field mixes up; ties leave by least recent use.

In cache: the count starts at one when an expert enters (libCacheSim's LFU). Lifetime: the count survives eviction
(BigMoeOnEdge's `lfu`). Neither counts repeats within one event.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tokentape.policies.kernels import kernel
from tokentape.policies.protocol import RANK_SIGNATURE


@kernel(RANK_SIGNATURE, allocates=False)
def _count_in_cache(now, n_cached, n_total, profile, params):  # type: ignore[no-untyped-def]
    return n_cached


@kernel(RANK_SIGNATURE, allocates=False)
def _count_lifetime(now, n_cached, n_total, profile, params):  # type: ignore[no-untyped-def]
    return n_total


@dataclass(frozen=True)
class LFU:
    """The expert with the fewest lookups since it entered leaves."""

    kind: ClassVar[str] = "ranked"
    bypass: ClassVar[bool] = False
    is_bound: ClassVar[bool] = False
    profile_frac: ClassVar[float] = 0.0
    rank = staticmethod(_count_in_cache)

    def params(self) -> np.ndarray:
        return np.zeros(0)


@dataclass(frozen=True)
class LifetimeLFU(LFU):
    """The expert with the fewest lookups since the start leaves, whether or not it was resident then."""

    rank = staticmethod(_count_lifetime)
