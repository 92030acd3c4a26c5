"""The kernel of policies that keep several lists of experts, of what has left too: SIEVE, SLRU, S3-FIFO, ARC; O(1) per lookup.

A list is doubly linked, the oldest in front; a cache has four, a ghost being an expert on a list that is not resident. An event's
hits are told first, in their order, then its misses enter one by one; no member of an event leaves while it lasts. Experts of one
size count as libCacheSim's unit objects do. Unsigned indices as in queue.py.
"""

from tokentape.policies.kernels import F64, I64, U8, U32, float64, int64, kernel, uint32, uint64, void
from tokentape.policies.protocol import KEEPS, LOOK_UP, SHRINK
from tokentape.policies.queue import push_back, unlink

KNOWN = SIEVE, SLRU, S3_FIFO, ARC = range(4)
N_LISTS = 4
# Numbers of a cache: bytes on each list; ARC's target for its first; whether anything has left; where SIEVE's hand stands (0: at
# the oldest, else a key + 1); bytes of the unit in which rooms are shared out; which policy, and its parameters.
TARGET, HAS_EVICTED, HAND, UNIT, WHICH, FIRST, SECOND, THIRD = range(4, 12)
N_NUMBERS = 12
_SMALL, _MAIN, _GHOST = range(3)  # of S3-FIFO; of ARC: recent, frequent, and the ghosts of each
_RECENT, _FREQUENT, _LEFT_RECENT, _LEFT_FREQUENT = range(4)
_STATE = (I64, I64, U32, U8, U8, U8, F64, I64)
MEMBER = 2  # of `resident`, while its event lasts


@kernel(void(uint64, uint64, *_STATE), allocates=False)
def _take(key, c, sizes, capacity, link, resident, freq, place, numbers, used):  # type: ignore[no-untyped-def]
    """From the list it is on."""
    unlink(key, link)
    numbers[c * uint64(N_NUMBERS) + uint64(place[key]) - uint64(1)] -= sizes[key]
    place[key] = 0


@kernel(void(uint64, uint64, uint64, *_STATE), allocates=False)
def _put(key, c, of, sizes, capacity, link, resident, freq, place, numbers, used):  # type: ignore[no-untyped-def]
    """At the back of list `of` of cache c, from the one it is on if it is."""
    if place[key]:
        _take(key, c, sizes, capacity, link, resident, freq, place, numbers, used)
    push_back(key, uint64(sizes.shape[0]) + c * uint64(N_LISTS) + of, link)
    place[key] = of + uint64(1)
    numbers[c * uint64(N_NUMBERS) + of] += sizes[key]


@kernel(void(uint64, uint64, int64, *_STATE), allocates=False)
def _drop(key, c, ghost, sizes, capacity, link, resident, freq, place, numbers, used):  # type: ignore[no-untyped-def]
    """Leaves the cache, to list `ghost` if that is one."""
    _take(key, c, sizes, capacity, link, resident, freq, place, numbers, used)
    resident[key] = 0
    used[c] -= sizes[key]
    if ghost >= 0:
        _put(key, c, uint64(ghost), sizes, capacity, link, resident, freq, place, numbers, used)


@kernel(uint64(uint64, uint64, *_STATE), allocates=False)
def _oldest(c, of, sizes, capacity, link, resident, freq, place, numbers, used):  # type: ignore[no-untyped-def]
    """The oldest on list `of` that is no member of the event; the list's sentinel if there is none."""
    sentinel = uint64(sizes.shape[0]) + c * uint64(N_LISTS) + of
    node = uint64(link[2 * sentinel + 1])
    while node != sentinel and resident[node] == MEMBER:
        node = uint64(link[2 * node + 1])
    return node


@kernel(int64(uint64, int64, float64, I64, F64), allocates=False)
def _share(c, room, share, sizes, numbers):  # type: ignore[no-untyped-def]
    """Bytes of a share of the room, in whole units."""
    unit = int64(numbers[c * uint64(N_NUMBERS) + uint64(UNIT)])
    return int64((room // unit) * share) * unit


@kernel(void(uint64, *_STATE), allocates=False)
def _sieve(c, sizes, capacity, link, resident, freq, place, numbers, used):  # type: ignore[no-untyped-def]
    n_keys = uint64(sizes.shape[0])
    sentinel, at = n_keys + c * uint64(N_LISTS), c * uint64(N_NUMBERS) + uint64(HAND)
    node = uint64(numbers[at]) - uint64(1) if numbers[at] else sentinel
    while node == sentinel or resident[node] == MEMBER or freq[node]:
        if node != sentinel and resident[node] != MEMBER:
            freq[node] = 0
        node = uint64(link[2 * node + 1])
    after = uint64(link[2 * node + 1])
    numbers[at] = after + uint64(1) if after != sentinel else uint64(0)
    _drop(node, c, -1, sizes, capacity, link, resident, freq, place, numbers, used)


@kernel(void(uint64, *_STATE), allocates=False)
def _slru(c, sizes, capacity, link, resident, freq, place, numbers, used):  # type: ignore[no-untyped-def]
    for of in range(uint64(N_LISTS)):
        node = _oldest(c, of, sizes, capacity, link, resident, freq, place, numbers, used)
        if node < uint64(sizes.shape[0]):
            _drop(node, c, -1, sizes, capacity, link, resident, freq, place, numbers, used)
            return


@kernel(void(uint64, *_STATE), allocates=False)
def _s3_fifo(c, sizes, capacity, link, resident, freq, place, numbers, used):  # type: ignore[no-untyped-def]
    n_keys, at = uint64(sizes.shape[0]), c * uint64(N_NUMBERS)
    small = _share(c, capacity[c], numbers[at + uint64(FIRST)], sizes, numbers)
    ghosts = _share(c, capacity[c], numbers[at + uint64(SECOND)], sizes, numbers)
    numbers[at + uint64(HAS_EVICTED)] = 1
    while True:
        node = _oldest(c, uint64(_SMALL), sizes, capacity, link, resident, freq, place, numbers, used)
        main = _oldest(c, uint64(_MAIN), sizes, capacity, link, resident, freq, place, numbers, used)
        if main < n_keys and (node >= n_keys or numbers[at + uint64(_MAIN)] > capacity[c] - small):
            while freq[main]:
                freq[main] = min(freq[main], 3) - 1
                _put(main, c, uint64(_MAIN), sizes, capacity, link, resident, freq, place, numbers, used)
                main = _oldest(c, uint64(_MAIN), sizes, capacity, link, resident, freq, place, numbers, used)
            _drop(main, c, -1, sizes, capacity, link, resident, freq, place, numbers, used)
            return
        while node < n_keys:
            if freq[node] < numbers[at + uint64(THIRD)]:
                while numbers[at + uint64(_GHOST)] and numbers[at + uint64(_GHOST)] + sizes[node] > ghosts:
                    oldest = _oldest(c, uint64(_GHOST), sizes, capacity, link, resident, freq, place, numbers, used)
                    _take(oldest, c, sizes, capacity, link, resident, freq, place, numbers, used)
                kept = int64(_GHOST) if sizes[node] <= ghosts else int64(-1)
                _drop(node, c, kept, sizes, capacity, link, resident, freq, place, numbers, used)
                return
            freq[node] = 0
            _put(node, c, uint64(_MAIN), sizes, capacity, link, resident, freq, place, numbers, used)
            node = _oldest(c, uint64(_SMALL), sizes, capacity, link, resident, freq, place, numbers, used)


@kernel(void(uint64, int64, int64, *_STATE), allocates=False)
def _arc(c, size, ghost, sizes, capacity, link, resident, freq, place, numbers, used):  # type: ignore[no-untyped-def]
    """One expert leaves for one of `size` that was on list `ghost` (0: on none); last, REPLACE of the paper: from the recent
    while they are over the target, else from the frequent; what leaves is a ghost."""
    n_keys, at = uint64(sizes.shape[0]), c * uint64(N_NUMBERS)
    recent = _oldest(c, uint64(_RECENT), sizes, capacity, link, resident, freq, place, numbers, used)
    if ghost == 0:
        of_recent = numbers[at + uint64(_RECENT)] + numbers[at + uint64(_LEFT_RECENT)]
        of_frequent = numbers[at + uint64(_FREQUENT)] + numbers[at + uint64(_LEFT_FREQUENT)]
        left = uint64(_LEFT_FREQUENT)
        if of_recent + size > capacity[c]:
            left = uint64(_LEFT_RECENT)
            if recent < n_keys and (not numbers[at + left] or numbers[at + uint64(_RECENT)] + size > capacity[c]):
                _drop(recent, c, -1, sizes, capacity, link, resident, freq, place, numbers, used)
                return
        elif of_recent + of_frequent + size <= 2 * capacity[c]:
            left = uint64(N_LISTS)
        if left < uint64(N_LISTS) and numbers[at + left]:
            oldest = _oldest(c, left, sizes, capacity, link, resident, freq, place, numbers, used)
            _take(oldest, c, sizes, capacity, link, resident, freq, place, numbers, used)
    frequent = _oldest(c, uint64(_FREQUENT), sizes, capacity, link, resident, freq, place, numbers, used)
    over = numbers[at + uint64(_RECENT)] - numbers[at + uint64(TARGET)]
    if recent < n_keys and (over > 0 or (ghost == _LEFT_FREQUENT and over == 0) or frequent >= n_keys):
        _drop(recent, c, int64(_LEFT_RECENT), sizes, capacity, link, resident, freq, place, numbers, used)
    else:
        _drop(frequent, c, int64(_LEFT_FREQUENT), sizes, capacity, link, resident, freq, place, numbers, used)


@kernel(void(uint64, int64, int64, *_STATE), allocates=False)
def _evict(c, size, ghost, sizes, capacity, link, resident, freq, place, numbers, used):  # type: ignore[no-untyped-def]
    which = int64(numbers[c * uint64(N_NUMBERS) + uint64(WHICH)])
    if which == SIEVE:
        _sieve(c, sizes, capacity, link, resident, freq, place, numbers, used)
    elif which == SLRU:
        _slru(c, sizes, capacity, link, resident, freq, place, numbers, used)
    elif which == S3_FIFO:
        _s3_fifo(c, sizes, capacity, link, resident, freq, place, numbers, used)
    else:
        _arc(c, size, ghost, sizes, capacity, link, resident, freq, place, numbers, used)


@kernel(void(uint64, uint64, *_STATE), allocates=False)
def _hit(key, c, sizes, capacity, link, resident, freq, place, numbers, used):  # type: ignore[no-untyped-def]
    which = int64(numbers[c * uint64(N_NUMBERS) + uint64(WHICH)])
    freq[key] = min(freq[key] + 1, 255)
    if which == SLRU:
        of = min(uint64(place[key]), uint64(N_LISTS - 1))
        _put(key, c, of, sizes, capacity, link, resident, freq, place, numbers, used)
        room = _share(c, capacity[c], 1.0 / N_LISTS, sizes, numbers)
        for below in range(of + uint64(1)):
            at = of - below
            if numbers[c * uint64(N_NUMBERS) + at] <= room:
                break  # nothing sinks further
            while numbers[c * uint64(N_NUMBERS) + at] > room:
                node = _oldest(c, at, sizes, capacity, link, resident, freq, place, numbers, used)
                if node >= uint64(sizes.shape[0]):
                    break
                if at:
                    _put(node, c, at - uint64(1), sizes, capacity, link, resident, freq, place, numbers, used)
                else:
                    _drop(node, c, -1, sizes, capacity, link, resident, freq, place, numbers, used)
    elif which == ARC:
        _put(key, c, uint64(_FREQUENT), sizes, capacity, link, resident, freq, place, numbers, used)


@kernel(int64(uint64, uint64, *_STATE), allocates=False)
def _missed(key, c, sizes, capacity, link, resident, freq, place, numbers, used):  # type: ignore[no-untyped-def]
    """The list that it was a ghost on, 0 if on none; ARC's target moves towards it."""
    at, ghost = c * uint64(N_NUMBERS), int64(place[key]) - 1
    if ghost < 0:
        return int64(0)
    if int64(numbers[at + uint64(WHICH)]) == ARC:
        recent, frequent = numbers[at + uint64(_LEFT_RECENT)], numbers[at + uint64(_LEFT_FREQUENT)]
        target = numbers[at + uint64(TARGET)]
        if ghost == _LEFT_RECENT:
            numbers[at + uint64(TARGET)] = min(float64(capacity[c]), target + max(frequent / recent, 1.0) * sizes[key])
        else:
            numbers[at + uint64(TARGET)] = max(0.0, target - max(recent / frequent, 1.0) * sizes[key])
    _take(key, c, sizes, capacity, link, resident, freq, place, numbers, used)
    return ghost


@kernel(uint64(uint64, uint64, int64, *_STATE), allocates=False)
def _list_for(key, c, ghost, sizes, capacity, link, resident, freq, place, numbers, used):  # type: ignore[no-untyped-def]
    """Where a missed expert enters."""
    at, which = c * uint64(N_NUMBERS), int64(numbers[c * uint64(N_NUMBERS) + uint64(WHICH)])
    if which == SLRU:  # the lowest with room
        room = _share(c, capacity[c], 1.0 / N_LISTS, sizes, numbers)
        for of in range(uint64(N_LISTS)):
            if numbers[at + of] + sizes[key] <= room:
                return of
    elif which == S3_FIFO:
        small = _share(c, capacity[c], numbers[at + uint64(FIRST)], sizes, numbers)
        if ghost > 0 or (not numbers[at + uint64(HAS_EVICTED)] and numbers[at + uint64(_SMALL)] >= small):
            return uint64(_MAIN)
    elif which == ARC and ghost > 0:
        return uint64(_FREQUENT)
    return uint64(0)


@kernel(LOOK_UP, allocates=False)
def look_up_lists(first_event, first_lookup, keys, offsets, gates, scores, rank_of, cache, hits):  # type: ignore[no-untyped-def]
    """Members of an event that do not fit beside it are streamed. link: nodes K.. are the lists' sentinels; freq: hits since it
    entered or was spared; place: list + 1 that it is on; numbers (N_NUMBERS C,)."""
    how, sizes, cache_of, capacity, used, link = cache.how, cache.sizes, cache.cache_of, cache.capacity, cache.used, cache.link
    resident, marks, numbers = cache.resident, cache.marks, cache.ranks
    freq, place, keep_overflow = marks[: sizes.shape[0]], marks[sizes.shape[0] :], how[KEEPS] != 0
    one_by_one = offsets.shape[0] == 0
    for e in range(uint64(keys.shape[0] if one_by_one else offsets.shape[0] - 1)):
        start = e if one_by_one else uint64(offsets[e])
        end = e + uint64(1) if one_by_one else uint64(offsets[e + uint64(1)])
        if start == end:
            continue
        c = uint64(uint32(cache_of[uint64(uint32(keys[start]))]))
        own = int64(0)  # bytes of the members that are resident
        for i in range(start, end):
            key = uint64(uint32(keys[i]))
            hits[i] = resident[key]
            if resident[key]:
                resident[key] = MEMBER
                own += sizes[key]
        for i in range(start, end):
            if hits[i]:
                _hit(uint64(uint32(keys[i])), c, sizes, capacity, link, resident, freq, place, numbers, used)
        for i in range(start, end):
            key = uint64(uint32(keys[i]))
            if hits[i]:
                continue
            ghost = _missed(key, c, sizes, capacity, link, resident, freq, place, numbers, used)
            if sizes[key] > capacity[c] and (one_by_one or not keep_overflow):
                continue
            while used[c] > own and used[c] + sizes[key] > capacity[c]:
                _evict(c, sizes[key], ghost, sizes, capacity, link, resident, freq, place, numbers, used)
            if keep_overflow or used[c] + sizes[key] <= capacity[c]:
                of = _list_for(key, c, ghost, sizes, capacity, link, resident, freq, place, numbers, used)
                _put(key, c, of, sizes, capacity, link, resident, freq, place, numbers, used)
                resident[key], freq[key] = MEMBER, 0
                used[c] += sizes[key]
                own += sizes[key]
        while used[c] > max(own, capacity[c]):
            _evict(c, 0, 0, sizes, capacity, link, resident, freq, place, numbers, used)
        for i in range(start, end):
            key = uint64(uint32(keys[i]))
            resident[key] = resident[key] != 0


@kernel(SHRINK, allocates=False)
def shrink_lists(cache):  # type: ignore[no-untyped-def]
    sizes, capacity, used, link, resident = cache.sizes, cache.capacity, cache.used, cache.link, cache.resident
    freq, place, numbers = cache.marks[: sizes.shape[0]], cache.marks[sizes.shape[0] :], cache.ranks
    for c in range(uint64(capacity.shape[0])):
        while used[c] > capacity[c]:
            _evict(c, 0, 0, sizes, capacity, link, resident, freq, place, numbers, used)
