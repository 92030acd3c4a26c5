"""Sliced serving with dictionaries and scans: one event at a time, no kernels. Slow, and meant to be read."""

import numpy as np


def natural(values, k):
    """Indices of the k largest, falling, ties by lowest index."""
    return sorted(range(len(values)), key=lambda e: (-values[e], e))[:k]


def choose(router, name, values, gates, resident, strength, memory, layer, k):
    """The k experts a shipped router chooses; memory: lists of a layer's logit spreads so far."""
    rank = natural(values, len(values))
    if name == "cache_prior":
        memory[layer].append(np.float32(values.max()) - np.float32(values.min()))
        bonus = np.float32(strength * (sum(map(float, memory[layer])) / len(memory[layer])))
        liked = {e for e in range(len(values)) if resident[e]} | set(rank[: router.protect])
        return natural([v + bonus if e in liked else v for e, v in enumerate(values)], k)
    if name == "max_rank":
        top = rank[: max(k, router.max_rank)]
        return sorted(top, key=lambda e: not resident[e])[:k]
    if name == "cumsum":
        mass, length = 0.0, 0
        while length < len(rank) and (length == 0 or mass < router.share_frac * sum(map(float, gates))):
            mass += float(gates[rank[length]])
            length += 1
        prefix = rank[: max(k, length)]
        return sorted(prefix, key=lambda e: not (resident[e] or e in rank[: router.protect]))[:k]
    if name == "buddy":
        chosen, free = rank[:k], {e for e in range(len(values)) if resident[e] and e not in rank[:k]}
        for j, e in enumerate(chosen):
            alike = [b for b in sorted(free) if router.similarity[layer][e][b] >= router.threshold]
            if not resident[e] and alike:
                chosen[j] = max(alike, key=lambda b: (router.similarity[layer][e][b], -b))
                free.remove(chosen[j])
        return chosen
    return rank[:k]


class ObviousCache:
    """Two dictionaries in order of use; keys (layer, expert)."""

    def __init__(self, capacity, msb_bytes, lsb_bytes):
        self.capacity, self.msb_bytes, self.lsb_bytes = capacity, msb_bytes, lsb_bytes
        self.msb, self.lsb, self.pinned = {}, {}, set()

    @property
    def used(self):
        return len(self.msb) * self.msb_bytes + len(self.lsb) * self.lsb_bytes

    def insert(self, slices, key, size):
        pinned = sum(self.msb_bytes for k in self.msb if k in self.pinned)
        pinned += sum(self.lsb_bytes for k in self.lsb if k in self.pinned)
        if pinned + size > self.capacity:
            return  # streamed
        while self.used + size > self.capacity:
            free = [k for k in self.lsb if k not in self.pinned]
            if free:
                del self.lsb[free[0]]
            else:
                victim = next(k for k in self.msb if k not in self.pinned)
                del self.msb[victim]
                self.lsb.pop(victim, None)
        slices[key] = True

    def look_up(self, slices, key, size):
        """True for a hit; a missing slice is read and kept if it fits."""
        if key in slices:
            slices[key] = slices.pop(key)
            return True
        self.insert(slices, key, size)
        return False


def obvious_decode(system, name, n_layers, k, msb_bytes, lsb_bytes, capacity, layer, values, gates):
    """Per event: (ids, is_high, msb_hit, lsb_hit, lsb_needed, degraded, flash, dram) and the final cache."""
    precision, budget, cache_rules, high = system.precision, system.budget, system.cache, msb_bytes + lsb_bytes
    sliced = precision.is_sliced and lsb_bytes > 0
    unit = high if precision.is_high and not sliced else msb_bytes
    cache = ObviousCache(capacity, unit, lsb_bytes if sliced else 0)
    memory, step, last, credit, strength, mean, spent = (
        [[] for _ in range(n_layers)],
        -1,
        10**9,
        0.0,
        system.router.strength,
        0,
        0,
    )
    used_lsb, rows, target = set(), [], budget.target_frac
    for at, z, g in zip(layer.tolist(), values, gates, strict=True):
        if at <= last:
            if cache_rules.lsb_policy == "after_use":
                cache.lsb = {key: True for key in cache.lsb if key not in used_lsb}
            if budget.kind == 2 and step >= 0:
                miss = spent / (n_layers * k * high)
                mean = budget.decay * mean + (1 - budget.decay) * miss if step else miss
                if step >= system.free_steps:
                    strength = min(max(strength + budget.gain * (mean - target), 0.0), 1.0)
            step, used_lsb, spent = step + 1, set(), 0
        last, bound = at, step >= system.free_steps
        debt = bound and budget.kind == 1 and credit < 0
        over = debt or (bound and cache_rules.skip_lsb_when_over_budget and mean > target)
        resident = [(at, e) in cache.msb for e in range(len(z))]
        if debt and sum(resident) >= k:
            chosen = natural([v if r else v - 1e6 for v, r in zip(z.astype(float), resident, strict=True)], k)
        else:
            chosen = choose(system.router, name, z, g, resident, strength, memory, at, k)
        chosen = sorted(chosen, key=lambda e: (-g[e], -z[e], e))
        cache.pinned = {(at, e) for e in chosen}
        total = sum(float(g[e]) for e in chosen)
        flags, flash, dram = [], 0, 0
        for e in chosen:
            key, is_high, lsb_hit, needed, degraded = (at, e), int(precision.is_high and not sliced), 0, 0, 0
            msb_hit = cache.look_up(cache.msb, key, unit)
            flash, dram = flash + unit * (not msb_hit), dram + unit
            if sliced and (precision.tau < 0 or float(g[e]) > precision.tau * total):
                needed, lsb_hit = 1, int(key in cache.lsb)
                degraded = int(over and not lsb_hit)
                is_high = 1 - degraded
                if is_high:
                    used_lsb.add(key)
                    dram += lsb_bytes
                    flash += lsb_bytes * (1 - lsb_hit)
                    if lsb_hit or key in cache.msb:
                        cache.look_up(cache.lsb, key, lsb_bytes)
            flags.append((is_high, int(msb_hit), lsb_hit, needed, degraded))
        spent += flash
        if bound and budget.kind == 1:
            credit = min(credit + (target / n_layers - flash / (n_layers * k * high)), budget.cap_steps * target)
        rows.append((chosen, *map(list, zip(*flags, strict=True)), flash, dram))
        assert set(cache.lsb) <= set(cache.msb)
        assert cache.used <= capacity
    return rows, cache
