"""The queue kernel: LRU and FIFO over byte-sized experts, one doubly linked list per cache, O(1) per lookup.

An event is a group of distinct keys looked up together; no key of an event is a victim of that event. With one key per event
this is the textbook cache. Memory: 8 B of links and 9 B of state per expert, one byte of result per lookup. Indices are
unsigned: numba then leaves out the test for negative ones, which more than doubles the speed.
"""

from tokentape.policies.kernels import I32, U8, U32, int64, kernel, uint32, uint64, void
from tokentape.policies.protocol import EVEN, FLAG, HITS_FIRST, KEEPS, LOOK_UP, SHRINK


@kernel(inline="always")
def unlink(node, link):  # type: ignore[no-untyped-def]
    """Takes `node` out of its list. link (2 (K + lists),) u32: the node before and the node after each node."""
    before, after = uint64(link[2 * node]), uint64(link[2 * node + 1])
    link[2 * before + 1] = after
    link[2 * after] = before


@kernel(inline="always")
def push_back(node, sentinel, link):  # type: ignore[no-untyped-def]
    """Appends `node` to the list that ends at the sentinel: used most recently."""
    last = uint64(link[2 * sentinel])
    link[2 * node] = last
    link[2 * node + 1] = sentinel
    link[2 * last + 1] = node
    link[2 * sentinel] = node


@kernel(inline="always")
def _drop(node, link, resident, sizes, used, c):  # type: ignore[no-untyped-def]
    unlink(node, link)
    resident[node] = 0
    used[c] -= sizes[node]


@kernel(inline="always")
def _enter(key, sentinel, link, resident, sizes, used, c):  # type: ignore[no-untyped-def]
    push_back(key, sentinel, link)
    resident[key] = 1
    used[c] += sizes[key]


@kernel(void(I32, I32, uint64, uint64, U32, U8, U8), allocates=False)
def _run_full(keys, cache_of, n_keys, begin, link, resident, hits):  # type: ignore[no-untyped-def]
    """LRU from lookup `begin` on, over caches that are full of experts of one size: the expert that moves to the back is the key
    where it hits, else the one in front, so that no branch waits for what hits. Both ends of the list stay in registers."""
    sentinel, front, back = uint64(0), uint64(0), uint64(0)
    for i in range(begin, uint64(keys.shape[0])):
        key = uint64(uint32(keys[i]))
        own = n_keys + uint64(uint32(cache_of[key]))
        if own != sentinel:
            if i > begin:
                link[2 * sentinel], link[2 * sentinel + 1] = back, front
            sentinel, back, front = own, uint64(link[2 * own]), uint64(link[2 * own + 1])
        is_hit = resident[key]
        hits[i] = is_hit
        leaver = key if is_hit else front
        before, after = uint64(link[2 * leaver]), uint64(link[2 * leaver + 1])
        unlink(leaver, link)
        front = after if leaver == front else front
        back = before if leaver == back else back
        resident[leaver] = 0
        resident[key] = 1
        link[2 * key], link[2 * key + 1] = back, sentinel
        link[2 * back + 1] = key
        front = key if front == sentinel else front
        back = key
    link[2 * sentinel], link[2 * sentinel + 1] = back, front


@kernel(inline="always")
def _use(keys, start, end, sentinel, sizes, link, resident, hits, room):  # type: ignore[no-untyped-def]
    """An event's experts move to the back, those that miss as if they were linked to themselves, so that no branch waits for what
    hits; as many leave the front, none of them the event's, as there is no room for. Returns the room that is left."""
    last = uint64(link[2 * sentinel])
    for i in range(start, end):
        key = uint64(uint32(keys[i]))
        is_hit, before, after = resident[key], uint64(link[2 * key]), uint64(link[2 * key + 1])
        before, after = (before, after) if is_hit else (key, key)
        link[2 * before + 1], link[2 * after] = after, before
        last = before if last == key else last
        link[2 * key], link[2 * last + 1] = last, key
        last, hits[i], resident[key] = key, is_hit, 1
        room -= 0 if is_hit else sizes[key]
    link[2 * last + 1], link[2 * sentinel] = sentinel, last
    front, own = uint64(link[2 * sentinel + 1]), uint64(uint32(keys[start]))
    while room < 0 and front != own:
        resident[front] = 0
        room += sizes[front]
        front = uint64(link[2 * front + 1])
    link[2 * sentinel + 1], link[2 * front] = front, sentinel
    return room


@kernel(LOOK_UP, allocates=False)
def look_up_queue(first_event, first_lookup, keys, offsets, gates, scores, rank_of, cache, hits):  # type: ignore[no-untyped-def]
    """Of events; nodes K.. of `link` are the lists' sentinels. FLAG: LRU, else FIFO; KEEPS: an event larger than the cache stays
    until the next one; HITS_FIRST: an event's misses enter behind all its hits, else all in their order."""
    how, sizes, cache_of, capacity, link = cache.how, cache.sizes, cache.cache_of, cache.capacity, cache.link
    resident, used, stamp = cache.resident, cache.used, cache.stamp
    promote, keep_overflow, hits_first = how[FLAG] != 0, how[KEEPS] != 0, how[HITS_FIRST] != 0
    n_keys, n_caches, n_full = uint64(sizes.shape[0]), uint64(capacity.shape[0]), uint64(0)
    one_by_one = offsets.shape[0] == 0
    n_events = keys.shape[0] if one_by_one else offsets.shape[0] - 1
    is_shorter = one_by_one and promote and how[EVEN] != 0
    for c in range(n_caches if is_shorter else uint64(0)):
        n_full += used[c] > 0 and used[c] + sizes[0] > capacity[c]
    for e in range(uint64(n_events)):
        start = e if one_by_one else uint64(offsets[e])
        end = e + uint64(1) if one_by_one else uint64(offsets[e + uint64(1)])
        if start == end:
            continue
        if is_shorter and n_full == n_caches:
            _run_full(keys, cache_of, n_keys, start, link, resident, hits)
            break
        now = first_event + int64(e)
        first = uint64(uint32(keys[start]))
        c = uint64(uint32(cache_of[first]))
        if one_by_one and sizes[first] > capacity[c]:
            hits[start] = 0
            continue  # larger than the cache: streamed
        sentinel, was_full = n_keys + c, used[c] + sizes[0] > capacity[c]
        if promote and not hits_first:
            used[c] = capacity[c] - _use(keys, start, end, sentinel, sizes, link, resident, hits, capacity[c] - used[c])
        else:
            for i in range(start, end):
                key = uint64(uint32(keys[i]))
                stamp[key] = now
                hits[i] = resident[key]
                if not resident[key]:
                    if not hits_first:
                        _enter(key, sentinel, link, resident, sizes, used, c)
                elif promote:
                    unlink(key, link)
                    push_back(key, sentinel, link)
            if hits_first:
                for i in range(start, end):
                    if not hits[i]:
                        _enter(uint64(uint32(keys[i])), sentinel, link, resident, sizes, used, c)
            node = uint64(link[2 * sentinel + 1])
            while used[c] > capacity[c] and node != sentinel:
                after = uint64(link[2 * node + 1])
                if stamp[node] != now:
                    _drop(node, link, resident, sizes, used, c)
                node = after
        while used[c] > capacity[c] and not keep_overflow:  # the event alone is too large: its first members are streamed
            _drop(uint64(link[2 * sentinel + 1]), link, resident, sizes, used, c)
        n_full += used[c] + sizes[0] > capacity[c] and not was_full


@kernel(SHRINK, allocates=False)
def shrink_queue(cache):  # type: ignore[no-untyped-def]
    sizes, capacity, link, resident, used = cache.sizes, cache.capacity, cache.link, cache.resident, cache.used
    for c in range(uint64(capacity.shape[0])):
        sentinel = uint64(sizes.shape[0]) + c
        while used[c] > capacity[c]:
            _drop(uint64(link[2 * sentinel + 1]), link, resident, sizes, used, c)
