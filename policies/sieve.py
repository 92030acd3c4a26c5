"""SIEVE: one queue in order of entry; a hand walks it from the oldest on and drops the first expert unused since it last came by.

Source: Y. Zhang, J. Yang, Y. Yue, Y. Vigfusson, K. V. Rashmi, SIEVE is simpler than LRU, NSDI 2024, algorithm 1. The list and its
unsigned indices as in queue.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tokentape.policies.kernels import array, boolean, int32, int64, kernel, uint8, uint32, uint64, void
from tokentape.policies.queue import _drop, _enter

_I32, _I64, _U8, _U32 = (array(t, 1) for t in (int32, int64, uint8, uint32))


@dataclass(frozen=True)
class Sieve:
    """The oldest expert behind the hand that was not used since the hand last passed it leaves; hits move nothing."""

    kind: ClassVar[str] = "sieve"
    is_bound: ClassVar[bool] = False


@kernel(inline="always")
def _evict(c, sentinel, sizes, link, resident, visited, hand, used):  # type: ignore[no-untyped-def]
    """Drops the first expert from the hand on that is not visited and no member of the event at hand."""
    node = uint64(hand[c])
    while node == sentinel or resident[node] == 2 or visited[node]:
        if node != sentinel and resident[node] != 2:
            visited[node] = 0
        node = uint64(link[2 * node + 1])
    hand[c] = link[2 * node + 1]
    _drop(node, link, resident, sizes, used, c)


@kernel(void(_I32, _I64, _I64, _I32, _I64, boolean, _U32, _U8, _U8, _U32, _I64, _U8), allocates=False)
def run_sieve(  # type: ignore[no-untyped-def]
    keys, offsets, sizes, cache_of, capacity, keep_overflow, link, resident, visited, hand, used, hits
):  # fmt: skip
    """Looks `keys` up event by event (offsets empty: one by one); members of an event that do not fit beside it are streamed.

    visited (K,) u8: used since the hand passed; hand (C,) u32: node that it stands at, a list's sentinel: at its oldest. resident
    (K,) u8 is 2 for a member while its event lasts. The rest as in queue.run_queue_events.
    """
    n_keys = uint64(sizes.shape[0])
    one_by_one = offsets.shape[0] == 0
    for e in range(uint64(keys.shape[0] if one_by_one else offsets.shape[0] - 1)):
        start = e if one_by_one else uint64(offsets[e])
        end = e + uint64(1) if one_by_one else uint64(offsets[e + uint64(1)])
        if start == end:
            continue
        c = uint64(uint32(cache_of[uint64(uint32(keys[start]))]))
        sentinel, own = n_keys + c, int64(0)  # own: bytes of the members that are resident
        for i in range(start, end):
            key = uint64(uint32(keys[i]))
            hits[i] = resident[key]
            if resident[key]:
                resident[key], visited[key] = 2, 1
                own += sizes[key]
        for i in range(start, end):
            key = uint64(uint32(keys[i]))
            if hits[i] or (sizes[key] > capacity[c] and (one_by_one or not keep_overflow)):
                continue
            while used[c] > own and used[c] + sizes[key] > capacity[c]:
                _evict(c, sentinel, sizes, link, resident, visited, hand, used)
            if keep_overflow or used[c] + sizes[key] <= capacity[c]:
                _enter(key, sentinel, link, resident, sizes, used, c)
                resident[key], visited[key] = 2, 0
                own += sizes[key]
        while used[c] > max(own, capacity[c]):
            _evict(c, sentinel, sizes, link, resident, visited, hand, used)
        for i in range(start, end):
            key = uint64(uint32(keys[i]))
            resident[key] = resident[key] != 0


@kernel(void(int64, _I64, _I64, _U32, _U8, _U8, _U32, _I64), allocates=False)
def shrink_sieve(c, sizes, capacity, link, resident, visited, hand, used):  # type: ignore[no-untyped-def]
    """Lets the hand drop experts until cache c holds no more than its capacity."""
    while used[c] > capacity[c]:
        _evict(uint64(c), uint64(sizes.shape[0]) + uint64(c), sizes, link, resident, visited, hand, used)
