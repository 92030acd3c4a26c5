"""Least frequently used, in the two readings the field mixes up; ties leave by least recent use.

In cache: the count starts at one when an expert enters (libCacheSim's LFU). Lifetime: the count survives eviction
(BigMoeOnEdge's `lfu`). Neither counts repeats within one event.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokentape.policies.kernels import kernel
from tokentape.policies.protocol import RANK_SIGNATURE, Ranked


@kernel(RANK_SIGNATURE, allocates=False)
def _count_in_cache(of):  # type: ignore[no-untyped-def]
    return of.n_cached


@kernel(RANK_SIGNATURE, allocates=False)
def _count_lifetime(of):  # type: ignore[no-untyped-def]
    return of.n_total


@dataclass(frozen=True)
class LFU(Ranked):
    """The expert with the fewest lookups since it entered leaves."""

    rank = staticmethod(_count_in_cache)


@dataclass(frozen=True)
class LifetimeLFU(LFU):
    """The expert with the fewest lookups since the start leaves, whether or not it was resident then."""

    rank = staticmethod(_count_lifetime)
