"""Least frequently used, in the two readings the field mixes up; ties leave by least recent use.

In cache: the count starts at one when an expert enters (libCacheSim's LFU). Lifetime: the count survives eviction
(BigMoeOnEdge's `lfu`). Neither counts repeats within one event.
"""

from dataclasses import dataclass

from tokentape.policies.kernels import kernel
from tokentape.policies.protocol import RANK_SIGNATURE, Ranked


@dataclass(frozen=True)
class LFU(Ranked):
    """The expert with the fewest lookups since it entered leaves."""

    @staticmethod
    @kernel(RANK_SIGNATURE, allocates=False)
    def rank(of):  # type: ignore[no-untyped-def]
        return of.n_cached


@dataclass(frozen=True)
class LifetimeLFU(LFU):
    """The expert with the fewest lookups since the start leaves, whether or not it was resident then."""

    @staticmethod
    @kernel(RANK_SIGNATURE, allocates=False)
    def rank(of):  # type: ignore[no-untyped-def]
        return of.n_total
