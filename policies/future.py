"""The future kernel: Belady's MIN in a few bit operations per lookup.

Over experts of one size the victims need not be found. An expert that is kept from one lookup to its next takes room at every
event between; taken in the order in which they end, such intervals are kept where Belady keeps them: if every event between has
room (G. Carlisle and E. Lloyd, Discrete Applied Mathematics 59, 1995). All that is asked is the latest event without room.

With other sizes, lookups are numbered in time. A resident expert is one bit, at the number of its next lookup; the victim is the
highest bit, and `keys` says whose it is. The bits form a tree of 64-way summaries, so setting, clearing and finding the highest
take at most four steps however many experts are resident. Experts that are never looked up again wait on a stack and leave first.
"""

import numpy as np

from tokentape.policies.kernels import I32, I64, U8, U64, boolean, int32, int64, kernel, uint32, uint64, void

RING = 1 << 14  # events, doubled as often as it must be


@kernel(I32(I32, int64))
def next_lookups(keys, n_keys):  # type: ignore[no-untyped-def]
    """(n,) i32: index of the next lookup of the same key, -1 for none. keys (n,) i32 in 0..n_keys-1."""
    upcoming = np.full(n_keys, -1, np.int32)
    result = np.empty(keys.shape[0], np.int32)
    for i in range(keys.shape[0] - 1, -1, -1):
        key = uint64(keys[i])
        result[i] = upcoming[key]
        upcoming[key] = i
    return result


@kernel(void(I32, I64, int64, int64, boolean, U8))
def run_even(keys, offsets, n_keys, capacity, bypass, hits):  # type: ignore[no-untyped-def]
    """Belady over ONE cache that starts empty and holds `capacity` experts, all of one size, and every event. As `run_future`.

    An event with no less room than a later one is never asked: what ends now passes the later one too, which is full first. The
    others are a list with rising room, `gap` what each has more than the one `before` it; `after` leads from any event to the
    first of the list from it on. All of it is told only of events since the latest one without room: they lie in a ring.
    """
    n_events = keys.shape[0] if offsets.shape[0] == 0 else offsets.shape[0] - 1
    last = np.full(n_keys, -1, np.int32)
    state = np.array([0, -1, -1, 0], np.int32)  # the next event; the latest one without room; the newest of the list, its room
    after, before, gap = np.empty(RING, np.int32), np.empty(RING, np.int32), np.empty(RING, np.int32)
    while _advance_even(keys, offsets, capacity, bypass, hits, last, after, before, gap, state) < n_events:
        old, new = uint64(after.shape[0] - 1), uint64(2 * after.shape[0] - 1)
        longer = np.empty(new + 1, np.int32), np.empty(new + 1, np.int32), np.empty(new + 1, np.int32)
        for e in range(uint64(state[1] + 1), uint64(state[0])):
            longer[0][e & new], longer[1][e & new], longer[2][e & new] = after[e & old], before[e & old], gap[e & old]
        after, before, gap = longer


@kernel(int64(I32, I64, int64, boolean, U8, I32, I32, I32, I32, I32), allocates=False)
def _advance_even(keys, offsets, capacity, bypass, hits, last, after, before, gap, state):  # type: ignore[no-untyped-def]
    """Events from the next one on, until the ring is full; the event that it stops at."""
    one_by_one = offsets.shape[0] == 0
    n_events = uint64(keys.shape[0] if one_by_one else offsets.shape[0] - 1)
    mask, keeps = uint64(after.shape[0] - 1), int32(not bypass)
    e, full, newest, room = uint64(state[0]), state[1], state[2], state[3]
    while e < n_events and int64(e) - int64(full) <= int64(mask):
        start = e if one_by_one else uint64(offsets[e])
        end = e + uint64(1) if one_by_one else uint64(offsets[e + uint64(1)])
        for i in range(start, end):
            key = uint64(uint32(keys[i]))
            is_seen, since = last[key] >= 0, last[key] + keeps
            last[key] = int32(e)
            hits[i] = is_seen and (since > full or since == int32(e))
            if is_seen and since > full and since < int32(e):
                at = uint64(uint32(since))
                to = uint64(uint32(after[at & mask]))
                while to != at:
                    further = after[to & mask]
                    after[at & mask] = further
                    at = uint64(uint32(further))
                    to = uint64(uint32(after[at & mask]))
                gap[at & mask] -= int32(1)
                room -= int32(1)
                if gap[at & mask] == 0:
                    other = before[at & mask]
                    if other <= full:
                        full = int32(at)
                    else:
                        of = uint64(uint32(other)) & mask
                        after[of] = int32(at)
                        gap[at & mask], before[at & mask] = gap[of], before[of]
        left = int32(capacity) - (int32(0) if bypass else int32(end - start))
        while newest > full and room >= left:
            of = uint64(uint32(newest)) & mask
            after[of] = int32(e)
            room -= gap[of]
            newest = before[of]
        after[e & mask], before[e & mask] = int32(e), newest
        gap[e & mask] = left - (room if newest > full else int32(0))
        newest, room = int32(e), left
        if left == 0:
            full = newest
        e += uint64(1)
    state[0], state[1], state[2], state[3] = int32(e), full, newest, room
    return int64(e)


@kernel(inline="always")
def _highest_bit(word):  # type: ignore[no-untyped-def]
    bit = uint64(0)
    for half in (uint64(32), uint64(16), uint64(8), uint64(4), uint64(2), uint64(1)):
        if word >> half:
            word >>= half
            bit += half
    return bit


@kernel(void(uint64, U64, U64, U64, U64))
def _set(i, bits, tens, hundreds, top):  # type: ignore[no-untyped-def]
    for level in (bits, tens, hundreds, top):
        level[i >> uint64(6)] |= uint64(1) << (i & uint64(63))
        i >>= uint64(6)


@kernel(void(uint64, U64, U64, U64, U64))
def _clear(i, bits, tens, hundreds, top):  # type: ignore[no-untyped-def]
    for level in (bits, tens, hundreds, top):
        level[i >> uint64(6)] &= ~(uint64(1) << (i & uint64(63)))
        i >>= uint64(6)
        if level[i]:
            break


@kernel(int64(U64, U64, U64, U64))
def _highest(bits, tens, hundreds, top):  # type: ignore[no-untyped-def]
    """Index of the highest set bit, -1 if there is none."""
    i = int64(top.shape[0]) - 1
    while i >= 0 and top[uint64(i)] == 0:
        i -= 1
    if i < 0:
        return i
    found = uint64(i)
    for level in (top, hundreds, tens, bits):
        found = (found << uint64(6)) | _highest_bit(level[found])
    return int64(found)


@kernel(int64(I32, I64, int64, U8, U64, U64, U64, U64, U64, I64))
def _evict(keys, sizes, used, resident, never, bits, tens, hundreds, top, n_never):  # type: ignore[no-untyped-def]
    """Removes the farthest expert; returns bytes in use after it, or -1 if none is left to remove."""
    if n_never[0]:
        n_never[0] -= 1
        victim = never[uint64(n_never[0])]
    else:
        i = _highest(bits, tens, hundreds, top)
        if i < 0:
            return int64(-1)
        _clear(uint64(i), bits, tens, hundreds, top)
        victim = uint64(keys[uint64(i)])
    resident[victim] = 0
    return used - sizes[victim]


@kernel(void(I32, I64, I32, I64, int64, boolean, boolean, U8))
def run_future(keys, offsets, upcoming, sizes, capacity, bypass, keep_overflow, hits):  # type: ignore[no-untyped-def]
    """Belady over ONE cache that starts empty; writes hits (1) and misses (0).

    keys (n,) i32; offsets (m + 1,) i64 event bounds or empty: one by one; upcoming (n,) i32 from `next_lookups`; sizes (K,) i64
    bytes; capacity bytes; bypass: a missed key may leave at once; keep_overflow as KEEPS in queue.py; hits (n,) u8.
    """
    n = keys.shape[0]
    bits = np.zeros((n >> 6) + 1, np.uint64)
    tens = np.zeros((n >> 12) + 1, np.uint64)
    hundreds = np.zeros((n >> 18) + 1, np.uint64)
    top = np.zeros((n >> 24) + 1, np.uint64)
    resident = np.zeros(sizes.shape[0], np.uint8)
    never = np.zeros(sizes.shape[0], np.uint64)
    n_never = np.zeros(1, np.int64)
    used = int64(0)
    one_by_one = offsets.shape[0] == 0
    for e in range(uint64(n if one_by_one else offsets.shape[0] - 1)):
        start = e if one_by_one else uint64(offsets[e])
        end = e + uint64(1) if one_by_one else uint64(offsets[e + uint64(1)])
        missing = int64(0)
        for i in range(start, end):
            key = uint64(keys[i])
            hits[i] = resident[key]
            if resident[key]:
                _clear(i, bits, tens, hundreds, top)  # members have no bit, so none of them is a victim
            else:
                missing += sizes[key]
        if one_by_one and missing > capacity:
            continue  # larger than the cache: streamed
        while not bypass and used + missing > capacity:
            left = _evict(keys, sizes, used, resident, never, bits, tens, hundreds, top, n_never)
            if left < 0:
                break
            used = left
        for i in range(start, end):
            key = uint64(keys[i])
            resident[key] = 1
            if upcoming[i] < 0:
                never[uint64(n_never[0])] = key
                n_never[0] += 1
            else:
                _set(uint64(upcoming[i]), bits, tens, hundreds, top)
        used += missing
        while used > capacity and (bypass or not keep_overflow):
            used = _evict(keys, sizes, used, resident, never, bits, tens, hundreds, top, n_never)
