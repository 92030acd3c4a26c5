"""The obvious cache: dictionaries and scans, one event at a time. Slow, and meant to be read."""


def obvious_hits(policy, events, sizes, capacity, profile=None, keep_overflow=False, hits_first=False):
    """0/1 per lookup of `events` (lists of distinct keys) in ONE cache.

    policy: sieve, lru, fifo, lfu, lfu-lifetime, static, belady or belady-bypass. Lowest rank leaves, ties by least recent use.
    hits_first: the hits of an event are used before its misses, else all in their order; nothing of a bound changes.
    """
    if policy == "sieve":
        return sieve_hits(events, sizes, capacity, keep_overflow)
    resident, entered, used_at, cached, total, hits, clock = {}, {}, {}, {}, {}, [], 0
    for now, event in enumerate(events):
        missing = []
        hits += [int(key in resident) for key in event]
        is_engine = hits_first and not policy.startswith("belady")
        for key in sorted(event, key=lambda key: key not in resident) if is_engine else event:
            clock += 1
            total[key] = total.get(key, 0) + 1
            if key not in resident:
                missing.append(key)
                entered[key], cached[key] = clock, 0
            cached[key] += 1
            used_at[key] = clock
        if len(event) == 1 and missing and sizes[event[0]] > capacity:
            continue
        for key in missing:
            resident[key] = True
        later = [k for event in events[now + 1 :] for k in event]
        # never used again: farther than everything, and the newest of them leaves first
        future = {k: later.index(k) if k in later else len(later) + used_at[k] for k in resident}
        farthest = {k: -future[k] for k in resident}
        ranks = {"lru": used_at, "fifo": entered, "lfu": cached, "lfu-lifetime": total, "static": profile, "belady": farthest}
        rank = ranks[policy.removesuffix("-bypass")]
        protected = [] if policy in ("static", "belady-bypass") else event
        while sum(sizes[k] for k in resident) > capacity:
            candidates = [k for k in resident if k not in protected] or ([] if keep_overflow else list(resident))
            if not candidates:
                break
            del resident[min((rank[k], used_at[k], k) for k in candidates)[2]]
    return hits


def sieve_hits(events, sizes, capacity, keep_overflow):
    """SIEVE as its paper has it: a queue, newest last, and a hand that stands at an expert of it, or at None: the oldest."""
    queue, visited, hand, hits = [], set(), None, []

    def evict(event):
        nonlocal hand
        at = 0 if hand is None else queue.index(hand)
        while queue[at] in event or queue[at] in visited:
            visited.difference_update({queue[at]} - set(event))
            at = (at + 1) % len(queue)
        hand = queue[at + 1] if at + 1 < len(queue) else None
        del queue[at]

    for event in events:
        missed = [key for key in event if key not in queue]
        hits += [int(key not in missed) for key in event]
        visited.update(set(event) - set(missed))
        for key in [*missed, None]:
            if key is not None and sizes[key] > capacity and (len(event) == 1 or not keep_overflow):
                continue
            size = 0 if key is None else sizes[key]
            while set(queue) - set(event) and sum(sizes[k] for k in queue) + size > capacity:
                evict(event)
            if key is not None and (keep_overflow or sum(sizes[k] for k in queue) + size <= capacity):
                queue.append(key)
                visited.discard(key)
    return hits
