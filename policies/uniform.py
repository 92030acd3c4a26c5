"""The uniform kernel: a resident expert drawn uniformly leaves; residents sit in one dense array per cache."""

from tokentape.policies.kernels import U64, int64, kernel, uint32, uint64
from tokentape.policies.protocol import KEEPS, LOOK_UP, SHRINK


@kernel(uint64(U64), allocates=False)
def _draw(state):  # type: ignore[no-untyped-def]
    """Next 64-bit number of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014); state (1,) u64."""
    state[0] += uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> uint64(27))) * uint64(0x94D049BB133111EB)
    return z ^ (z >> uint64(31))


@kernel(inline="always")
def _remove(slot, c, base, residents, resident, slot_of, count, used, sizes):  # type: ignore[no-untyped-def]
    victim = uint64(residents[base + slot])
    count[c] -= 1
    moved = uint64(residents[base + uint64(count[c])])
    residents[base + slot] = moved
    slot_of[moved] = slot
    resident[victim] = 0
    used[c] -= sizes[victim]


@kernel(LOOK_UP, allocates=False)
def look_up_uniform(first_event, first_lookup, keys, offsets, gates, scores, rank_of, cache, hits):  # type: ignore[no-untyped-def]
    sizes, cache_of, base_of, capacity, used = cache.sizes, cache.cache_of, cache.base_of, cache.capacity, cache.used
    stamp, draws, link, resident, slot_of = cache.stamp, cache.draws, cache.link, cache.resident, cache.slot_of
    count = cache.n_resident
    one_by_one = offsets.shape[0] == 0
    for e in range(uint64(keys.shape[0] if one_by_one else offsets.shape[0] - 1)):
        start = e if one_by_one else uint64(offsets[e])
        end = e + uint64(1) if one_by_one else uint64(offsets[e + uint64(1)])
        if start == end:
            continue
        now = first_event + int64(e)
        c = uint64(uint32(cache_of[uint64(uint32(keys[start]))]))
        base = uint64(base_of[c])
        n_members = 0
        missing = int64(0)
        for i in range(start, end):
            key = uint64(uint32(keys[i]))
            stamp[key] = now
            hits[i] = resident[key]
            if hits[i]:
                n_members += 1
            else:
                missing += sizes[key]
        if (missing == 0 and used[c] <= capacity[c]) or (one_by_one and missing > capacity[c]):
            continue
        while used[c] + missing > capacity[c] and count[c] > n_members:
            slot = _draw(draws) % uint64(count[c])
            if stamp[uint64(link[base + slot])] != now:  # members are never victims: draw again
                _remove(slot, c, base, link, resident, slot_of, count, used, sizes)
        for i in range(start, end):
            key = uint64(uint32(keys[i]))
            if not hits[i]:
                link[base + uint64(count[c])] = key
                slot_of[key] = count[c]
                resident[key] = 1
                count[c] += 1
                used[c] += sizes[key]
        while used[c] > capacity[c] and not cache.how[KEEPS]:
            _remove(_draw(draws) % uint64(count[c]), c, base, link, resident, slot_of, count, used, sizes)


@kernel(SHRINK, allocates=False)
def shrink_uniform(cache):  # type: ignore[no-untyped-def]
    sizes, base_of, capacity, used, draws, link = cache.sizes, cache.base_of, cache.capacity, cache.used, cache.draws, cache.link
    resident, slot_of, count = cache.resident, cache.slot_of, cache.n_resident
    for c in range(uint64(capacity.shape[0])):
        while used[c] > capacity[c]:
            _remove(_draw(draws) % uint64(count[c]), c, uint64(base_of[c]), link, resident, slot_of, count, used, sizes)
