"""The ranked kernel: any policy that can rank experts, one indexed binary heap per cache, O(log n) per lookup.

The lowest rank leaves, ties by least recent use. The rank function is a first-class function of one fixed signature, so that
the compiled kernel is cached on disk and serves every policy. Unsigned indices as in queue.py.
"""

from tokentape.policies.kernels import array, float64, int64, kernel, uint32, uint64, void
from tokentape.policies.protocol import AGES, FLAG, HITS_FIRST, KEEPS, LOOK_UP, N_LAYERS, SHRINK, Candidate

_I64, _U32, _F64 = (array(t, 1) for t in (int64, uint32, float64))


@kernel(void(uint64, uint64, float64, int64, uint64, _U32, _F64, _I64, _U32), allocates=False)
def _sift_up(slot, key, rank, last, base, heap, ranks, lasts, slot_of):  # type: ignore[no-untyped-def]
    """Places (key, rank, last) at `slot` or above; slots are counted from the cache's `base`."""
    while slot > 0:
        above = (slot - uint64(1)) >> uint64(1)
        other = ranks[base + above]
        if not (rank < other or (rank == other and last < lasts[base + above])):
            break
        moved = heap[base + above]
        heap[base + slot] = moved
        ranks[base + slot] = other
        lasts[base + slot] = lasts[base + above]
        slot_of[uint64(moved)] = slot
        slot = above
    heap[base + slot] = key
    ranks[base + slot] = rank
    lasts[base + slot] = last
    slot_of[key] = slot


@kernel(void(uint64, uint64, float64, int64, uint64, uint64, _U32, _F64, _I64, _U32), allocates=False)
def _sift_down(slot, key, rank, last, base, size, heap, ranks, lasts, slot_of):  # type: ignore[no-untyped-def]
    """Places (key, rank, last) at `slot` or below."""
    while True:
        child = uint64(2) * slot + uint64(1)
        if child >= size:
            break
        lower = ranks[base + child]
        if child + uint64(1) < size:
            right = ranks[base + child + uint64(1)]
            if right < lower or (right == lower and lasts[base + child + uint64(1)] < lasts[base + child]):
                child += uint64(1)
                lower = right
        if not (lower < rank or (lower == rank and lasts[base + child] < last)):
            break
        moved = heap[base + child]
        heap[base + slot] = moved
        ranks[base + slot] = lower
        lasts[base + slot] = lasts[base + child]
        slot_of[uint64(moved)] = slot
        slot = child
    heap[base + slot] = key
    ranks[base + slot] = rank
    lasts[base + slot] = last
    slot_of[key] = slot


@kernel(uint64(uint64, uint64, _I64, _U32, _F64, _I64, _U32), allocates=False)
def _pop(c, base, count, heap, ranks, lasts, slot_of):  # type: ignore[no-untyped-def]
    top = uint64(heap[base])
    size = uint64(count[c]) - uint64(1)
    count[c] = size
    if size:
        end = base + size
        _sift_down(uint64(0), uint64(heap[end]), ranks[end], lasts[end], base, size, heap, ranks, lasts, slot_of)
    return top


@kernel(inline="always")
def _rank(key, c, now, layer, at_layer, is_used, gate, score, rank_of, cache):  # type: ignore[no-untyped-def]
    of = Candidate(
        now, now - cache.stamp[key], is_used != 0, layer, at_layer, cache.how[N_LAYERS], cache.sizes[key],
        cache.n_cached[key], cache.n_total[key], cache.profile[key], float64(gate), float64(score), cache.floor[c],
        cache.memory[2 * key : 2 * key + uint64(2)], cache.params,
    )  # fmt: skip
    return rank_of(of)


@kernel(LOOK_UP, allocates=False)
def look_up_ranked(first_event, first_lookup, keys, offsets, gates, scores, rank_of, cache, hits):  # type: ignore[no-untyped-def]
    """`link` is the caches' heaps, with `ranks` and `lasts` beside them. FLAG: a missed key may leave at once; the others as in
    queue.look_up_queue."""
    how, sizes, cache_of, base_of, capacity = cache.how, cache.sizes, cache.cache_of, cache.base_of, cache.capacity
    used, heap, resident, stamp, floor = cache.used, cache.link, cache.resident, cache.stamp, cache.floor
    slot_of, count, ranks, lasts, rank = cache.slot_of, cache.n_resident, cache.ranks, cache.lasts, cache.rank
    n_cached, n_total, last = cache.n_cached, cache.n_total, cache.last
    bypass, keep_overflow, hits_first = how[FLAG] != 0, how[KEEPS] != 0, how[HITS_FIRST] != 0
    has_gates, has_scores = gates.shape[0] > 0, scores.shape[0] > 0
    one_by_one = offsets.shape[0] == 0
    n_events = keys.shape[0] if one_by_one else offsets.shape[0] - 1
    for e in range(uint64(n_events)):
        start = e if one_by_one else uint64(offsets[e])
        end = e + uint64(1) if one_by_one else uint64(offsets[e + uint64(1)])
        if start == end:
            continue
        now = first_event + int64(e)
        first_key = uint64(uint32(keys[start]))
        c, layer = uint64(uint32(cache_of[first_key])), int64(cache.layer_of[first_key])
        base = uint64(base_of[c])
        missing = int64(0)
        place = int64(start)
        for i in range(start, end):
            key = uint64(uint32(keys[i]))
            is_hit = resident[key] != 0
            n_total[key] += 1
            n_cached[key] = n_cached[key] + 1 if is_hit else 1
            gate, score = gates[i] if has_gates else 0.0, scores[i] if has_scores else 0.0
            rank[key] = _rank(key, c, now, layer, layer, 1, gate, score, rank_of, cache)
            stamp[key] = now
            if is_hit or not hits_first:
                last[key] = first_lookup + place
                place += 1
            hits[i] = is_hit
            if is_hit:
                slot = uint64(slot_of[key])
                if rank[key] < ranks[base + slot]:
                    _sift_up(slot, key, rank[key], last[key], base, heap, ranks, lasts, slot_of)
                else:  # an equal rank leaves later too: it was used just now
                    _sift_down(slot, key, rank[key], last[key], base, uint64(count[c]), heap, ranks, lasts, slot_of)
            else:
                missing += sizes[key]
        if missing == 0 and used[c] <= capacity[c]:
            continue
        if one_by_one and missing > capacity[c]:
            continue  # larger than the cache: streamed
        if how[AGES] and used[c] + missing > capacity[c]:
            n_here = uint64(count[c])
            for slot in range(n_here):
                key = uint64(heap[base + slot])
                if stamp[key] != now:
                    of = int64(cache.layer_of[key])
                    ranks[base + slot] = rank[key] = _rank(key, c, now, of, layer, 0, 0.0, 0.0, rank_of, cache)
            for i in range(n_here // uint64(2)):
                slot = n_here // uint64(2) - uint64(1) - i
                at = base + slot
                _sift_down(slot, uint64(heap[at]), ranks[at], lasts[at], base, n_here, heap, ranks, lasts, slot_of)
        if not bypass:
            n_aside = 0  # members of this event are set aside at the end of the heap's own region
            while used[c] + missing > capacity[c] and count[c] > 0:
                top = _pop(c, base, count, heap, ranks, lasts, slot_of)
                if last[top] >= first_lookup + int64(start):
                    n_aside += 1
                    heap[base + uint64(count[c])] = top
                    # the freed slot holds the member until the loop ends; the next pop frees the slot before it
                else:
                    used[c] -= sizes[top]
                    resident[top], floor[c] = 0, rank[top]
                    if n_aside:
                        heap[base + uint64(count[c])] = heap[base + uint64(count[c] + n_aside)]
            for _ in range(n_aside):
                member = uint64(heap[base + uint64(count[c])])
                _sift_up(uint64(count[c]), member, rank[member], last[member], base, heap, ranks, lasts, slot_of)
                count[c] += 1
        for i in range(start, end):
            key = uint64(uint32(keys[i]))
            if not hits[i]:
                if hits_first:
                    last[key] = first_lookup + place
                    place += 1
                used[c] += sizes[key]
                resident[key] = 1
                _sift_up(uint64(count[c]), key, rank[key], last[key], base, heap, ranks, lasts, slot_of)
                count[c] += 1
        while used[c] > capacity[c] and (bypass or not keep_overflow):
            top = _pop(c, base, count, heap, ranks, lasts, slot_of)
            used[c] -= sizes[top]
            resident[top], floor[c] = 0, rank[top]


@kernel(SHRINK, allocates=False)
def shrink_ranked(cache):  # type: ignore[no-untyped-def]
    """By the ranks as they were evaluated last."""
    sizes, base_of, capacity, used, resident = cache.sizes, cache.base_of, cache.capacity, cache.used, cache.resident
    heap, slot_of, count, ranks, lasts = cache.link, cache.slot_of, cache.n_resident, cache.ranks, cache.lasts
    for c in range(uint64(capacity.shape[0])):
        while used[c] > capacity[c]:
            top = _pop(c, uint64(base_of[c]), count, heap, ranks, lasts, slot_of)
            used[c] -= sizes[top]
            resident[top], cache.floor[c] = 0, cache.rank[top]
