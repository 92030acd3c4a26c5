"""What a cache policy is: a frozen dataclass that says how victims are found, and one small kernel that ranks experts.

A policy never moves bytes and never sees the cache; policies/cache.py does. It is one of five kinds:
  queue    victims leave in order of entry (`promote=False`) or of last use (`promote=True`); O(1) per lookup
  lists    several lists, of what has left too (lists.py has the kernel): `which` of its policies, `params()` its numbers
  ranked   the resident expert with the lowest rank leaves, ties by least recent use; `rank` is evaluated at every lookup.
           It is a compiled function; a plain Python one is compiled at first use. `ages`: it is evaluated anew for all
           residents before any leaves, O(n). `params()`: its parameters, f64 (n,), C-contiguous; `profile_frac`: share of the
           tape, from its start, that its profile counts; `needs`: of GIVEN, what it reads
  uniform  a resident expert drawn uniformly leaves
  future   the expert whose next lookup is farthest away leaves: a bound, only over a recorded tape
ranked and future: `bypass`: a missed expert that would leave at once is streamed and not kept.
The same objects run over a recorded tape and inside a live model.
"""

from dataclasses import astuple, dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.bounds import Bounded
from tokentape.policies.kernels import F32, I32, I64, U8, float64, function, int64, record_of, void

GIVEN = ("gate", "score")  # what a lookup is told of only where a policy needs it


class Candidate(NamedTuple):
    """What a rank may read of an expert: rank(of) -> float64."""

    now: int  # event (serial lookup: lookup), counted from 0
    since: int  # events since its use before; now + 1 if there was none
    is_used: bool  # it is looked up now, else ranked anew before something leaves (`ages`)
    layer: int  # MoE layer, counted from 0
    at_layer: int  # that of this event
    n_layers: int
    size: int  # bytes
    n_cached: int  # lookups since it entered, this one included
    n_total: int  # lookups since the start, this one included
    profile: float  # lookups in the policy's profile
    gate: float  # largest gate weight of the event's tokens that chose it, 0 where it is not used
    score: float  # largest router score of those tokens, 0 where it is not used
    floor: float  # rank of the expert that left its cache last, 0 before
    memory: NDArray[np.float64]  # (2,) the policy's own, of this expert: zeros at first, kept when it leaves
    params: NDArray[np.float64]


RANK_SIGNATURE = float64(record_of(Candidate))
RANK = function(RANK_SIGNATURE)


@dataclass(frozen=True)
class Ranked(Bounded):
    """What ranked policies have in common; their fields are the parameters."""

    kind: ClassVar[str] = "ranked"
    bypass: ClassVar[bool] = False
    is_bound: ClassVar[bool] = False
    profile_frac: ClassVar[float] = 0.0
    ages: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ()
    rank: ClassVar[Any]

    def params(self) -> NDArray[np.float64]:
        return np.array(astuple(self), np.float64)


class CacheState(NamedTuple):
    """All that the kernels read and write, of K experts in C caches; what a kind does not use is empty."""

    how: NDArray[np.int64]  # FLAG, KEEPS, HITS_FIRST, AGES, EVEN (of one size, not KEEPS): 1 or 0; N_LAYERS; N_NAN (ranks)
    params: NDArray[np.float64]
    sizes: NDArray[np.int64]  # (K,) bytes
    cache_of: NDArray[np.int32]  # (K,) the same for all keys of an event
    layer_of: NDArray[np.int32]  # (K,)
    base_of: NDArray[np.int64]  # (C,) first expert of a cache
    capacity: NDArray[np.int64]  # (C,) bytes
    used: NDArray[np.int64]  # (C,) bytes
    profile: NDArray[np.float64]  # (K,) lookups counted beforehand
    stamp: NDArray[np.int64]  # (K,) last event
    draws: NDArray[np.uint64]  # (1,) state of the generator
    link: NDArray[np.uint32]  # linked lists, (2 (K + lists),); trees (ranked.py); a cache's residents, from its first place on
    resident: NDArray[np.uint8]  # (K,)
    marks: NDArray[np.uint8]  # (2 K,) see lists.py
    slot_of: NDArray[np.uint32]  # (K,) where a resident stands among its cache's; a ranked one: its place, among all
    key_of: NDArray[np.uint32]  # (K,) who stands at a place
    n_resident: NDArray[np.int64]  # (C,) of ranked ones the most at once
    ranks: NDArray[np.float64]  # the numbers of lists.py
    rank: NDArray[np.int64]  # (K,) at the last lookup that missed, and
    last: NDArray[np.int64]  # (K,) which one that was
    n_cached: NDArray[np.int64]  # (K,) lookups since it entered
    n_total: NDArray[np.int64]  # (K,) lookups
    order: NDArray[np.int64]  # (K + 1,) rank, and
    latest: NDArray[np.int64]  # (K + 1,) last lookup, of who stands at a place; the last one: of nobody
    floor: NDArray[np.float64]  # (C,) and
    memory: NDArray[np.float64]  # (2 K,) as in Candidate


CACHE = record_of(CacheState)
FLAG, KEEPS, HITS_FIRST, AGES, N_LAYERS, EVEN, N_NAN = range(7)  # of `how`; FLAG: a queue promotes, a ranked cache bypasses
# look_up(first_event, first_lookup, keys, offsets, gates, scores, rank_of, cache, hits): looks keys up, event by event
#   keys     (n,) i32  of events one after the other   offsets  (m + 1,) i64  bounds of events; empty: one by one
#   gates, scores  (n,) f32  or empty                  rank_of  compiled, of RANK_SIGNATURE
#   hits     (n,) u8  out, 1 for a hit
LOOK_UP = void(int64, int64, I32, I64, F32, F32, RANK, CACHE, U8)
SHRINK = void(CACHE)  # experts leave until every cache holds no more than its capacity


@runtime_checkable
class CachePolicy(Protocol):
    """Which resident expert leaves when room is needed."""

    kind: ClassVar[str]  # queue | lists | ranked | uniform | future

    @property
    def is_bound(self) -> bool:
        """True if the policy sees the future: drawn as a bound, never as a method."""
        ...
