"""The expert cache: residency of byte-sized experts under any cache policy, advanced event by event.

One object serves both loops: a replay advances it over a whole tape in one call, a live model one token at a time. It decides
and counts; it moves no bytes and knows no time. An expert is a key 0..K-1; keys of one cache are contiguous.
"""

import inspect
from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.counted import run_counted
from tokentape.policies.future import next_lookups, run_even, run_future
from tokentape.policies.kernels import dispatcher_of, numbers_of
from tokentape.policies.lfu import LFU
from tokentape.policies.lists import FIRST, KNOWN, N_LISTS, N_NUMBERS, UNIT, WHICH, look_up_lists, shrink_lists
from tokentape.policies.protocol import GIVEN, N_NAN, RANK_SIGNATURE, CacheState
from tokentape.policies.queue import look_up_queue, shrink_queue
from tokentape.policies.ranked import N_LEAVES, SPARE, look_up_ranked, see_profile, settle_ranked, shrink_ranked
from tokentape.policies.uniform import look_up_uniform, shrink_uniform

EACH = np.zeros(0, np.int64)  # no event bounds: every lookup is an event of its own
UNTOLD = np.zeros(0, np.float32)  # no gate weights or scores of lookups
_LINKED = {"queue": 1, "lists": N_LISTS}  # kinds that keep linked lists: how many a cache has
# What looks up and shrinks caches of a kind (protocol.py), event by event; what sees the future is looked up over a whole tape.
KERNELS = {
    "queue": (look_up_queue, shrink_queue),
    "lists": (look_up_lists, shrink_lists),
    "ranked": (look_up_ranked, shrink_ranked),
    "uniform": (look_up_uniform, shrink_uniform),
}
# What a policy of each kind must have, beside `kind` and `is_bound`: see protocol.py.
_NEEDED: dict[str, tuple[str, ...]] = {
    "queue": ("promote",),
    "lists": ("which", "params"),
    "ranked": ("bypass", "profile_frac", "params", "rank"),
    "uniform": (),
    "future": ("bypass",),
}


def refuse_incomplete(policy: Any) -> None:
    """Raises ValueError naming what a policy lacks."""
    name = type(policy).__name__
    if getattr(policy, "kind", None) not in _NEEDED:
        raise ValueError(f"{name}.kind is {getattr(policy, 'kind', None)!r}; it must be one of {', '.join(_NEEDED)}")
    for needed in ("is_bound", *_NEEDED[policy.kind]):
        if not hasattr(policy, needed):
            raise ValueError(f"{name} is of kind {policy.kind} and has no `{needed}`; see policies/protocol.py")
    if policy.kind == "lists" and policy.which not in KNOWN:
        raise ValueError(f"{name}.which is {policy.which!r}; it must be SIEVE, SLRU, S3_FIFO or ARC of policies/lists.py")
    if policy.kind == "ranked":
        if not (isinstance(policy.profile_frac, float | int) and 0.0 <= policy.profile_frac <= 1.0):
            raise ValueError(f"{name}.profile_frac is {policy.profile_frac!r}; it must lie in 0..1")
        code = inspect.unwrap(policy.rank).__code__
        if code.co_argcount != 1:
            raise ValueError(
                f"{name}.rank takes {code.co_argcount} arguments; write rank(of), and of.now, of.n_cached, of.params, ... in it "
                "(tokentape.policies.protocol.Candidate)"
            )
        for given in sorted({*GIVEN}.intersection(code.co_names).difference(needs_of(policy))):
            raise ValueError(f"{name}.rank reads of.{given}, which a tape is asked for where the class says needs = ('{given}',)")


def needs_of(policy: Any) -> tuple[str, ...]:
    """Of GIVEN, what its lookups must be told. Raises ValueError for other words, and for text in place of a tuple."""
    needs = getattr(policy, "needs", ())
    if isinstance(needs, str) or not {*needs} <= {*GIVEN}:
        raise ValueError(f"{type(policy).__name__}.needs is {needs!r}; it must be a tuple of {' and '.join(GIVEN)}, as ('gate',)")
    return tuple(needs)


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
    hits and then the misses count as used, else all in the order they stand in; queues and ties of ranks follow it. n_layers:
    MoE layers, of equally many experts, one after the other.
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
        n_layers: int = 1,
    ) -> None:
        refuse_incomplete(policy)
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
        self.profile = np.zeros(n_keys) if profile is None else profile.astype(float)
        self.n_events = self.n_lookups = 0
        self.used = np.zeros(n_caches, np.int64)
        n_lists, kind = _LINKED.get(policy.kind, 0), policy.kind
        n_links, n_ranked = 2 * n_keys + n_caches * (2 * n_lists or SPARE), 0 if n_lists else n_keys
        flag = getattr(policy, "promote", False) or getattr(policy, "bypass", False)
        self.state = CacheState(
            how=np.array([flag, keep_overflow, hits_first, getattr(policy, "ages", False), n_layers, self.is_even, 0], np.int64),
            params=numbers_of(policy) if kind == "ranked" else np.zeros(0),
            layer_of=(np.arange(n_ranked) // max(1, n_keys // n_layers)).astype(np.int32),
            sizes=sizes,
            cache_of=cache_of,
            base_of=np.searchsorted(cache_of, np.arange(n_caches)).astype(np.int64),
            capacity=self.capacity,
            used=self.used,
            profile=self.profile,
            stamp=np.full(n_keys, -1, np.int64),
            draws=np.array([seed], np.uint64),
            link=np.zeros(n_links, np.uint32),
            resident=np.zeros(n_keys, np.uint8),
            marks=np.zeros(2 * n_keys if kind == "lists" else 0, np.uint8),
            slot_of=np.zeros(n_ranked, np.uint32),
            key_of=np.zeros(n_ranked, np.uint32),
            n_resident=np.zeros(n_caches, np.int64),
            ranks=np.zeros(n_caches * N_NUMBERS if kind == "lists" else 0),
            rank=np.zeros(n_ranked, np.int64),
            n_cached=np.zeros(n_ranked, np.int64),
            n_total=np.zeros(n_ranked, np.int64),
            last=np.full(n_ranked, -1, np.int64),
            order=np.full(n_ranked + 1, np.iinfo(np.int64).max),
            latest=np.full(n_ranked + 1, -1, np.int64),
            floor=np.zeros(n_caches),
            memory=np.zeros(2 * n_ranked),
        )
        self.clear()

    @classmethod
    def of_layers(
        cls, policy: Any, layer_bytes: Sequence[int], n_experts: int, room_bytes: int, *, per_layer: bool, **how: Any
    ) -> Self:
        """Of a model with n_experts in every MoE layer, each of layer_bytes there: one cache of room_bytes for all layers, or per
        layer an equal share of them. how: as of any cache."""
        sizes, n_caches = np.repeat(np.array(layer_bytes, np.int64), n_experts), len(layer_bytes) if per_layer else 1
        cache_of = np.repeat(np.arange(n_caches, dtype=np.int32), sizes.size // n_caches)
        rooms = np.full(n_caches, room_bytes // n_caches, np.int64)
        return cls(policy, sizes, cache_of, rooms, n_layers=len(layer_bytes), **how)

    def clear(self) -> None:
        """Empties every cache (a cold start). Lifetime counts and the generator's state stay."""
        self._has_run, state = False, self.state
        for cleared in (state.used, state.resident, state.n_resident, state.marks, state.floor):
            cleared[:] = 0
        if self.policy.kind == "ranked":
            state.link[:] = self.sizes.size
            state.link[2 * state.base_of + SPARE * np.arange(state.base_of.size) + N_LEAVES] = 0
        if self.policy.kind in _LINKED:
            sentinels = np.arange(self.sizes.size, state.link.size // 2)
            state.link[2 * sentinels] = state.link[2 * sentinels + 1] = sentinels
        if self.policy.kind == "lists":
            numbers, params = state.ranks.reshape(-1, N_NUMBERS), self.policy.params()
            numbers[:] = 0.0
            numbers[:, UNIT], numbers[:, WHICH] = self.sizes[0] if self.is_even else 1, self.policy.which
            numbers[:, FIRST : FIRST + len(params)] = params

    def room(self, capacity: NDArray[np.int64]) -> None:
        """Gives every cache this many bytes, (C,), and evicts at once what they do not hold. Raises ValueError for a bound."""
        if self.policy.kind == "future":
            raise ValueError(f"{type(self.policy).__name__} reads the future of one fixed room")
        self.capacity[:] = capacity
        KERNELS[self.policy.kind][1](self.state)

    def see(self, counted: NDArray[np.float64]) -> None:
        """Tells a ranked policy the lookups of its profile, (K,), by which it ranks all that is resident."""
        see_profile(self.n_events, counted, self.kernels()[2], self.state)

    def kernels(self) -> tuple[Any, Any, Any]:
        """What looks up, what shrinks, and the rank function, compiled; LFU's, which is not called, where nothing is ranked."""
        rank = self.policy.rank if self.policy.kind == "ranked" else LFU.rank
        return *KERNELS[self.policy.kind], dispatcher_of(rank, RANK_SIGNATURE)

    @property
    def resident(self) -> NDArray[np.bool_]:
        """(K,) which experts are resident now."""
        return np.asarray(self.state.resident == 1)

    def advance(
        self,
        keys: NDArray[np.int32],
        offsets: NDArray[np.int64] | None = None,
        gates: NDArray[np.float32] = UNTOLD,
        scores: NDArray[np.float32] = UNTOLD,
    ) -> NDArray[np.uint8]:
        """Looks `keys` up in order; returns (n,) u8, 1 for a hit.

        offsets: (m + 1,) i64 bounds of events, each of distinct keys of ONE cache, looked up together; None: one by one.
        gates, scores: (n,) of the lookups, where the policy needs them.
        Raises ValueError where a bound is advanced twice: it needs the whole future in one call.
        """
        for given, of in zip(GIVEN, (gates, scores), strict=True):
            if given in needs_of(self.policy) and of.size != keys.size:
                raise ValueError(f"{type(self.policy).__name__} reads each lookup's {given}; {of.size} of {keys.size} are told")
        hits = np.empty(keys.size, np.uint8)
        events = EACH if offsets is None else offsets
        if self.policy.kind == "future":
            self._advance_future(keys, events, hits)
        elif getattr(self.policy, "rank", None) is LFU.rank and keys.size > 4 * self.sizes.size and self._is_even(events):
            self._advance_counted(keys, events, hits)
        else:
            look_up, _, rank = self.kernels()
            look_up(self.n_events, self.n_lookups, keys, events, gates, scores, rank, self.state, hits)
        self.n_lookups += keys.size
        self.n_events += keys.size if offsets is None else offsets.size - 1
        assert self.keep_overflow or np.all(self.used <= self.capacity), "a cache holds more than its capacity"
        self.refuse_nan()
        return hits

    def refuse_nan(self) -> None:
        """Raises ValueError after lookups whose ranks were not all numbers: who leaves first would be told by none."""
        if n := self.state.how[N_NAN]:
            why = "its rank must be a number, not the root or logarithm of what may be negative"
            raise ValueError(f"policy {type(self.policy).__name__} ranked experts NaN {n:,} times: {why}")

    def _is_even(self, events: NDArray[np.int64]) -> bool:
        """Whether all experts are of one size and every cache holds every event: there are shorter ways to the same hits then."""
        return self.is_even and bool((self.capacity >= self.sizes[0] * np.diff(events).max(initial=1)).all())

    def _places(self, c: int) -> int:
        """Experts of one size that a cache holds, at most all there are."""
        return min(int(self.capacity[c] // self.sizes[0]), self.sizes.size)

    def _advance_counted(self, keys: NDArray[np.int32], events: NDArray[np.int64], hits: NDArray[np.uint8]) -> None:
        """One cache after the other; then the trees, as of any ranked policy."""
        for c, mine, own_events in split_by_cache(keys, events, self.cache_of, self.capacity.size):
            state, n = self.state, int(self.used[c] // self.sizes[0])
            here = np.flatnonzero(self.resident & (self.cache_of == c))
            residents = np.zeros(self.sizes.size, np.uint32)
            places = state.slot_of[here]
            state.last[here] = state.latest[places]
            residents[:n] = here[np.lexsort((state.last[here], state.order[places]))]
            hits[mine], n = run_counted(
                keys[mine], own_events, self._places(c), residents, n, state.n_cached, state.last, self.n_lookups
            )
            self.used[c], kept = n * self.sizes[0], residents[:n]
            state.resident[here], state.resident[kept] = 0, 1
            state.rank[kept] = state.n_cached[kept].astype(float).view(np.int64)
        settle_ranked(self.state)

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
