"""Hits of an LRU of EVERY capacity from one pass over the lookups (Mattson et al., IBM Systems Journal 9(2), 1970).

The stack distance of a lookup is the number of distinct keys used since its last one, itself included: it hits in every cache at
least that large. Distances come from counting the live marks behind a key's last position on a time axis that is renumbered
when full, so memory follows the number of experts and not the length of the tape. Serial and atomic lookups.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.cache import EACH, split_by_cache
from tokentape.policies.kernels import I32, I64, U16, U64, int64, kernel, uint64, void
from tokentape.replay.semantics import Semantics
from tokentape.replay.stream import Stream

_WORD, _BLOCK = 64, 1024  # marks per word (one bit each) and per block (16 words); both keep a count


@kernel(inline="always")
def _popcount(x):  # type: ignore[no-untyped-def]
    """Set bits of a u64; LLVM recognises the pattern as one instruction."""
    x = x - ((x >> uint64(1)) & uint64(0x5555555555555555))
    x = (x & uint64(0x3333333333333333)) + ((x >> uint64(2)) & uint64(0x3333333333333333))
    x = (x + (x >> uint64(4))) & uint64(0x0F0F0F0F0F0F0F0F)
    return (x * uint64(0x0101010101010101)) >> uint64(56)


@kernel(int64(uint64, uint64, U64, U16, U16))
def _live_after(slot, head, marks, words, blocks):  # type: ignore[no-untyped-def]
    """Live marks at positions above `slot` and below `head`."""
    word, block = slot >> uint64(6), slot >> uint64(10)
    total = _popcount((marks[word] >> (slot & uint64(63))) >> uint64(1))
    for w in range(word + uint64(1), (block + uint64(1)) << uint64(4)):
        total += words[w]
    for b in range(block + uint64(1), (head >> uint64(10)) + uint64(1)):
        total += blocks[b]
    return int64(total)


@kernel(uint64(uint64, U64, U16, U16, I32, I32))
def _renumber(head, marks, words, blocks, slot_of, key_at):  # type: ignore[no-untyped-def]
    """Moves the live marks to the front of the axis, in order; returns the next free slot."""
    live = uint64(0)
    for s in range(head):
        if (marks[s >> uint64(6)] >> (s & uint64(63))) & uint64(1):
            key_at[live] = key_at[s]
            slot_of[uint64(key_at[s])] = live
            live += uint64(1)
    marks[:] = 0
    words[:] = 0
    blocks[:] = 0
    for s in range(live):
        marks[s >> uint64(6)] |= uint64(1) << (s & uint64(63))
        words[s >> uint64(6)] += 1
        blocks[s >> uint64(10)] += 1
    return live


@kernel(void(I32, I64, int64, I64))
def stack_distances(keys, offsets, n_keys, histogram):  # type: ignore[no-untyped-def]
    """Adds the stack distances of `keys` to `histogram` (K + 1,): [d] counts lookups at distance d, [0] first uses.

    keys (n,) i32 in 0..n_keys-1, all of one cache; offsets (m + 1,) i64 event bounds, or empty: one by one. Keys of an event are
    measured before any of them is refreshed.
    """
    n_slots = uint64((2 * n_keys // _BLOCK + 1) * _BLOCK)
    marks = np.zeros(n_slots // uint64(_WORD), np.uint64)
    words, blocks = np.zeros(n_slots // uint64(_WORD), np.uint16), np.zeros(n_slots // uint64(_BLOCK), np.uint16)
    slot_of = np.full(n_keys, -1, np.int32)
    key_at = np.zeros(n_slots, np.int32)
    head = uint64(0)  # next free slot
    one_by_one = offsets.shape[0] == 0
    for e in range(uint64(keys.shape[0] if one_by_one else offsets.shape[0] - 1)):
        start = e if one_by_one else uint64(offsets[e])
        end = e + uint64(1) if one_by_one else uint64(offsets[e + uint64(1)])
        for i in range(start, end):
            slot = slot_of[uint64(keys[i])]
            if slot < 0:
                histogram[0] += 1
            else:
                histogram[uint64(_live_after(uint64(slot), head, marks, words, blocks) + 1)] += 1
        if head + (end - start) >= n_slots:
            head = _renumber(head, marks, words, blocks, slot_of, key_at)
        for i in range(start, end):
            key = uint64(keys[i])
            if slot_of[key] >= 0:
                old = uint64(slot_of[key])
                marks[old >> uint64(6)] &= ~(uint64(1) << (old & uint64(63)))
                words[old >> uint64(6)] -= 1
                blocks[old >> uint64(10)] -= 1
            marks[head >> uint64(6)] |= uint64(1) << (head & uint64(63))
            words[head >> uint64(6)] += 1
            blocks[head >> uint64(10)] += 1
            key_at[head] = key
            slot_of[key] = head
            head += uint64(1)


@dataclass(frozen=True, eq=False)
class Curve:
    """capacity_experts (m,) i64 experts over all caches; n_hits (m,) i64 at that capacity, never falling; n_lookups in all."""

    capacity_experts: NDArray[np.int64]
    n_hits: NDArray[np.int64]
    n_lookups: int


def lru_curve(stream: Stream, semantics: Semantics, n_layers: int, n_experts: int) -> Curve:
    """LRU hits at every capacity, in experts of equal size. Per layer: every layer has the same capacity.

    Capacities below the largest event count what an LRU that keeps only the last experts of an event would hit. Raises ValueError
    for recency hits-first: the order of use then depends on what was resident, a larger cache need not hold what a smaller one
    holds, and no stack has all of them.
    """
    if semantics.recency != "list-order":
        raise ValueError("the LRU curve of every capacity holds for recency list-order only; leave lru_curve out")
    n_keys = n_layers * n_experts
    cache_of = np.zeros(n_keys, np.int32) if semantics.scope == "global" else (np.arange(n_keys) // n_experts).astype(np.int32)
    n_caches = int(cache_of[-1]) + 1
    histogram = np.zeros(n_keys // n_caches + 1, np.int64)
    for first, last in zip(stream.segments[:-1], stream.segments[1:], strict=True):
        keys, bounds = stream.between(int(first), int(last))
        for c, mine, own_bounds in split_by_cache(keys, bounds, cache_of, n_caches):
            own = keys[mine] - np.int32(c * (n_keys // n_caches))
            stack_distances(own, EACH if semantics.lookup == "serial" else own_bounds, n_keys // n_caches, histogram)
    hits = np.cumsum(histogram[1:])
    return Curve(np.arange(1, hits.size + 1) * n_caches, hits, int(histogram.sum()))
