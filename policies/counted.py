"""The counted kernel: LFU over experts of one size, a list of counts with a list of experts for each, O(1) per lookup.

Source: K. Shah, A. Mitra, D. Matani, An O(1) algorithm for implementing the LFU cache eviction scheme, 2010. Equal to ranked.py
under LFU's rank, lookup by lookup (tests); the residents go in and come out as that kernel's.
"""

import numpy as np

from tokentape.policies.kernels import I32, I64, U8, U32, int64, kernel, tuple_of, uint32, uint64, void
from tokentape.policies.queue import push_back, unlink

ABSENT = 0xFFFFFFFF


@kernel(uint64(uint64, uint64, int64, I64, U32, U32, U32))
def _count_behind(before, sentinel, count, counts, order, free, link):  # type: ignore[no-untyped-def]
    """A new, empty list for `count` behind the list `before`; free: [0] how many lists are free, and then which."""
    free[0] -= 1
    made = uint64(free[uint64(free[0]) + uint64(1)])
    counts[made] = count
    after = uint64(order[2 * before + 1])
    order[2 * before + 1], order[2 * made], order[2 * made + 1], order[2 * after] = made, before, after, made
    link[2 * (sentinel + made)] = link[2 * (sentinel + made) + 1] = sentinel + made
    return made


@kernel(void(uint64, uint64, U32, U32, U32))
def _drop_empty(of, sentinel, order, free, link):  # type: ignore[no-untyped-def]
    if link[2 * (sentinel + of)] == sentinel + of:
        unlink(of, order)
        free[0] += 1
        free[uint64(free[0])] = of


@kernel(tuple_of(U8, int64)(I32, I64, int64, U32, int64, I64, I64, int64))
def run_counted(keys, offsets, capacity, residents, n_resident, n_cached, last, first_lookup):  # type: ignore[no-untyped-def]
    """Looks `keys` up in ONE cache of `capacity` experts, which holds every event; hits (n,) u8, and how many are resident.

    keys (n,) i32; offsets (m + 1,) i64 event bounds, or empty: one by one; residents (K,) u32, the first n_resident of it by
    rising count and last lookup, and so again in the end; n_cached, last (K,) i64 count since they entered and number of the last
    lookup, counted from first_lookup.
    """
    n_keys, n_lists = uint64(residents.shape[0]), uint64(capacity + 2)
    hits, list_of = np.empty(keys.shape[0], np.uint8), np.full(n_keys, ABSENT, np.uint32)
    link = np.zeros(2 * (n_keys + n_lists), np.uint32)
    order = np.zeros(2 * n_lists, np.uint32)  # lists by rising count; list 0 is where they begin and end
    counts, free = np.zeros(n_lists, np.int64), np.arange(n_lists, dtype=np.uint32)
    free[0] = n_lists - uint64(1)
    newest = uint64(0)
    for key in residents[:n_resident]:
        if counts[newest] != n_cached[key]:
            newest = _count_behind(newest, n_keys, n_cached[key], counts, order, free, link)
        push_back(uint64(key), n_keys + newest, link)
        list_of[key] = newest
    one_by_one = offsets.shape[0] == 0
    for e in range(uint64(keys.shape[0] if one_by_one else offsets.shape[0] - 1)):
        start = e if one_by_one else uint64(offsets[e])
        end = e + uint64(1) if one_by_one else uint64(offsets[e + uint64(1)])
        missing = int64(0)
        for i in range(start, end):
            key = uint64(uint32(keys[i]))
            last[key] = first_lookup + int64(i)
            of = uint64(list_of[key])
            hits[i] = of != ABSENT
            if of == ABSENT:
                missing += 1
                continue
            more, above = counts[of] + 1, uint64(order[2 * of + 1])
            if link[2 * key] == link[2 * key + 1] and counts[above] != more:
                counts[of] = more  # alone with its count
                continue
            if counts[above] != more:
                above = _count_behind(of, n_keys, more, counts, order, free, link)
            unlink(key, link)
            push_back(key, n_keys + above, link)
            list_of[key] = above
            _drop_empty(of, n_keys, order, free, link)
        of = uint64(order[1])
        node = uint64(link[2 * (n_keys + of) + 1])
        while n_resident + missing > capacity:
            while node >= n_keys or last[node] >= first_lookup + int64(start):  # the end of a list, or one of this event
                of = uint64(order[2 * of + 1]) if node >= n_keys else of
                node = uint64(link[2 * (n_keys + of if node >= n_keys else node) + 1])
            after = uint64(link[2 * node + 1])
            unlink(node, link)
            list_of[node] = ABSENT
            n_resident -= 1
            node = after
            if node >= n_keys and link[2 * node] == node:
                after = uint64(order[2 * of + 1])
                _drop_empty(of, n_keys, order, free, link)
                of, node = after, uint64(link[2 * (n_keys + after) + 1])
        if missing:
            of = uint64(order[1])
            if counts[of] != 1:
                of = _count_behind(uint64(0), n_keys, int64(1), counts, order, free, link)
            for i in range(start, end):
                if not hits[i]:
                    key = uint64(uint32(keys[i]))
                    push_back(key, n_keys + of, link)
                    list_of[key] = of
            n_resident += missing
    place, of = 0, uint64(order[1])
    while of:
        node = uint64(link[2 * (n_keys + of) + 1])
        while node < n_keys:
            residents[place], n_cached[node] = node, counts[of]
            place += 1
            node = uint64(link[2 * node + 1])
        of = uint64(order[2 * of + 1])
    return hits, n_resident
