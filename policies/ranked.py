"""The ranked kernel: any policy that can rank experts, one tournament tree per cache, O(log n) per lookup.

Every expert of a cache has a leaf; a node names the expert below it that leaves first. A path to the top is known beforehand, so
its nodes are read ahead, where a heap has to compare before it knows what to read.
The lowest rank leaves, ties by least recent use. The rank function is a first-class function of one fixed signature, so that
the compiled kernel is cached on disk and serves every policy. Unsigned indices as in queue.py.
"""

import numpy as np

from tokentape.policies.kernels import array, float64, int64, kernel, uint8, uint32, uint64, void
from tokentape.policies.protocol import AGES, FLAG, HITS_FIRST, KEEPS, LOOK_UP, N_LAYERS, SHRINK, Candidate

_I64, _U8, _U32 = (array(t, 1) for t in (int64, uint8, uint32))
SPARE = 8  # nodes of a cache's tree beside two for each of its leaves


@kernel(inline="always")
def _lower(one, other, rank, last):  # type: ignore[no-untyped-def]
    """Which of two leaves first; without a branch, which would be guessed wrong."""
    is_other = (rank[other] < rank[one]) | ((rank[other] == rank[one]) & (last[other] < last[one]))
    return other if is_other else one


@kernel(inline="always")
def _ordered(rank):  # type: ignore[no-untyped-def]
    """An integer that compares as the rank does: a comparison of floats is a branch, which would be guessed wrong."""
    bits = np.float64(rank + 0.0).view(np.int64)
    return bits ^ ((bits >> 63) & int64(0x7FFF_FFFF_FFFF_FFFF))


@kernel(inline="always")
def _rank_of(order):  # type: ignore[no-untyped-def]
    return np.int64(order ^ ((order >> 63) & int64(0x7FFF_FFFF_FFFF_FFFF))).view(np.float64)


@kernel(void(uint64, uint64, uint64, uint64, uint64, _U32, _I64, _I64), allocates=False)
def _settle(key, winner, at, n, start, tree, order, last):  # type: ignore[no-untyped-def]
    """Writes at leaf `at` of n who stands there, `key` or nobody, and in the nodes above it who leaves first now."""
    root = start
    start += uint64(1)
    tree[start + at] = winner
    while n > uint64(1):
        of = start + (at & ~uint64(3))
        one = uint64(tree[of + ((at + uint64(1)) & uint64(3))])
        two = uint64(tree[of + ((at + uint64(2)) & uint64(3))])
        three = uint64(tree[of + ((at + uint64(3)) & uint64(3))])
        winner = _lower(winner, _lower(_lower(one, two, order, last), three, order, last), order, last)
        start += (n + uint64(3)) & ~uint64(3)
        at >>= uint64(2)
        n = (n + uint64(3)) >> uint64(2)
        if winner != key and uint64(tree[start + at]) == winner:
            return  # so it was before
        tree[start + at] = winner
    tree[root] = winner


@kernel(void(uint64, uint64, uint64, _U8, _U32, _I64, _I64), allocates=False)
def _settle_all(base, n, start, resident, tree, order, last):  # type: ignore[no-untyped-def]
    """The whole tree, by who is resident."""
    root, nobody = start, uint64(resident.shape[0])
    start += uint64(1)
    for key in range(base, base + n):
        tree[start + key - base] = key if resident[key] else nobody
    while n > uint64(1):
        above = start + ((n + uint64(3)) & ~uint64(3))
        n = (n + uint64(3)) >> uint64(2)
        for at in range(n):
            of = start + uint64(4) * at
            one = _lower(uint64(tree[of]), uint64(tree[of + uint64(1)]), order, last)
            two = _lower(uint64(tree[of + uint64(2)]), uint64(tree[of + uint64(3)]), order, last)
            tree[above + at] = _lower(one, two, order, last)
        start = above
    tree[root] = tree[start]


@kernel(inline="always")
def _rank(key, c, now, layer, at_layer, is_used, gate, score, rank_of, cache):  # type: ignore[no-untyped-def]
    of = Candidate(
        now, now - cache.stamp[key], is_used != 0, layer, at_layer, cache.how[N_LAYERS], cache.sizes[key],
        cache.n_cached[key], cache.n_total[key], cache.profile[key], float64(gate), float64(score), cache.floor[c],
        cache.memory[2 * key : 2 * key + uint64(2)], cache.params,
    )  # fmt: skip
    return _ordered(rank_of(of))


@kernel(inline="always")
def _tree_of(c, cache):  # type: ignore[no-untyped-def]
    """Its first key, how many it has, and where its tree begins."""
    base, n_caches = uint64(cache.base_of[c]), uint64(cache.capacity.shape[0])
    end = cache.base_of[c + uint64(1)] if c + uint64(1) < n_caches else cache.sizes.shape[0]
    return base, uint64(end) - base, uint64(2) * base + c * uint64(SPARE)


@kernel(LOOK_UP, allocates=False)
def look_up_ranked(first_event, first_lookup, keys, offsets, gates, scores, rank_of, cache, hits):  # type: ignore[no-untyped-def]
    """`link` is the caches' trees: who leaves first of all, then the leaves, the nodes over four of them each, those over four of
    these, and so on. FLAG: a missed key may leave at once; the others as in queue.look_up_queue."""
    how, sizes, cache_of, capacity = cache.how, cache.sizes, cache.cache_of, cache.capacity
    used, tree, resident, stamp, floor = cache.used, cache.link, cache.resident, cache.stamp, cache.floor
    n_cached, n_total, last, rank = cache.n_cached, cache.n_total, cache.last, cache.rank
    bypass, keep_overflow, hits_first = how[FLAG] != 0, how[KEEPS] != 0, how[HITS_FIRST] != 0
    has_gates, has_scores = gates.shape[0] > 0, scores.shape[0] > 0
    one_by_one = offsets.shape[0] == 0
    n_events = keys.shape[0] if one_by_one else offsets.shape[0] - 1
    nobody = uint64(sizes.shape[0])
    for e in range(uint64(n_events)):
        start = e if one_by_one else uint64(offsets[e])
        end = e + uint64(1) if one_by_one else uint64(offsets[e + uint64(1)])
        if start == end:
            continue
        now = first_event + int64(e)
        first_key = uint64(uint32(keys[start]))
        c, layer = uint64(uint32(cache_of[first_key])), int64(cache.layer_of[first_key])
        base, n, tree_at = _tree_of(c, cache)
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
                _settle(key, key, key - base, n, tree_at, tree, rank, last)
            else:
                missing += sizes[key]
        if missing == 0 and used[c] <= capacity[c]:
            continue
        if one_by_one and missing > capacity[c]:
            continue  # larger than the cache: streamed
        if how[AGES] and used[c] + missing > capacity[c]:
            for key in range(base, base + n):
                if resident[key] and stamp[key] != now:
                    rank[key] = _rank(key, c, now, int64(cache.layer_of[key]), layer, 0, 0.0, 0.0, rank_of, cache)
            _settle_all(base, n, tree_at, resident, tree, rank, last)
        if not bypass:
            while used[c] + missing > capacity[c]:
                top = uint64(tree[tree_at])
                if top == nobody:
                    break
                _settle(top, nobody, top - base, n, tree_at, tree, rank, last)
                if last[top] < first_lookup + int64(start):  # else of this event: set aside
                    used[c] -= sizes[top]
                    resident[top], floor[c] = 0, _rank_of(rank[top])
        for i in range(start, end):
            key = uint64(uint32(keys[i]))
            if not hits[i]:
                if hits_first:
                    last[key] = first_lookup + place
                    place += 1
                used[c] += sizes[key]
                resident[key] = 1
            if not hits[i] or uint64(tree[tree_at + uint64(1) + key - base]) == nobody:
                _settle(key, key, key - base, n, tree_at, tree, rank, last)
        while used[c] > capacity[c] and (bypass or not keep_overflow):
            top = uint64(tree[tree_at])
            _settle(top, nobody, top - base, n, tree_at, tree, rank, last)
            used[c] -= sizes[top]
            resident[top], floor[c] = 0, _rank_of(rank[top])


@kernel(SHRINK, allocates=False)
def shrink_ranked(cache):  # type: ignore[no-untyped-def]
    """By the ranks as they were evaluated last."""
    for c in range(uint64(cache.capacity.shape[0])):
        base, n, start = _tree_of(c, cache)
        while cache.used[c] > cache.capacity[c]:
            top = uint64(cache.link[start])
            _settle(top, uint64(cache.sizes.shape[0]), top - base, n, start, cache.link, cache.rank, cache.last)
            cache.used[c] -= cache.sizes[top]
            cache.resident[top], cache.floor[c] = 0, _rank_of(cache.rank[top])


@kernel(SHRINK, allocates=False)
def settle_ranked(cache):  # type: ignore[no-untyped-def]
    """All trees, after who is resident was written."""
    for c in range(uint64(cache.capacity.shape[0])):
        base, n, start = _tree_of(c, cache)
        _settle_all(base, n, start, cache.resident, cache.link, cache.rank, cache.last)
