"""Slots: which tokens each head of a layer retains. The same kernels run over a tape and inside a live model.

A head has `budget` + 1 slots: the newest token takes a free one, attention runs over all that are taken, then the scores move on
and one token leaves. A token's slot never changes, so keys and values can lie in place.
"""

import numpy as np
from numpy.typing import NDArray

from tokentape.policies import kernels as kn
from tokentape.policies.kernels import dispatcher_of, function, int64, kernel, numbers_of, void
from tokentape.policies.kv.rule import UNLIMITED, WEIGH_SIGNATURE, KVPolicy

_WEIGH = function(WEIGH_SIGNATURE)


@kernel(int64(kn.I32, kn.F64, kn.F64, int64))
def place(positions, total, rank, now):  # type: ignore[no-untyped-def]
    """Puts the token at position `now` into the first free slot of a head; returns the slot, -1 if none is free."""
    for s in range(positions.shape[0]):
        if positions[s] < 0:
            positions[s] = now
            total[s] = 0.0
            rank[s] = 0.0
            return s
    return -1


@kernel(int64(_WEIGH, kn.F64, kn.F64, kn.I32, int64, kn.I64, int64, int64, kn.F64, kn.F64, kn.F32_2D))
def settle(weigh, params, mass, positions, now, limits, window, salt, total, rank, memory):  # type: ignore[no-untyped-def]
    """Moves a head's scores on by one query and evicts at most one token; returns its position, -1 if all stay.

    limits (3,): budget, sink, recent. window: of a sliding layer, 0: none; what it no longer shows leaves by itself (expire).
    """
    weigh(mass, positions, now, total, rank, memory, salt, params)
    count, victim, lowest = 0, -1, 0.0
    first_recent, expired = now - limits[2] + 1, now + 1 - window
    for s in range(positions.shape[0]):
        position = positions[s]
        count += position >= 0 and position != expired
        if position < 0 or position == expired or position < limits[1] or position >= first_recent:
            continue
        if rank[s] != rank[s]:
            raise FloatingPointError("weigh ranked a token NaN; a rank must be a number")
        if victim < 0 or rank[s] < lowest or (rank[s] == lowest and position < positions[victim]):
            victim, lowest = s, rank[s]
    if count <= limits[0]:
        return int64(-1)
    left = int64(positions[victim])
    positions[victim] = -1
    return left


@kernel(int64(kn.I32, int64, int64))
def expire(positions, now, window):  # type: ignore[no-untyped-def]
    """Drops the token that the query after `now` can no longer see through a sliding window (0: none); returns it, or -1."""
    last = now + 1 - window
    if window > 0 and last >= 0:
        for s in range(positions.shape[0]):
            if positions[s] == last:
                positions[s] = -1
                return last
    return int64(-1)


@kernel(void(kn.I32_2D, kn.F64_2D, kn.F64_2D, kn.I64, kn.I64))
def _place_all(positions, total, rank, now, slots):  # type: ignore[no-untyped-def]
    for g in range(positions.shape[0]):
        slots[g] = place(positions[g], total[g], rank[g], now[g])


@kernel(void(_WEIGH, kn.F64, kn.F64_2D, kn.I32_2D, kn.I64, kn.I64, int64, kn.I64, kn.F64_2D, kn.F64_2D, kn.F32_3D, kn.I64))
def _settle_all(weigh, params, mass, positions, now, limits, window, salts, total, rank, memory, left):  # type: ignore[no-untyped-def]
    for g in range(positions.shape[0]):
        left[g] = settle(weigh, params, mass[g], positions[g], now[g], limits, window, salts[g], total[g], rank[g], memory[g])
        expire(positions[g], now[g], window)


def kept_of_prompt(rank: NDArray[np.float64], limits: tuple[int, int, int], window: int = 0) -> NDArray[np.bool_]:
    """(G, c) which prompt tokens stay: sink, recent, then the highest ranks, of equals the lower position.

    window: of a sliding layer; tokens that the next query no longer sees go first. 0: none.
    """
    n_sets, c = rank.shape
    budget, sink, recent = limits
    first = max(0, c - window + 1) if window else 0
    alive = np.arange(c) >= first
    kept = np.broadcast_to(alive, rank.shape).copy()
    if c - first <= budget:
        return kept
    is_safe = alive & ((np.arange(c) < sink) | (np.arange(c) >= c - recent))
    middle = np.flatnonzero(alive & ~is_safe)
    order = np.argsort(-rank[:, middle], axis=1, kind="stable")
    dropped = middle[order[:, budget - int(is_safe.sum()) :]]
    kept[np.arange(n_sets)[:, None], dropped] = False
    return kept


class Slots:
    """State of the sets of slots: positions (G, S) i32 with -1 for a free slot, total and rank (G, S) f64, memory (G, S, m) f32.

    A set g is a head (of one request of a batch), or a whole layer where its heads share. salts (G,): see salts_of.
    """

    def __init__(self, policy: KVPolicy, salts: NDArray[np.int64], n_slots: int | None = None) -> None:
        self.policy, self.salts, self.weigh = policy, salts, dispatcher_of(policy.weigh, WEIGH_SIGNATURE)
        self.limits = np.array(policy.limits, np.int64)
        self.params = numbers_of(policy)
        budget = policy.limits[0]
        self.allocate(n_slots or (1 if budget == UNLIMITED else budget + 1))

    def allocate(self, n_slots: int) -> None:
        n_sets = self.salts.size
        self.positions = np.full((n_sets, n_slots), -1, np.int32)
        self.total, self.rank = np.zeros((n_sets, n_slots)), np.zeros((n_sets, n_slots))
        self.memory = np.zeros((n_sets, n_slots, self.policy.memory), np.float32)

    def start(self, mass: NDArray[np.float64], first: int = 0, window: int = 0) -> NDArray[np.bool_]:
        """Fills the sets first, first + 1, ... after a prompt; mass (n, c) f64 as KVPolicy.prompt_scores. Returns kept (n, c).

        window: of a sliding layer, 0: none."""
        sets = slice(first, first + len(mass))
        total, rank = self.policy.prompt_scores(mass, self.salts[sets])
        kept = kept_of_prompt(rank, self.policy.limits, window)
        self._grow(int(kept.sum(axis=1).max(initial=0)) + 1)
        for g, (which, of_total, of_rank) in enumerate(zip(kept, total, rank, strict=True), first):
            at = np.flatnonzero(which)
            self.positions[g, : at.size] = at
            self.total[g, : at.size], self.rank[g, : at.size] = of_total[at], of_rank[at]
            self.memory[g, : at.size] = (of_total[at] / self.policy.memory)[:, None]
        return kept

    def place(self, now: NDArray[np.int64]) -> NDArray[np.int64]:
        """(G,) slot that the newest token of each set takes; now (G,): its position."""
        if self.limits[0] == UNLIMITED and (self.positions[:, -1] >= 0).any():
            self._grow(2 * self.positions.shape[1])
        slots = np.empty(self.salts.size, np.int64)
        _place_all(self.positions, self.total, self.rank, now, slots)
        return slots

    def settle(self, mass: NDArray[np.float64], now: NDArray[np.int64], window: int = 0) -> NDArray[np.int64]:
        """(G,) position that left each set by eviction, or -1; mass (G, S) f64: attention of the query at `now` by slot."""
        left = np.empty(self.salts.size, np.int64)
        _settle_all(
            self.weigh, self.params, mass, self.positions, now, self.limits, window, self.salts, self.total, self.rank,
            self.memory, left,
        )  # fmt: skip
        return left

    def _grow(self, n_slots: int) -> None:
        before = self.positions.shape[1]
        if n_slots <= before:
            return
        positions, total, rank, memory = self.positions, self.total, self.rank, self.memory
        self.allocate(n_slots)
        self.positions[:, :before], self.total[:, :before] = positions, total
        self.rank[:, :before], self.memory[:, :before] = rank, memory


def salts_of(layer: int, n_sets: int) -> NDArray[np.int64]:
    """(n_sets,) numbers that tell the heads of all layers apart, for policies that draw."""
    return (np.int64(layer) << 20) + np.arange(n_sets, dtype=np.int64)
