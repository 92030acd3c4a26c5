"""The expert cache: residency of byte-sized experts under any cache policy, advanced event by event.

One object serves both loops: a replay advances it over a whole tape in one call, a live model one token at a time. It decides
and counts; it moves no bytes and knows no time. An expert is a key 0..K-1; keys of one cache are contiguous.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.counted import run_counted
from tokentape.policies.future import next_lookups, run_even, run_future
from tokentape.policies.kernels import array, dispatcher_of, float64, int32, int64, uint8, uint32, uint64
from tokentape.policies.lfu import LFU
from tokentape.policies.lists import FIRST, N_LISTS, N_NUMBERS, UNIT, WHICH, run_lists, shrink_lists
from tokentape.policies.protocol import RANK_SIGNATURE
from tokentape.policies.queue import run_queue_events, run_queue_serial, shrink_queue
from tokentape.policies.ranked import ABSENT, run_ranked, shrink_ranked
from tokentape.policies.uniform import run_uniform, shrink_uniform

EACH = np.zeros(0, np.int64)  # no event bounds: every lookup is an event of its own
# The arrays of one kind of policy, and their types.
_OF_KIND: dict[str, type[np.generic]] = {
    "_link": np.uint32,
    "_resident": np.uint8,
    "_slots": np.uint32,
    "_slot_of": np.uint32,
    "_count": np.int64,
    "_ranks": np.float64,
    "_lasts": np.int64,
    "_rank": np.float64,
    "_n_cached": np.int64,
    "_n_total": np.int64,
    "_last": np.int64,
    "_freq": np.uint8,
    "_place": np.uint8,
    "_numbers": np.float64,
}
_I32, _I64, _U8, _U32, _U64, _F64 = (array(t, 1) for t in (int32, int64, uint8, uint32, uint64, float64))
CACHE_STATE = (
    _I64, _I32, _I64, _I64, _F64, _I64, _I64, _U64, _U32, _U8, _U32, _U32, _I64, _F64, _I64, _F64, _I64, _I64, _I64, _U8, _U8,
    _F64,
)  # fmt: skip
_LINKED = {"queue": 1, "lists": N_LISTS}  # kinds that keep linked lists: how many a cache has
# What a policy of each kind must have, beside `kind` and `is_bound`: see protocol.py.
_NEEDED: dict[str, tuple[str, ...]] = {
    "queue": ("promote",),
    "lists": ("which", "params"),
    "ranked": ("bypass", "profile_frac", "params", "rank"),
    "uniform": (),
    "future": ("bypass",),
}


@lru_cache(maxsize=64)
def _compiled(rank: Any) -> Any:
    """The rank function as compiled code; a plain Python function (a user's policy) is compiled here."""
    try:
        return dispatcher_of(rank, RANK_SIGNATURE)
    except Exception as error:  # numba raises many kinds; the person needs the first line and the name
        first = str(error).splitlines()[0]
        raise ValueError(f"rank function {rank.__qualname__} does not compile with numba: {first}") from error


def _refuse_incomplete(policy: Any) -> None:
    """Raises ValueError naming what a policy lacks."""
    name = type(policy).__name__
    if getattr(policy, "kind", None) not in _NEEDED:
        raise ValueError(f"{name}.kind is {getattr(policy, 'kind', None)!r}; it must be one of {', '.join(_NEEDED)}")
    for needed in ("is_bound", *_NEEDED[policy.kind]):
        if not hasattr(policy, needed):
            raise ValueError(f"{name} is of kind {policy.kind} and has no `{needed}`; see policies/protocol.py")
    if policy.kind == "ranked" and not 0.0 <= policy.profile_frac <= 1.0:
        raise ValueError(f"{name}.profile_frac is {policy.profile_frac}; it must lie in 0..1")


def split_by_cache(
    keys: NDArray[np.int32], events: NDArray[np.int64], cache_of: NDArray[np.int32], n_caches: int
) -> Iterator[tuple[int, slice | NDArray[np.int64], NDArray[np.int64]]]:
    """For each cache: its number, where its lookups stand in `keys`, and the bounds of its own events (empty stays empty)."""
    if n_caches == 1:
        yield 0, slice(None), events
        return
    cache = cache_of[keys]
    widths = np.diff(events)
    event_cache = cache[events[:-1]] if events.size else EACH
    for c in range(n_caches):
        bounds = np.concatenate(([0], np.cumsum(widths[event_cache == c]))) if events.size else EACH
        yield c, np.flatnonzero(cache == c), bounds


class ExpertCache:
    """Caches `sizes.size` experts in `capacity.size` caches under `policy`.

    sizes: (K,) i64 bytes per expert. cache_of: (K,) i32 cache of each expert, non-decreasing. capacity: (C,) i64 bytes.
    profile: (K,) f64 lookups counted beforehand, for policies with `profile_frac` > 0. keep_overflow: an event larger than its
    cache stays until the next event, as BigMoeOnEdge's engine does; else no more is kept than fits. hits_first: of one event the
    hits and then the misses count as used, else all in the order they stand in; queues and ties of ranks follow it.
    Raises ValueError if a cache cannot hold one of its experts.
    """

    def __init__(
        self,
        policy: Any,
        sizes: NDArray[np.int64],
        cache_of: NDArray[np.int32],
        capacity: NDArray[np.int64],
        *,
        keep_overflow: bool = False,
        hits_first: bool = False,
        seed: int = 0,
        profile: NDArray[np.float64] | None = None,
    ) -> None:
        _refuse_incomplete(policy)
        if not 0 <= seed < 2**64:
            raise ValueError(f"seed {seed} must lie in 0..2^64 - 1")
        n_keys, n_caches = sizes.size, capacity.size
        if np.any(np.diff(cache_of) < 0):
            raise ValueError("cache_of must not decrease: the experts of one cache are contiguous")
        largest = np.zeros(n_caches, np.int64)
        np.maximum.at(largest, cache_of, sizes)
        if np.any(capacity < largest) and not keep_overflow:
            c = int(np.argmax(capacity < largest))
            raise ValueError(f"capacity of cache {c} is {capacity[c]} B, below one expert ({largest[c]} B); give more capacity")
        self.policy, self.keep_overflow, self.hits_first, self.seed = policy, keep_overflow, hits_first, seed
        self.sizes, self.cache_of, self.capacity = sizes, cache_of, capacity.copy()  # `room` writes to it
        self.is_even = n_keys > 0 and not keep_overflow and bool((sizes == sizes[0]).all())
        self.profile = np.zeros(n_keys) if profile is None else profile
        self.n_events = self.n_lookups = 0
        self.base_of = np.searchsorted(cache_of, np.arange(n_caches)).astype(np.int64)
        self.used = np.zeros(n_caches, np.int64)
        self.stamp = np.full(n_keys, -1, np.int64)
        self._draws = np.array([seed], np.uint64)
        if policy.kind in _LINKED:
            self._link = np.zeros(2 * (n_keys + n_caches * _LINKED[policy.kind]), np.uint32)
            self._resident = np.zeros(n_keys, np.uint8)
            if policy.kind == "lists":
                self._freq, self._place = np.zeros(n_keys, np.uint8), np.zeros(n_keys, np.uint8)
                self._numbers = np.zeros(n_caches * N_NUMBERS)
        else:
            self._slots, self._slot_of = np.zeros(n_keys, np.uint32), np.zeros(n_keys, np.uint32)
            self._count = np.zeros(n_caches, np.int64)
            self._ranks, self._lasts, self._rank = np.zeros(n_keys), np.zeros(n_keys, np.int64), np.zeros(n_keys)
            self._n_cached, self._n_total = np.zeros(n_keys, np.int64), np.zeros(n_keys, np.int64)
            self._last = np.full(n_keys, -1, np.int64)
        self.clear()

    def clear(self) -> None:
        """Empties every cache (a cold start). Lifetime counts and the generator's state stay."""
        self.used[:] = 0
        self._has_run = False
        if self.policy.kind in _LINKED:
            self._resident[:] = 0
            sentinels = np.arange(self.sizes.size, self._link.size // 2)
            self._link[2 * sentinels] = self._link[2 * sentinels + 1] = sentinels
            if self.policy.kind == "lists":
                self._freq[:] = self._place[:] = 0
                numbers, params = self._numbers.reshape(-1, N_NUMBERS), self.policy.params()
                numbers[:] = 0.0
                numbers[:, UNIT], numbers[:, WHICH] = self.sizes[0] if self.is_even else 1, self.policy.which
                numbers[:, FIRST : FIRST + len(params)] = params
        else:
            self._slot_of[:] = ABSENT
            self._count[:] = 0

    def room(self, capacity: NDArray[np.int64]) -> None:
        """Gives every cache this many bytes, (C,), and evicts at once what they do not hold. Raises ValueError for a bound."""
        if self.policy.kind == "future":
            raise ValueError(f"{type(self.policy).__name__} reads the future of one fixed room")
        self.capacity[:] = capacity
        for c in range(capacity.size):
            if self.policy.kind == "queue":
                shrink_queue(c, self.sizes, self.capacity, self._link, self._resident, self.used)
            elif self.policy.kind == "lists":
                shrink_lists(
                    c, self.sizes, self.capacity, self._link, self._resident, self._freq, self._place, self._numbers, self.used
                )
            elif self.policy.kind == "ranked":
                shrink_ranked(
                    c, self.sizes, self.base_of, self.capacity, self._slots, self._ranks, self._lasts, self._slot_of, self._count,
                    self.used,
                )  # fmt: skip
            else:
                shrink_uniform(
                    c, self.sizes, self.base_of, self.capacity, self._draws, self._slots, self._slot_of, self._count, self.used
                )

    def arrays(self) -> tuple[NDArray[Any], ...]:
        """All that the kernels read and write, in the order of CACHE_STATE, those of another kind empty: for a loop that looks up
        event by event in compiled code."""
        own = vars(self)
        named = (own.get(name, np.zeros(0, of)) for name, of in _OF_KIND.items())
        return (self.sizes, self.cache_of, self.base_of, self.capacity, self.profile, self.used, self.stamp, self._draws, *named)

    def rank(self) -> tuple[Any, NDArray[np.float64]]:
        """The compiled rank function and its parameters; those of LFU, which are not called, where nothing is ranked."""
        ranked = self.policy if self.policy.kind == "ranked" else LFU()
        return _compiled(ranked.rank), ranked.params()

    @property
    def resident(self) -> NDArray[np.bool_]:
        """(K,) which experts are resident now."""
        if self.policy.kind in _LINKED:
            return np.asarray(self._resident == 1)
        return np.asarray(self._slot_of != ABSENT)

    def advance(self, keys: NDArray[np.int32], offsets: NDArray[np.int64] | None = None) -> NDArray[np.uint8]:
        """Looks `keys` up in order; returns (n,) u8, 1 for a hit.

        offsets: (m + 1,) i64 bounds of events, each of distinct keys of ONE cache, looked up together; None: one by one.
        Raises ValueError where a bound is advanced twice: it needs the whole future in one call.
        """
        hits = np.empty(keys.size, np.uint8)
        events = EACH if offsets is None else offsets
        if self.policy.kind == "future":
            self._advance_future(keys, events, hits)
        elif self.policy.kind == "lists":
            run_lists(
                keys, events, self.sizes, self.cache_of, self.capacity, self.keep_overflow, self._link, self._resident,
                self._freq, self._place, self._numbers, self.used, hits,
            )  # fmt: skip
        elif self.policy.kind == "queue" and offsets is None:
            run_queue_serial(
                keys, self.sizes, self.cache_of, self.capacity, self.policy.promote, self.is_even, self._link, self._resident,
                self.used, hits,
            )  # fmt: skip
        elif self.policy.kind == "queue":
            run_queue_events(
                keys, events, self.sizes, self.cache_of, self.capacity, self.policy.promote, self.keep_overflow,
                self.hits_first, self._link, self._resident, self.used, self.stamp, self.n_events, hits,
            )  # fmt: skip
        elif getattr(self.policy, "rank", None) is LFU.rank and keys.size > 4 * self.sizes.size and self._is_even(events):
            self._advance_counted(keys, events, hits)
        elif self.policy.kind == "ranked":
            run_ranked(
                _compiled(self.policy.rank), self.policy.params(), keys, events, self.sizes, self.cache_of, self.base_of,
                self.capacity, self.policy.bypass, self.keep_overflow, self.hits_first, self.profile, self._slots, self._ranks,
                self._lasts, self._slot_of, self._rank, self._count, self.used, self._n_cached, self._n_total, self._last,
                self.n_events, self.n_lookups, hits,
            )  # fmt: skip
        else:
            run_uniform(
                keys, events, self.sizes, self.cache_of, self.base_of, self.capacity, self.keep_overflow, self._draws,
                self._slots, self._slot_of, self._count, self.used, self.stamp, self.n_events, hits,
            )  # fmt: skip
        self.n_lookups += keys.size
        self.n_events += keys.size if offsets is None else offsets.size - 1
        assert self.keep_overflow or np.all(self.used <= self.capacity), "a cache holds more than its capacity"
        return hits

    def _is_even(self, events: NDArray[np.int64]) -> bool:
        """Whether all experts are of one size and every cache holds every event: there are shorter ways to the same hits then."""
        return self.is_even and bool((self.capacity >= self.sizes[0] * np.diff(events).max(initial=1)).all())

    def _places(self, c: int) -> int:
        """Experts of one size that a cache holds, at most all there are."""
        return min(int(self.capacity[c] // self.sizes[0]), self.sizes.size)

    def _advance_counted(self, keys: NDArray[np.int32], events: NDArray[np.int64], hits: NDArray[np.uint8]) -> None:
        """One cache after the other: the heap of each, sorted, is where the kernel begins, and what it leaves is a heap again."""
        for c, mine, own_events in split_by_cache(keys, events, self.cache_of, self.capacity.size):
            heap = slice(self.base_of[c], self.base_of[c] + self._count[c])
            order = np.lexsort((self._lasts[heap], self._ranks[heap]))
            residents = np.zeros(self.sizes.size, np.uint32)
            residents[: order.size] = self._slots[heap][order]
            hits[mine], n = run_counted(
                keys[mine], own_events, self._places(c), residents, order.size, self._n_cached, self._last,
                self.n_lookups,
            )  # fmt: skip
            self._slot_of[np.flatnonzero(self.cache_of == c)] = ABSENT
            self._count[c], self.used[c], kept = n, n * self.sizes[0], residents[:n]
            heap = slice(self.base_of[c], self.base_of[c] + n)
            self._slots[heap], self._lasts[heap], self._slot_of[kept] = kept, self._last[kept], np.arange(n)
            self._ranks[heap] = self._rank[kept] = self._n_cached[kept]

    def _advance_future(self, keys: NDArray[np.int32], events: NDArray[np.int64], hits: NDArray[np.uint8]) -> None:
        """One cache after the other, each over its own lookups: their futures do not touch."""
        if self._has_run:
            raise ValueError(f"{type(self.policy).__name__} reads the future: it runs only over a recorded tape, in one call")
        self._has_run = True
        for c, mine, own_events in split_by_cache(keys, events, self.cache_of, self.capacity.size):
            own = keys[mine]
            own_hits = np.empty(own.size, np.uint8)
            if self._is_even(events):
                run_even(own, own_events, self.sizes.size, self._places(c), self.policy.bypass, own_hits)
            else:
                upcoming = next_lookups(own, self.sizes.size)
                run_future(
                    own, own_events, upcoming, self.sizes, self.capacity[c], self.policy.bypass, self.keep_overflow, own_hits
                )
            hits[mine] = own_hits
