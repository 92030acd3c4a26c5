"""Belady's MIN. With experts of several sizes it is a rank, by the next lookup (ranked.py).

Over experts of one size the victims need not be found. An expert that is kept from one lookup to its next takes room at every
event between; taken in the order in which they end, such intervals are kept where Belady keeps them: if every event between has
room (G. Carlisle and E. Lloyd, Discrete Applied Mathematics 59, 1995). All that is asked is the latest event without room.
"""

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.kernels import I32, I64, U8, boolean, int32, int64, kernel, uint32, uint64, void
from tokentape.policies.protocol import RANK_SIGNATURE

NEVER = 2**31 - 1
RING = 1 << 14  # events, doubled as often as it must be


@kernel(I32(I32, int64))
def next_lookups(keys, n_keys):  # type: ignore[no-untyped-def]
    """(n,) i32: index of the next lookup of the same key, NEVER for none. keys (n,) i32 in 0..n_keys-1."""
    upcoming = np.full(n_keys, NEVER, np.int32)
    result = np.empty(keys.shape[0], np.int32)
    for i in range(keys.shape[0] - 1, -1, -1):
        key = uint64(keys[i])
        result[i] = upcoming[key]
        upcoming[key] = i
    return result


@kernel(RANK_SIGNATURE, allocates=False)
def farthest_first(of):  # type: ignore[no-untyped-def]
    """The expert whose next lookup, as `in_halves`, is farthest away leaves."""
    return -of.gate * 2.0**24 - of.score


def in_halves(upcoming: NDArray[np.int32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(gates, scores) that tell a rank of the next lookups: one f32 holds 24 bits."""
    return (upcoming >> 24).astype(np.float32), (upcoming & 0xFFFFFF).astype(np.float32)


@kernel(void(I32, I64, int64, int64, boolean, U8))
def run_even(keys, offsets, n_keys, capacity, bypass, hits):  # type: ignore[no-untyped-def]
    """Belady over ONE cache that starts empty and holds `capacity` experts, all of one size, and every event.

    keys (n,) i32; offsets (m + 1,) i64 event bounds or empty: one by one; bypass: a missed key may leave at once; hits (n,) u8.

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
