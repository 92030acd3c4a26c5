"""What a cache policy is: a frozen dataclass that says how victims are found, and one small kernel that ranks experts.

A policy never moves bytes and never sees the cache; policies/cache.py does. It is one of five kinds:
  queue    victims leave in order of entry (`promote=False`) or of last use (`promote=True`); O(1) per lookup
  lists    several lists, of what has left too (lists.py has the kernel): `which` of its policies, `params()` its numbers
  ranked   the resident expert with the lowest rank leaves, ties by least recent use; `rank` is evaluated at every lookup.
           It is a compiled function; a plain Python one is compiled at first use. `params()`: its parameters, f64 (n,),
           C-contiguous; `profile_frac`: share of the tape, from its start, that its profile counts
  uniform  a resident expert drawn uniformly leaves
  future   the expert whose next lookup is farthest away leaves: a bound, only over a recorded tape
ranked and future: `bypass`: a missed expert that would leave at once is streamed and not kept.
The same objects run over a recorded tape and inside a live model.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.kernels import array, float64, function, int32, int64, record_of, uint8, void

# rank(now, n_cached, n_total, profile, params) -> float64, evaluated at every lookup of an expert
#   now      event index (serial lookup: lookup index), int64      n_cached  lookups since it entered, this one included, int64
#   n_total  lookups since the start, this one included, int64     profile   lookups in the policy's profile, float64
#   params   the policy's parameters, float64 array
RANK_SIGNATURE = float64(int64, int64, int64, float64, array(float64, 1))


class CacheState(NamedTuple):
    """All that the kernels read and write, of K experts in C caches; what a kind does not use is empty."""

    how: NDArray[np.int64]  # FLAG, KEEPS, HITS_FIRST: 1 or 0
    params: NDArray[np.float64]
    sizes: NDArray[np.int64]  # (K,) bytes
    cache_of: NDArray[np.int32]  # (K,) the same for all keys of an event
    base_of: NDArray[np.int64]  # (C,) first expert of a cache
    capacity: NDArray[np.int64]  # (C,) bytes
    used: NDArray[np.int64]  # (C,) bytes
    profile: NDArray[np.float64]  # (K,) lookups counted beforehand
    stamp: NDArray[np.int64]  # (K,) last event
    draws: NDArray[np.uint64]  # (1,) state of the generator
    link: NDArray[np.uint32]  # of linked lists, (2 (K + lists),); else a cache's residents from its first place on, (K,)
    resident: NDArray[np.uint8]  # (K,)
    marks: NDArray[np.uint8]  # (2 K,) see lists.py
    slot_of: NDArray[np.uint32]  # (K,) where a resident stands among its cache's
    n_resident: NDArray[np.int64]  # (C,)
    ranks: NDArray[np.float64]  # (K,) of the residents; or the numbers of lists.py
    lasts: NDArray[np.int64]  # (K,) last lookups of the residents
    rank: NDArray[np.float64]  # (K,) at the last lookup
    n_cached: NDArray[np.int64]  # (K,) lookups since it entered
    n_total: NDArray[np.int64]  # (K,) lookups
    last: NDArray[np.int64]  # (K,) last lookup


CACHE = record_of(CacheState)
FLAG, KEEPS, HITS_FIRST = range(3)  # of `how`; FLAG: a queue promotes, a ranked cache bypasses
# look_up(first_event, first_lookup, keys, offsets, rank_of, cache, hits): looks keys up, event by event
#   keys     (n,) i32  of events one after the other   offsets  (m + 1,) i64  bounds of events; empty: one by one
#   rank_of  compiled, of RANK_SIGNATURE               hits     (n,) u8  out, 1 for a hit
LOOK_UP = void(int64, int64, array(int32, 1), array(int64, 1), function(RANK_SIGNATURE), CACHE, array(uint8, 1))
SHRINK = void(CACHE)  # experts leave until every cache holds no more than its capacity


@runtime_checkable
class CachePolicy(Protocol):
    """Which resident expert leaves when room is needed."""

    kind: ClassVar[str]  # queue | lists | ranked | uniform | future

    @property
    def is_bound(self) -> bool:
        """True if the policy sees the future: drawn as a bound, never as a method."""
        ...
