"""The ranked kernel: any policy that can rank experts, one tournament tree per cache, O(log n) per lookup.

Every resident has a place, every place a leaf, and a node names the place below it whose expert leaves first. A path to the top
is known beforehand, so its nodes are read ahead, where a heap has to compare before it knows what to read. Who enters takes the
place of who left: one path serves both, and what is compared lies together.
The lowest rank leaves, ties by least recent use. The rank function is a first-class function of one fixed signature, so that
the compiled kernel is cached on disk and serves every policy. Unsigned indices as in queue.py.
"""

import numpy as np

from tokentape.policies.kernels import F64, I64, U32, float64, int64, kernel, uint32, uint64, void
from tokentape.policies.protocol import AGES, CACHE, FLAG, HITS_FIRST, KEEPS, LOOK_UP, N_LAYERS, N_NAN, RANK, SHRINK, Candidate

SPARE = 8  # numbers of a cache's tree beside two for each of its experts
# A tree: the place that leaves first; how many leaves there are; the place that was left last, whose `key_of` is the one left
# before it; the leaves, the nodes over four of them each, those over four of these, and so on.
N_LEAVES, LEFT, LEAVES = 1, 2, 3


@kernel(inline="always")
def _lower(one, other, order, latest):  # type: ignore[no-untyped-def]
    """Which of two places leaves first; without a branch, which would be guessed wrong."""
    is_other = (order[other] < order[one]) | ((order[other] == order[one]) & (latest[other] < latest[one]))
    return other if is_other else one


@kernel(inline="always")
def _ordered(rank):  # type: ignore[no-untyped-def]
    """An integer that compares as the rank does: a comparison of floats is a branch, which would be guessed wrong."""
    bits = np.float64(rank + 0.0).view(np.int64)
    return bits ^ ((bits >> 63) & int64(0x7FFF_FFFF_FFFF_FFFF))


@kernel(inline="always")
def _rank_of(order):  # type: ignore[no-untyped-def]
    return np.int64(order ^ ((order >> 63) & int64(0x7FFF_FFFF_FFFF_FFFF))).view(np.float64)


@kernel(void(uint64, uint64, uint64, uint64, U32, I64, I64), allocates=False)
def _settle(place, winner, base, root, tree, order, latest):  # type: ignore[no-untyped-def]
    """Writes at a leaf who stands there, `place` or nobody, and in the nodes above it who leaves first now."""
    at, n, start = place - base, uint64(tree[root + uint64(N_LEAVES)]), root + uint64(LEAVES)
    tree[start + at] = winner
    while n > uint64(1):
        of = start + (at & ~uint64(3))
        one = uint64(tree[of + ((at + uint64(1)) & uint64(3))])
        two = uint64(tree[of + ((at + uint64(2)) & uint64(3))])
        three = uint64(tree[of + ((at + uint64(3)) & uint64(3))])
        winner = _lower(winner, _lower(_lower(one, two, order, latest), three, order, latest), order, latest)
        start += (n + uint64(3)) & ~uint64(3)
        at >>= uint64(2)
        n = (n + uint64(3)) >> uint64(2)
        if winner != place and uint64(tree[start + at]) == winner:
            return  # so it was before
        tree[start + at] = winner
    tree[root] = winner


@kernel(inline="always")
def _is_first_of_four(place, base, root, tree):  # type: ignore[no-untyped-def]
    """Whether the node over a place names it: where it does not, it may leave later and no node changes."""
    n = uint64(tree[root + uint64(N_LEAVES)])
    return n == uint64(1) or tree[root + uint64(LEAVES) + ((n + uint64(3)) & ~uint64(3)) + ((place - base) >> uint64(2))] == place


@kernel(void(uint64, U32, I64, I64), allocates=False)
def _settle_all(root, tree, order, latest):  # type: ignore[no-untyped-def]
    """All nodes, by the leaves."""
    n, start = uint64(tree[root + uint64(N_LEAVES)]), root + uint64(LEAVES)
    while n > uint64(1):
        above = start + ((n + uint64(3)) & ~uint64(3))
        n = (n + uint64(3)) >> uint64(2)
        for at in range(n):
            of = start + uint64(4) * at
            one = _lower(uint64(tree[of]), uint64(tree[of + uint64(1)]), order, latest)
            two = _lower(uint64(tree[of + uint64(2)]), uint64(tree[of + uint64(3)]), order, latest)
            tree[above + at] = _lower(one, two, order, latest)
        start = above
    tree[root] = tree[start]


@kernel(inline="always")
def _rank(key, c, now, at_layer, is_used, gate, score, rank_of, cache):  # type: ignore[no-untyped-def]
    of = Candidate(
        now, now - cache.stamp[key], is_used != 0, int64(cache.layer_of[key]), at_layer, cache.how[N_LAYERS], cache.sizes[key],
        cache.n_cached[key], cache.n_total[key], cache.profile[key], float64(gate), float64(score), cache.floor[c],
        cache.memory[2 * key : 2 * key + uint64(2)], cache.params,
    )  # fmt: skip
    rank = rank_of(of)
    if rank != rank:  # a branch that is never taken, and no write, which costs a tenth
        cache.how[N_NAN] += 1
    return _ordered(rank)


@kernel(inline="always")
def _tree_of(c, cache):  # type: ignore[no-untyped-def]
    """Its first key and place, how many it has, and where its tree begins."""
    base, n_caches = uint64(cache.base_of[c]), uint64(cache.capacity.shape[0])
    end = cache.base_of[c + uint64(1)] if c + uint64(1) < n_caches else cache.sizes.shape[0]
    return base, uint64(end) - base, uint64(2) * base + c * uint64(SPARE)


@kernel(inline="always")
def _enter(key, c, base, n, root, cache):  # type: ignore[no-untyped-def]
    """A place for a key: the one that was left last, else a new one. Leaves: at least as many, a power of four or all n."""
    tree, nobody, place = cache.link, uint64(cache.sizes.shape[0]), uint64(cache.link[root + uint64(LEFT)])
    if place != nobody:
        tree[root + uint64(LEFT)] = cache.key_of[place]
    else:
        place, n_leaves = base + uint64(cache.n_resident[c]), uint64(tree[root + uint64(N_LEAVES)])
        cache.n_resident[c] += 1
        if place - base >= n_leaves:
            tree[root + uint64(N_LEAVES)] = min(n, max(uint64(1), uint64(4) * n_leaves))
            for at in range(uint64(LEAVES) + n_leaves, uint64(2) * n + uint64(SPARE)):
                tree[root + at] = nobody
            _settle_all(root, tree, cache.order, cache.latest)
    cache.slot_of[key], cache.key_of[place] = place, key
    cache.order[place], cache.latest[place] = cache.rank[key], cache.last[key]
    _settle(place, place, base, root, tree, cache.order, cache.latest)


@kernel(inline="always")
def _leave(place, c, root, cache):  # type: ignore[no-untyped-def]
    """Who stands at a place leaves the cache, but for the tree."""
    key = uint64(cache.key_of[place])
    cache.used[c] -= cache.sizes[key]
    cache.resident[key], cache.floor[c] = 0, _rank_of(cache.order[place])
    cache.key_of[place], cache.link[root + uint64(LEFT)] = cache.link[root + uint64(LEFT)], place


@kernel(inline="always")
def _rank_anew(c, base, root, now, at_layer, rank_of, cache):  # type: ignore[no-untyped-def]
    """All residents of a cache but those of the event."""
    for place in range(base, base + uint64(cache.n_resident[c])):
        key = uint64(cache.key_of[place])
        if uint64(cache.link[root + uint64(LEAVES) + place - base]) == place and cache.stamp[key] != now:
            ranked = _rank(key, c, now, at_layer, 0, 0.0, 0.0, rank_of, cache)
            cache.order[place] = ranked
    _settle_all(root, cache.link, cache.order, cache.latest)


@kernel(void(int64, F64, RANK, CACHE), allocates=False)
def see_profile(now, counted, rank_of, cache):  # type: ignore[no-untyped-def]
    """What was counted beforehand is there before event `now`, and all residents are ranked by it. counted: (K,)."""
    for key in range(counted.shape[0]):
        cache.profile[key] = counted[key]
    for c in range(uint64(cache.capacity.shape[0])):
        base, _, root = _tree_of(c, cache)
        _rank_anew(c, base, root, now, int64(0), rank_of, cache)


@kernel(LOOK_UP, allocates=False)
def look_up_ranked(first_event, first_lookup, keys, offsets, gates, scores, rank_of, cache, hits):  # type: ignore[no-untyped-def]
    """`link` is the caches' trees. FLAG: a missed key may leave at once; the others as in queue.look_up_queue."""
    how, sizes, cache_of, capacity = cache.how, cache.sizes, cache.cache_of, cache.capacity
    used, tree, resident, stamp, slot_of = cache.used, cache.link, cache.resident, cache.stamp, cache.slot_of
    n_cached, n_total, rank, last = cache.n_cached, cache.n_total, cache.rank, cache.last
    order, latest = cache.order, cache.latest
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
        own = uint64(uint32(keys[end - uint64(1)]))  # of the event's layer: what is foretold of another stands before
        c, layer = uint64(uint32(cache_of[own])), int64(cache.layer_of[own])
        base, n, root = _tree_of(c, cache)
        missing = int64(0)
        nth = int64(start)
        for i in range(start, end):
            key = uint64(uint32(keys[i]))
            is_hit = resident[key] != 0
            n_total[key] += 1
            n_cached[key] = n_cached[key] + 1 if is_hit else 1
            gate, score = gates[i] if has_gates else 0.0, scores[i] if has_scores else 0.0
            ranked = _rank(key, c, now, layer, 1, gate, score, rank_of, cache)
            stamp[key] = now
            hits[i] = is_hit
            if is_hit:
                place = uint64(slot_of[key])
                is_later = ranked >= order[place]
                order[place], latest[place] = ranked, first_lookup + nth
                nth += 1
                if not is_later or _is_first_of_four(place, base, root, tree):
                    _settle(place, place, base, root, tree, order, latest)
                continue
            missing += sizes[key]
            rank[key] = ranked
            if not hits_first:
                last[key] = first_lookup + nth
                nth += 1
        if missing == 0 and used[c] <= capacity[c]:
            continue
        if one_by_one and missing > capacity[c]:
            continue  # larger than the cache: streamed
        if how[AGES] and used[c] + missing > capacity[c]:
            _rank_anew(c, base, root, now, layer, rank_of, cache)
        left = nobody  # the place that was left last, while it is in the tree
        while not bypass and used[c] + missing > capacity[c]:
            if left != nobody:
                _settle(left, nobody, base, root, tree, order, latest)
                left = nobody
            top = uint64(tree[root])
            if top == nobody:
                break
            if latest[top] < first_lookup + int64(start):
                _leave(top, c, root, cache)
                left = top
            else:  # of this event: set aside
                _settle(top, nobody, base, root, tree, order, latest)
        for i in range(start, end):
            key = uint64(uint32(keys[i]))
            if not hits[i]:
                if hits_first:
                    last[key] = first_lookup + nth
                    nth += 1
                used[c] += sizes[key]
                resident[key] = 1
                _enter(key, c, base, n, root, cache)
                left = nobody
            elif uint64(tree[root + uint64(LEAVES) + uint64(slot_of[key]) - base]) == nobody:
                _settle(uint64(slot_of[key]), uint64(slot_of[key]), base, root, tree, order, latest)
        if left != nobody:
            _settle(left, nobody, base, root, tree, order, latest)
        while used[c] > capacity[c] and (bypass or not keep_overflow):
            top = uint64(tree[root])
            _settle(top, nobody, base, root, tree, order, latest)
            _leave(top, c, root, cache)


@kernel(SHRINK, allocates=False)
def shrink_ranked(cache):  # type: ignore[no-untyped-def]
    """By the ranks as they were evaluated last."""
    for c in range(uint64(cache.capacity.shape[0])):
        base, _, root = _tree_of(c, cache)
        while cache.used[c] > cache.capacity[c]:
            top = uint64(cache.link[root])
            _settle(top, uint64(cache.sizes.shape[0]), base, root, cache.link, cache.order, cache.latest)
            _leave(top, c, root, cache)


@kernel(SHRINK, allocates=False)
def settle_ranked(cache):  # type: ignore[no-untyped-def]
    """All trees, after who is resident was written."""
    for c in range(uint64(cache.capacity.shape[0])):
        base, n, root = _tree_of(c, cache)
        cache.n_resident[c], cache.link[root + uint64(N_LEAVES)] = 0, 0
        cache.link[root] = cache.link[root + uint64(LEFT)] = cache.sizes.shape[0]
        for key in range(base, base + n):
            if cache.resident[key]:
                _enter(key, c, base, n, root, cache)
