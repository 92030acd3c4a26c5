"""The uniform kernel: a resident expert drawn uniformly leaves; residents sit in one dense array per cache."""

from tokentape.policies.kernels import array, boolean, int32, int64, kernel, uint8, uint32, uint64, void

_I32, _I64, _U8, _U32, _U64 = (array(t, 1) for t in (int32, int64, uint8, uint32, uint64))
ABSENT = 0xFFFFFFFF


@kernel(uint64(_U64), allocates=False)
def _draw(state):  # type: ignore[no-untyped-def]
    """Next 64-bit number of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014); state (1,) u64."""
    state[0] += uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> uint64(27))) * uint64(0x94D049BB133111EB)
    return z ^ (z >> uint64(31))


@kernel(inline="always")
def _remove(slot, c, base, residents, slot_of, count, used, sizes):  # type: ignore[no-untyped-def]
    victim = uint64(residents[base + slot])
    count[c] -= 1
    moved = uint64(residents[base + uint64(count[c])])
    residents[base + slot] = moved
    slot_of[moved] = slot
    slot_of[victim] = ABSENT
    used[c] -= sizes[victim]


@kernel(void(_I32, _I64, _I64, _I32, _I64, _I64, boolean, _U64, _U32, _U32, _I64, _I64, _I64, int64, _U8), allocates=False)
def run_uniform(  # type: ignore[no-untyped-def]
    keys,
    offsets,
    sizes,
    cache_of,
    base_of,
    capacity,
    keep_overflow,
    state,
    residents,
    slot_of,
    count,
    used,
    stamp,
    first_event,
    hits,
):
    """Arguments as in ranked.run_ranked; residents (K,) u32 takes the heap's place, state (1,) u64 is the generator's."""
    one_by_one = offsets.shape[0] == 0
    n_events = keys.shape[0] if one_by_one else offsets.shape[0] - 1
    for e in range(uint64(n_events)):
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
            hits[i] = slot_of[key] != ABSENT
            if hits[i]:
                n_members += 1
            else:
                missing += sizes[key]
        if (missing == 0 and used[c] <= capacity[c]) or (one_by_one and missing > capacity[c]):
            continue
        while used[c] + missing > capacity[c] and count[c] > n_members:
            slot = _draw(state) % uint64(count[c])
            if stamp[uint64(residents[base + slot])] != now:  # members are never victims: draw again
                _remove(slot, c, base, residents, slot_of, count, used, sizes)
        for i in range(start, end):
            key = uint64(uint32(keys[i]))
            if not hits[i]:
                residents[base + uint64(count[c])] = key
                slot_of[key] = count[c]
                count[c] += 1
                used[c] += sizes[key]
        while used[c] > capacity[c] and not keep_overflow:
            _remove(_draw(state) % uint64(count[c]), c, base, residents, slot_of, count, used, sizes)


@kernel(void(int64, _I64, _I64, _I64, _U64, _U32, _U32, _I64, _I64), allocates=False)
def shrink_uniform(c, sizes, base_of, capacity, state, residents, slot_of, count, used):  # type: ignore[no-untyped-def]
    """Drops drawn experts until cache c holds no more than its capacity."""
    while used[c] > capacity[c]:
        _remove(_draw(state) % uint64(count[c]), c, uint64(base_of[c]), residents, slot_of, count, used, sizes)
