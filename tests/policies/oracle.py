"""The obvious cache: dictionaries and scans, one event at a time. Slow, and meant to be read."""

import numpy as np

WITH_MEMORY = ("lfru", "gdsf", "least-stale", "gate-weighted", "hysteresis", "hobbit")


def gate_of(now, key):
    """A made-up gate weight, exact in binary."""
    return ((7 * key + 13 * now) % 11 + 1) / 16


def obvious_hits(policy, events, sizes, capacity, profile=None, keep_overflow=False, hits_first=False, n_layers=1, n_profiled=0):
    """0/1 per lookup of `events` (lists of distinct keys) in ONE cache.

    policy: sieve, slru, s3-fifo, arc (below), lru, fifo, lfu, lfu-lifetime, static, belady or belady-bypass: the lowest rank
    leaves, ties by least recent use.
    hits_first: the hits of an event are used before its misses, else all in their order; nothing of a bound changes.
    n_profiled: events before the profile is there.
    """
    if policy in ("sieve", "slru", "s3-fifo", "arc"):
        return Lists(policy, sizes, capacity, keep_overflow).hits(events)
    ranked = Remembering(policy, sizes, n_layers) if policy in WITH_MEMORY else None
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
        if ranked:
            ranked.begin(now, event, missing)
        if len(event) == 1 and missing and sizes[event[0]] > capacity:
            continue
        for key in missing:
            resident[key] = True
        later = [k for event in events[now + 1 :] for k in event]
        # never used again: farther than everything, and the newest of them leaves first
        future = {k: later.index(k) if k in later else len(later) + used_at[k] for k in resident}
        farthest = {k: -future[k] for k in resident}
        seen = profile if now >= n_profiled else dict.fromkeys(resident, 0)
        ranks = {"lru": used_at, "fifo": entered, "lfu": cached, "lfu-lifetime": total, "static": seen, "belady": farthest}
        rank = ranks.get(policy.removesuffix("-bypass"))
        protected = [] if policy in ("static", "belady-bypass") else event
        while sum(sizes[k] for k in resident) > capacity:
            candidates = [k for k in resident if k not in protected] or ([] if keep_overflow else list(resident))
            if not candidates:
                break
            rank = ranked.ranks(candidates) if ranked else rank
            victim = min((rank[k], used_at[k], k) for k in candidates)[2]
            del resident[victim]
            if ranked:
                ranked.left(victim)
    return hits


class Remembering:
    """Policies that rank by more than counts: what they remember of every key, and ranks as they are at one time."""

    def __init__(self, policy, sizes, n_layers):
        self.policy, self.sizes, self.n_layers, self.per_layer = policy, sizes, n_layers, len(sizes) // n_layers
        self.now, self.floor, self.worth, self.cached, self.used, self.mass, self.count, self.end = 0, 0.0, {}, {}, {}, {}, {}, {}
        self.total, self.high = {}, {}

    def begin(self, now, event, missing):
        for key in event:
            since = now - self.used.get(key, -1)
            self.cached[key] = 1 if key in missing else self.cached[key] + 1
            self.used[key] = now
            self.worth[key] = self.floor + self.cached[key] / self.sizes[key]
            self.total[key] = self.total.get(key, 0) + 1
            self.high[key] = self.high.get(key, 0) + (gate_of(now, key) >= 0.4)
            self.mass[key] = self.mass.get(key, 0.0) + gate_of(now, key)
            self.count[key] = self.count.get(key, 0.0) * 2.0 ** (-since / (16 * self.n_layers)) + 1
            is_pinned = self.count[key] > 4 or self.end.get(key, 0.0) > now
            self.end[key] = now + 16 * self.n_layers * np.log2(self.count[key] / 2) if is_pinned else 0.0
        self.now, self.at_layer = now, event[0] // self.per_layer

    def left(self, key):
        self.floor = self.gdsf(key)

    def ranks(self, keys):
        return {key: getattr(self, self.policy.replace("-", "_"))(key) for key in keys}

    def lfru(self, key):
        return self.cached[key] / (self.now - self.used[key] + 1)

    def gdsf(self, key):
        return self.worth[key]

    def least_stale(self, key):
        is_fresh = self.used[key] // self.n_layers == self.now // self.n_layers
        turns = (key // self.per_layer - self.at_layer - 1) % self.n_layers + 1
        return is_fresh, -turns

    def gate_weighted(self, key):
        return self.mass[key]

    def hobbit(self, key):
        passes = self.now / self.n_layers + 1
        lately = passes - (self.now - self.used[key]) / self.n_layers
        ahead = (key // self.per_layer - self.at_layer) % self.n_layers
        used = 0.25 * lately + 0.25 * self.total[key] + 0.25 * self.high[key]
        return used / passes + 0.25 * (1 - ahead / self.n_layers)

    def hysteresis(self, key):
        return max(self.end[key], self.used[key])


class Lists:
    """SIEVE, SLRU, S3-FIFO and ARC as their papers have them: lists of keys, the oldest first; `ghosts` are not resident."""

    def __init__(self, policy, sizes, capacity, keep_overflow):
        self.policy, self.sizes, self.capacity, self.keep = policy, sizes, capacity, keep_overflow
        self.lists, self.freq, self.hand, self.target, self.has_evicted, self.event = [[], [], [], []], {}, None, 0.0, False, []
        self.ghosts = {"s3-fifo": (2,), "arc": (2, 3)}.get(policy, ())
        is_even = len({*(sizes.values() if isinstance(sizes, dict) else sizes)}) == 1 and not keep_overflow
        self.unit = sizes[0] if is_even else 1

    def share(self, frac):
        return int(self.capacity // self.unit * frac) * self.unit

    def size(self, of):
        return sum(self.sizes[key] for key in self.lists[of])

    def resident(self):
        return [key for of, keys in enumerate(self.lists) if of not in self.ghosts for key in keys]

    def used(self):
        return sum(self.sizes[key] for key in self.resident())

    def oldest(self, of):
        return next((key for key in self.lists[of] if of in self.ghosts or key not in self.event), None)

    def move(self, key, to=None):
        for keys in self.lists:
            if key in keys:
                keys.remove(key)
        if to is not None:
            self.lists[to].append(key)

    def hits(self, events):
        found = []
        for self.event in events:
            there = [key for key in self.event if key in self.resident()]
            found += [int(key in there) for key in self.event]
            for key in there:
                self.hit(key)
            for key in (key for key in self.event if key not in there):
                self.miss(key)
            while self.used() > max(self.capacity, sum(self.sizes[key] for key in self.event if key in self.resident())):
                self.evict(0, None)
        return found

    def hit(self, key):
        self.freq[key] = self.freq.get(key, 0) + 1
        if self.policy == "arc":
            self.move(key, 1)
        if self.policy == "slru":
            at = min(3, 1 + next(of for of in range(4) if key in self.lists[of]))
            self.move(key, at)
            while at >= 0 and self.size(at) > self.share(1 / 4):
                while self.size(at) > self.share(1 / 4) and self.oldest(at) is not None:
                    self.move(self.oldest(at), at - 1 if at else None)
                at -= 1

    def miss(self, key):
        size, ghost = self.sizes[key], next((of for of in self.ghosts if key in self.lists[of]), None)
        if self.policy == "arc" and ghost == 2:
            self.target = min(self.capacity, self.target + max(self.size(3) / self.size(2), 1) * size)
        if self.policy == "arc" and ghost == 3:
            self.target = max(0, self.target - max(self.size(2) / self.size(3), 1) * size)
        self.move(key)
        if size > self.capacity and (len(self.event) == 1 or not self.keep):
            return
        while {*self.resident()} - {*self.event} and self.used() + size > self.capacity:
            self.evict(size, ghost)
        if self.keep or self.used() + size <= self.capacity:
            self.move(key, self.entry(size, ghost))
            self.freq[key] = 0

    def entry(self, size, ghost):
        if self.policy == "slru":
            return next((of for of in range(4) if self.size(of) + size <= self.share(1 / 4)), 0)
        if self.policy == "s3-fifo":
            return int(ghost is not None or (not self.has_evicted and self.size(0) >= self.share(0.1)))
        return int(self.policy == "arc" and ghost is not None)

    def evict(self, size, ghost):
        getattr(self, self.policy.replace("-", "_"))(size, ghost)

    def sieve(self, size, ghost):
        queue = self.lists[0]
        at = 0 if self.hand is None else queue.index(self.hand)
        while queue[at] in self.event or self.freq[queue[at]]:
            self.freq[queue[at]] *= queue[at] in self.event
            at = (at + 1) % len(queue)
        self.hand = queue[at + 1] if at + 1 < len(queue) else None
        del queue[at]

    def slru(self, size, ghost):
        self.move(next(self.oldest(of) for of in range(4) if self.oldest(of) is not None))

    def s3_fifo(self, size, ghost):
        self.has_evicted = True
        while True:
            main = self.oldest(1)
            if main is not None and (self.oldest(0) is None or self.size(1) > self.capacity - self.share(0.1)):
                while self.freq[main]:
                    self.freq[main] = min(self.freq[main], 3) - 1
                    self.move(main, 1)
                    main = self.oldest(1)
                return self.move(main)
            while (key := self.oldest(0)) is not None:
                if self.freq[key] < 2:
                    while self.lists[2] and self.size(2) + self.sizes[key] > self.share(0.9):
                        self.move(self.oldest(2))
                    return self.move(key, 2 if self.sizes[key] <= self.share(0.9) else None)
                self.freq[key] = 0
                self.move(key, 1)

    def arc(self, size, ghost):
        recent = self.oldest(0)
        if ghost is None:
            if self.size(0) + self.size(2) + size > self.capacity:
                if recent is not None and (not self.lists[2] or self.size(0) + size > self.capacity):
                    return self.move(recent)
                if self.lists[2]:
                    self.move(self.oldest(2))
            elif sum(map(self.size, range(4))) + size > 2 * self.capacity and self.lists[3]:
                self.move(self.oldest(3))
        over = self.size(0) - self.target
        is_recent = recent is not None and (over > 0 or (ghost == 3 and over == 0) or self.oldest(1) is None)
        return self.move(recent, 2) if is_recent else self.move(self.oldest(1), 3)
