"""A serving engine with one object per request and the cost formulas written out layer by layer. Slow, and meant to be read."""

import itertools
import math
from collections import Counter, deque
from dataclasses import dataclass, field

from tokentape.policies.serving import Chunked, Continuous, Layered, Static

MASK = 2**64 - 1


@dataclass
class Request:
    number: int
    arrival: float
    prompt: int
    output: int
    prefix: int = 0
    cached: int = 0
    position: int = 0
    processed: int = 0  # as a prompt
    emitted: int = 0
    started: float = 0.0
    token_times: list[float] = field(default_factory=list)
    restarts: int = 0
    kept: list[int] = field(default_factory=list)  # KV blocks
    waits: list[float] = field(default_factory=list)  # between two deliveries
    gaps: list[float] = field(default_factory=list)  # the same, shared by the tokens delivered

    @property
    def target(self) -> int:
        return self.prompt + self.emitted

    @property
    def held(self) -> int:
        """Tokens in its KV while it decodes: all but the last one made, whose turn comes next."""
        return self.prompt + self.emitted - 1


class Pool:
    """KV blocks, one by one. Free ones are taken in the order in which they were freed, of a request its last one first; what
    lies in one is there until then. prefixes: (shorter one, tokens) of beginnings that prompts share; without any none is."""

    def __init__(self, n_blocks, block, fills, prefixes):
        self.block, self.fills, self.prefixes = block, fills, prefixes
        self.free, self.content, self.users = deque(range(n_blocks or 50_000)), {}, Counter()

    def told(self, r, i):
        """What a request's block is for: of the shortest prefix that it lies in, else the request's own."""
        found, of = ("own", r.number, i), r.prefix if self.prefixes else 0
        while of:
            of, tokens = self.prefixes[(row := of)]
            found = ("prefix", row, i) if (i + 1) * self.block <= tokens else found
        return found

    def finds(self, r):
        """Blocks that are there for a request that heads the queue; one token at least is left to process."""
        there = {told: b for b, told in self.content.items()}
        found = (there.get(self.told(r, i)) for i in range((r.target - 1) // self.block))
        return list(itertools.takewhile(lambda b: b is not None, found))

    def fits(self, tokens, found):
        return math.ceil(tokens / self.block) - sum(self.users[b] > 0 for b in found) <= len(self.free)

    def shares(self, r, found):
        """The request holds blocks that are there."""
        for b in found:
            if not self.users[b]:
                self.free.remove(b)
            self.users[b] += 1
        r.kept += found

    def holds(self, r, tokens):
        """Blocks for so many tokens of the request, no more and no less; whether there are as many."""
        n_more = math.ceil(tokens / self.block) - len(r.kept)
        if n_more > len(self.free):
            return False
        for _ in range(n_more):
            r.kept.append(self.free.popleft())
            self.content.pop(r.kept[-1], None)
            self.users[r.kept[-1]] = 1
        while len(r.kept) > math.ceil(tokens / self.block):  # a draft's, to be taken next
            self.users[r.kept[-1]] -= 1
            self.free.appendleft(r.kept.pop())
        return True

    def fill(self, r, tokens, is_own):
        """So many tokens are there: for all whose prompts begin so, is_own for the request itself."""
        for i, b in enumerate(r.kept[: tokens // self.block]):
            if is_own or self.told(r, i)[0] == "prefix":
                self.content[b] = self.told(r, i)

    def frees(self, r, n_full):
        """The request's blocks are free; so many are full, others go before all that is free, with `fills`."""
        while r.kept:
            is_full = len(r.kept) <= n_full
            self.users[r.kept[-1]] -= 1
            if not self.users[b := r.kept.pop()]:
                (self.free.append if is_full or not self.fills else self.free.appendleft)(b)

    def loses(self, r, tokens, queue):
        """The request's blocks are free, and so many tokens lie in them; it heads the queue."""
        self.fill(r, tokens, is_own=True)
        self.frees(r, tokens // self.block)
        r.position, r.restarts = 0, r.restarts + 1
        queue.insert(0, r)


def n_accepted(seed, request, emitted, survival):
    """Drafts accepted, by splitmix64's finish written in whole numbers."""
    x = seed * 0x9E3779B97F4A7C15 + request * 0xD1B54A32D192ED03 + emitted * 0x8CB92BA72F3D8DD7 + 0x9E3779B97F4A7C15 & MASK
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    x ^= x >> 31
    return sum(x / 2**64 < chance for chance in survival)


def groups_of(scheduler, tokens, n_layers):
    """Groups of layers for a batch of so many tokens, from the rules as the paper's readers wrote them down."""
    if not isinstance(scheduler, Layered):
        return 1
    n_max = scheduler.n_max
    if scheduler.n_lg_rule == "fixed":
        return n_max
    if scheduler.n_lg_rule == "paper":
        return min(n_max, max(1, math.ceil(tokens / 512)), n_layers)
    table = {4: [1, 2, 4, 4, 4], 12: [1, 2, 4, 6, 12], 16: [1, 2, 4, 8, 16], 24: [1, 2, 4, 8, 24]}
    row = table.get(n_max) or [min(n_max, n) for n in (1, 2, 4, 8)] + [n_max]
    column = sum(tokens > edge for edge in (512, 1024, 2048, 4096))
    return min(row[column], n_layers)


def cost_of_iteration(model, batch, decoding, group):
    """Seconds, expert bytes, moved bytes and operations. batch: requests and the prompt tokens taken; group: its layers."""
    g, c, tp = model.geometry, model.constants, model.tp
    B, T = len(decoding), sum(take for _, take in batch)
    bw, flops = model.bytes_per_s, model.ops_per_s
    m = model.speculation.n_nodes if model.speculation else 0
    total = [0.0, 0.0, 0.0, 0.0]
    q, kv = g.n_heads * g.head_dim, 2 * g.n_kv_heads * g.head_dim * 2
    eta_kv = min(c.kv_bandwidth_frac, c.kv_frac_per_decode * max(B, 1)) if c.kv_frac_per_decode else c.kv_bandwidth_frac
    for layer in range(g.n_layers):
        n_p = T if layer in group else 0
        n = n_p + B * (1 + m)
        if n == 0:
            continue
        window = g.sliding_windows[layer] if g.sliding_windows else 0
        seen = sum(take * min(r.position + take / 2, window or math.inf) for r, take in batch) if n_p else 0.0
        context = sum(min(r.prompt + r.emitted, window or math.inf) for r in decoding)
        if layer in g.moe_layers:
            cov = model.covered(layer, batch if n_p else [], decoding)
            expert_bytes, active = g.n_experts * 3 * g.hidden * g.expert_intermediate * 2, g.top_k * g.expert_intermediate
            always = g.shared_intermediate
            total[1] += cov * expert_bytes
        else:
            cov, expert_bytes, active, always = 0.0, 0.0, 0, g.dense_intermediate
        w_d = 2 * g.hidden * q + g.hidden * kv // 2 + 3 * g.hidden * always
        t_moe = cov * expert_bytes / tp / (bw * c.expert_bandwidth_frac)
        t_moe += 2 * 3 * g.hidden * active * n / tp / (flops * c.expert_ops_frac)
        t_dense = max(2 * w_d / tp / (bw * c.dense_bandwidth_frac), 2 * w_d * n / tp / (flops * c.dense_ops_frac))
        t_att = 4 * q * seen / tp / (flops * c.attention_ops_frac)
        t_att += max(context * kv / tp / (bw * eta_kv), 4 * q * (1 + m) * context / tp / (flops * c.attention_ops_frac))
        t_comm = 2 * (8e-6 + 2 * (tp - 1) / tp * n * g.hidden * 2 / (0.555556 * 450e9)) if tp > 1 else 0.0
        t_other = (c.prefill_layer_s if T else c.decode_layer_s) + c.prefill_token_s * g.hidden / 2048 * n_p
        total[0] += t_moe + t_dense + t_att + t_comm + t_other
        total[2] += cov * expert_bytes + 2 * w_d + context * kv + 40 * n * g.hidden
        total[3] += 2 * (3 * g.hidden * active + w_d) * n + 4 * q * (seen + context * (1 + m))
    total[0] += g.vocab * g.hidden * 2 / tp / (bw * c.dense_bandwidth_frac)
    total[0] += c.prefill_iteration_s if T else c.decode_iteration_s
    total[0] += model.speculation.draft_s if m and B else 0.0
    return total


def serve_slowly(
    requests, scheduler, model, max_seqs=256, kv_blocks=None, block=16, seed=0, ahead=False, keeps=False, fills=False, prefixes=()
):
    """All requests served; returns them and one dictionary per iteration. ahead: a batch is fixed when the one before starts;
    keeps: a request finds blocks that are there for it and that no other has taken; fills: of which those that are not full go
    first. prefixes: as Pool has them."""
    m, survival = (model.speculation.n_nodes, model.speculation.survival) if model.speculation else (0, ())
    everyone = [Request(i, *fields) for i, fields in enumerate(requests)]
    coming, queue, decoding, partial, batch, log = list(everyone), [], [], None, [], []
    pool, now, group, n_groups = Pool(kv_blocks, block, keeps and fills, prefixes if keeps else ()), coming[0].arrival, 0, 1
    seen, ended = now, []  # requests that have their last token, which the batch does not know yet
    while coming or queue or decoding or partial or batch:
        while coming and coming[0].arrival <= seen:
            queue.append(coming.pop(0))
        if not (queue or decoding or partial or batch):
            now = seen = max(now, coming[0].arrival)
            ended = [r for r in ended if pool.frees(r, r.held // block)]
            continue
        n_lost = 0
        for r in (*decoding, partial):  # in the order in which they were taken
            while r in decoding or (r and r is partial and not batch):
                tokens = r.held + 1 + m if r in decoding else min(r.position + room_of(scheduler, decoding, m), r.target)
                if pool.holds(r, tokens):
                    break
                n_lost += 1
                newest = max((of for of in (*decoding, *ended, partial) if of), key=lambda of: of.number)
                if newest in ended:
                    ended.remove(newest)
                    pool.frees(newest, max(newest.processed, newest.held - ahead) // block)
                elif newest is partial:
                    pool.loses(partial, partial.position, queue)
                    partial = None
                else:
                    decoding.remove(newest)
                    pool.loses(newest, max(newest.processed, newest.held - ahead), queue)
        if not batch:
            n_open = 0 if n_lost and decoding else max_seqs - len(ended)
            batch = form(scheduler, partial, queue, decoding, n_open, pool, now, m, keeps)
            if batch:
                partial, group = None, 0
                n_groups = groups_of(scheduler, sum(take for _, take in batch), model.geometry.n_layers)
        is_stuck = ended and not batch and not decoding
        ended = [r for r in ended if pool.frees(r, r.held // block)]
        if is_stuck:  # nothing was fixed ahead: the batch is formed of what is there now
            seen = now
            continue
        layers = range(0)
        if batch:
            size, longer = divmod(model.geometry.n_layers, n_groups)
            first = group * size + min(group, longer)
            layers = range(first, first + size + (group < longer))
        cost = cost_of_iteration(model, batch, decoding, layers)
        tokens = sum(take for _, take in batch)
        row = {"start_s": now, "n_decode": len(decoding), "n_prefill": tokens, "n_waiting": len(queue)}
        row |= {"first_layer": layers.start, "last_layer": layers.stop}
        row |= {"layer_group": group, "n_groups": n_groups} if batch else {"layer_group": 0, "n_groups": 1}
        log.append(row | dict(zip(("seconds", "expert_bytes", "moved", "ops"), cost, strict=True)))
        seen = now if ahead else now + cost[0]
        now += cost[0]
        for r in decoding:
            kept = min(n_accepted(seed, r.number, r.emitted, survival), r.output - r.emitted - 1)
            r.emitted += 1 + kept
            pool.holds(r, r.held)
            r.token_times += [now] * (1 + kept)
            r.waits.append(cost[0])
            r.gaps += [cost[0] / (1 + kept)] * (1 + kept)
        ended += [r for r in decoding if r.emitted == r.output]
        decoding = [r for r in decoding if r.emitted < r.output]
        group += bool(batch)
        if batch and group == n_groups:
            for r, take in batch:
                r.position += take
                if r.position < r.target:
                    partial = r
                    continue
                r.emitted += 1
                if r.emitted > 1:  # after a restart: no iteration's
                    r.waits.append(now - r.token_times[-1])
                    r.gaps.append(r.waits[-1])
                r.token_times.append(now)
                if r.emitted < r.output:
                    decoding.append(r)
                else:
                    ended.append(r)
            batch = []
        if not ahead:
            ended = [r for r in ended if pool.frees(r, r.held // block)]
    return everyone, log


def room_of(scheduler, decoding, m):
    """Prompt tokens of a batch of whom the last is cut."""
    return scheduler.pass_tokens if isinstance(scheduler, Layered) else max(0, scheduler.chunk_tokens - len(decoding) * (1 + m))


def form(scheduler, partial, queue, decoding, max_seqs, pool, now, m, keeps):
    """The next batch of (request, tokens), by the rules of the four schedulers; takes from the queue."""
    if isinstance(scheduler, Static) and decoding:
        return []
    batch, tokens = [], 0
    while (partial and not batch) or queue:
        is_partial = bool(partial and not batch)
        r = partial if is_partial else queue[0]
        own = pool.finds(r) if keeps and not is_partial else []
        if not is_partial and (len(decoding) + len(batch) >= max_seqs or not pool.fits(r.target, own)):
            break
        r.position = max(r.position, len(own) * pool.block)
        left = r.target - r.position
        if isinstance(scheduler, Static):
            if len(batch) == scheduler.max_prompts:
                break
            take = left
        elif isinstance(scheduler, Continuous):
            if batch and tokens + left > scheduler.cap_tokens:
                break
            take = left
        else:
            assert isinstance(scheduler, Layered | Chunked)
            take = min(left, room_of(scheduler, decoding, m) - tokens)
            if take <= 0:
                break
        if not is_partial:
            queue.pop(0)
            if r.restarts == 0:
                r.started, r.cached = now, r.position
        pool.shares(r, own)
        pool.holds(r, r.position + take)
        pool.fill(r, r.position + take, is_own=False)
        r.processed = r.target
        batch.append((r, take))
        tokens += take
        if take < left:
            break
    return batch
