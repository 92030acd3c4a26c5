"""The event of sliced serving: all tokens of a layer through a router, the sliced cache, the precision rule and the budget.

The same compiled code runs a recorded tape inside the loop (replay/system/sliced.py) and, event by event, inside a live model.
Decodes come first, then prompts: a prompt takes the model's own experts at high precision through limited DRAM (SliceMoE section
4.5). All tokens are routed first, then every slice that they need is looked up once; what does not fit beside the layer in flight
is streamed.
"""

import numpy as np

from tokentape.policies import kernels as kn
from tokentape.policies.kernels import boolean, float64, int64, kernel, uint32, uint64, void
from tokentape.policies.queue import push_back
from tokentape.policies.sliced import state as at
from tokentape.policies.sliced.cache import drop, first_free, refresh
from tokentape.policies.sliced.ranking import CHOOSE, NOTHING, by_gate, key_of, take, top_k


@kernel(void(kn.I64, kn.I64, kn.U32, kn.U8, kn.I64), allocates=False)
def drop_used_lsb(sizes, clock, lsb_link, lsb_in, lsb_token):  # type: ignore[no-untyped-def]
    """Drops the LSB slices that the last tokens used, and begins the next: what a prompt then loads of them is not theirs."""
    end, used = uint64(lsb_in.shape[0]), clock[at.USED]
    node = uint64(lsb_link[2 * end])
    while node != end:
        before = uint64(lsb_link[2 * node])
        if lsb_token[node] == clock[at.TOKEN]:
            drop(node, lsb_link, lsb_in)
            used -= sizes[at.LSB]
        node = before
    clock[at.USED] = used
    clock[at.TOKEN] += 1


@kernel(void(kn.I64, kn.F64, kn.I64, kn.F64, kn.F64, float64), allocates=False)
def _settle_soft(sizes, limits, token, pulls, params, token_bytes):  # type: ignore[no-untyped-def]
    """Moves the router's strength by the misses of the token that is done."""
    miss = token[at.TOKEN_FLASH] / token_bytes
    pulls[at.MEAN_MISS] = limits[at.DECAY] * pulls[at.MEAN_MISS] + (1.0 - limits[at.DECAY]) * miss if token[at.STEP] else miss
    if token[at.STEP] >= sizes[at.FREE_STEPS]:
        moved = pulls[at.STRENGTH] + limits[at.GAIN] * (pulls[at.MEAN_MISS] - limits[at.TARGET])
        params[0] = pulls[at.STRENGTH] = min(max(moved, 0.0), 1.0)


@kernel(boolean(kn.F32, kn.U8, kn.I64_2D, kn.I64), allocates=False)
def _choose_resident(values, resident, work, chosen):  # type: ignore[no-untyped-def]
    """The top k of the resident experts; False where fewer than k are resident.

    The spec subtracts 1e6 from the others' logits: the same choice under every router, since all of them fall behind.
    """
    keys = work[0]
    for e in range(uint64(values.shape[0])):
        keys[e] = key_of(values[e], e) if resident[e] else NOTHING
    take(chosen.shape[0], keys, chosen)
    return chosen[chosen.shape[0] - 1] >= 0


@kernel(int64(int64, kn.U8, kn.F64, kn.I64), allocates=False)
def _lowest(layer, is_in, rank, lowest):  # type: ignore[no-untyped-def]
    """The resident key of lowest rank outside this layer, which leaves, ties by lowest key; -1 if there is none. lowest (L,): of
    every layer, -1 where it has none, -2 where that is not known: it is looked for there alone."""
    n_experts, found = is_in.shape[0] // lowest.shape[0], int64(-1)
    for other in range(lowest.shape[0]):
        if other == layer:
            continue
        if lowest[other] == -2:
            lowest[other] = -1
            for key in range(uint64(other * n_experts), uint64((other + 1) * n_experts)):
                if is_in[key] and (lowest[other] < 0 or rank[key] < rank[lowest[other]]):
                    lowest[other] = key
        key = lowest[other]
        if key >= 0 and (found < 0 or rank[key] < rank[found]):
            found = key
    if found >= 0:
        lowest[found // n_experts] = -2
    return found


@kernel(
    int64(int64, int64, boolean, int64, int64, kn.I64, kn.F64_2D, kn.U32, kn.U32, kn.U8, kn.U8, kn.I64, kn.I64_2D),
    allocates=False,
)
def _make_room(  # type: ignore[no-untyped-def]
    used, allowed, by_counts, layer, now, sizes, counted, msb_link, lsb_link, msb_in, lsb_in, pin, lowest
):
    """Evicts until at most `allowed` bytes are used, LSB slices first; returns the bytes used. Pinned slices must fit `allowed`.
    by_counts: this whole layer is pinned, and LSB slices leave by rising gate mass, then MSB slices by rising count."""
    end = uint64(msb_in.shape[0])
    while used > allowed:
        victim = _lowest(layer, lsb_in, counted[1], lowest[1]) if by_counts else first_free(end, now, lsb_link, pin)
        if victim >= 0:
            drop(uint64(victim), lsb_link, lsb_in)
            used -= sizes[at.LSB]
        else:
            victim = _lowest(layer, msb_in, counted[0], lowest[0]) if by_counts else first_free(end, now, msb_link, pin)
            drop(uint64(victim), msb_link, msb_in)
            used -= sizes[at.MSB]
    return used


@kernel(
    int64(
        CHOOSE, int64, *(kn.I64,) * 6, kn.F32_2D, kn.F32_2D, at.SLICED, kn.I32_2D, kn.U8_3D, kn.I64_2D, kn.I64_2D,
    ),
    allocates=False,
)  # fmt: skip
def serve_events(  # type: ignore[no-untyped-def]
    choose, n_layers, layers, bounds, n_decodes, rows, outs, owners, values, gates, sliced, ids, flags, moved, sums
):
    """Events one after the other. Of event i: layers[i], and entries bounds[i] .. bounds[i + 1] - 1 of `rows`, of which the first
    n_decodes[i] are decodes, the others of prompts.

    rows: of values and gates (n, E) f32; owners: requests; outs: of the results ids (n, k) i32, flags (5, n, k) u8, moved (n, 3)
    i64: Flash and DRAM bytes and lookups, which the first row that needs a slice carries. A request's token begins where its
    layer does not rise. sums (events, 5): see state.py. Returns the first entry with fewer than k experts to choose from,
    else -1.
    """
    (sizes, limits, clock, tokens, credit, pulls, params, _, counted, _, msb_link, lsb_link, msb_in, lsb_in, pin, lsb_token, seen,
     work, naturals, chosens, phase, lowest) = sliced  # fmt: skip
    n_experts, k, end = uint64(values.shape[1]), uint64(ids.shape[1]), uint64(msb_in.shape[0])
    msb, lsb, capacity, is_sliced = sizes[at.MSB], sizes[at.LSB], sizes[at.CAPACITY], sizes[at.IS_SLICED] != 0
    token_bytes = float(n_layers * ids.shape[1] * sizes[at.HIGH])
    keys, natural, routed = work[0], naturals[0], chosens[0]
    is_hard, free_steps, tau = sizes[at.BUDGET] == at.HARD, sizes[at.FREE_STEPS], limits[at.TAU]
    reroutes, is_known = sizes[at.REROUTES] != 0, False
    for event in range(uint64(layers.shape[0])):
        layer, first, last = layers[event], uint64(bounds[event]), uint64(bounds[event + uint64(1)])
        at_layer, first_prompt = uint64(layer), first + uint64(n_decodes[event])
        first_key = at_layer * n_experts
        resident = msb_in[first_key : first_key + n_experts]
        begins = False
        for i in range(first, first_prompt):
            begins |= layer <= tokens[uint64(owners[i]), at.LAST_LAYER]
        if begins and sizes[at.AFTER_USE]:
            drop_used_lsb(sizes, clock, lsb_link, lsb_in, lsb_token)
        clock[at.EVENT] += 1
        now = clock[at.EVENT]
        pinned = int64(0)
        for i in range(first, last):
            row, out, r, is_prompt = uint64(rows[i]), uint64(outs[i]), uint64(owners[i]), i >= first_prompt
            row_values, row_gates = values[row], gates[row]
            chosen, is_natural = natural, True
            if not is_prompt:
                if layer <= tokens[r, at.LAST_LAYER]:
                    if sizes[at.BUDGET] == at.SOFT and tokens[r, at.STEP] >= 0:
                        _settle_soft(sizes, limits, tokens[r], pulls, params, token_bytes)
                    tokens[r, at.STEP] += 1
                    tokens[r, at.TOKEN_FLASH] = 0
                tokens[r, at.LAST_LAYER] = layer
                in_debt = is_hard and tokens[r, at.STEP] >= free_steps and credit[r] < 0.0
                if in_debt and _choose_resident(row_values, resident, work, routed):
                    chosen, is_natural = routed, False
                elif reroutes:
                    after = row + uint64(1)
                    if sizes[at.NATURAL] > 0:
                        top_k(row_values, sizes[at.NATURAL], keys, natural)
                    choose(layer, values[row:after], gates[row:after], naturals, resident, phase, params, work, chosens)
                    chosen, is_natural = routed, False
            if is_natural:
                top_k(row_values, ids.shape[1], keys, natural)
            total_gate = 0.0
            for j in range(k):
                if chosen[j] < 0:
                    return int64(i)
                total_gate += row_gates[uint64(chosen[j])]
            by_gate(row_values, row_gates, chosen)
            for j in range(k):
                e = uint64(chosen[j])
                ids[out, j] = chosen[j]
                key, gate = first_key + e, row_gates[e]
                is_critical = tau < 0.0 or gate > tau * total_gate
                flags[at.F_LSB_NEEDED, out, j] = is_sliced and (is_prompt or is_critical)
                if is_prompt:
                    counted[0, key] += 1.0
                    counted[1, key] += gate / total_gate if total_gate > 0.0 else 0.0
                    counted[2, key] += is_critical
                elif pin[key] != now:
                    pin[key] = now
                    pinned += msb * msb_in[key] + lsb * lsb_in[key]
        has_prompt = first_prompt < last
        by_counts = has_prompt and sizes[at.WARMUP] == at.PREDICTIVE
        if by_counts and not is_known:
            lowest[:] = -2
        is_known = by_counts
        if has_prompt:
            pinned = int64(0)
            for key in range(first_key, first_key + n_experts):
                pin[key] = now
                pinned += msb * msb_in[key] + lsb * lsb_in[key]
        used = clock[at.USED]
        n_active = n_hits = all_flash = all_dram = int64(0)
        for i in range(first, last):
            out, r, is_prompt = uint64(outs[i]), uint64(owners[i]), i >= first_prompt
            is_bound = not is_prompt and tokens[r, at.STEP] >= free_steps
            is_over = is_bound and is_hard and credit[r] < 0.0
            is_over |= is_bound and sizes[at.SKIPS_LSB] == 1 and pulls[at.MEAN_MISS] > limits[at.TARGET]
            flash = dram = int64(0)
            n_before = n_active
            for j in range(k):
                e = uint64(uint32(ids[out, j]))
                key = first_key + e
                is_new = seen[0, e] != now
                flags[at.F_MSB_HIT, out, j] = msb_in[key] if is_new else 1
                if is_new:
                    seen[0, e] = now
                    n_active += 1
                    dram += msb
                    if msb_in[key]:
                        n_hits += 1
                        refresh(key, end, msb_link)
                    else:
                        flash += msb
                        if pinned + msb <= capacity:  # else it is streamed
                            used = msb + _make_room(
                                used, capacity - msb, by_counts, layer, now, sizes, counted, msb_link, lsb_link, msb_in, lsb_in,
                                pin, lowest,
                            )  # fmt: skip
                            pinned += msb
                            msb_in[key] = 1
                            push_back(key, end, msb_link)
                flags[at.F_HIGH, out, j] = flags[at.F_LSB_NEEDED, out, j] if is_sliced else sizes[at.IS_HIGH]
                flags[at.F_LSB_HIT, out, j] = flags[at.F_DEGRADED, out, j] = 0
                if not flags[at.F_LSB_NEEDED, out, j]:
                    continue
                is_new = seen[1, e] != now
                if is_new and is_over and not lsb_in[key]:
                    flags[at.F_HIGH, out, j] = 0
                    flags[at.F_DEGRADED, out, j] = 1
                    continue
                flags[at.F_LSB_HIT, out, j] = lsb_in[key] if is_new else 1
                if not is_prompt:
                    lsb_token[key] = clock[at.TOKEN]
                if not is_new:
                    continue
                seen[1, e] = now
                dram += lsb
                if lsb_in[key]:
                    refresh(key, end, lsb_link)
                    continue
                flash += lsb
                if msb_in[key] and pinned + lsb <= capacity:
                    used = lsb + _make_room(
                        used, capacity - lsb, by_counts, layer, now, sizes, counted, msb_link, lsb_link, msb_in, lsb_in, pin,
                        lowest,
                    )  # fmt: skip
                    pinned += lsb
                    lsb_in[key] = 1
                    push_back(key, end, lsb_link)
            moved[out, 0], moved[out, 1], moved[out, 2] = flash, dram, n_active - n_before
            all_flash += flash
            all_dram += dram
            if is_prompt:
                continue
            tokens[r, at.TOKEN_FLASH] += flash
            if is_bound:
                clock[at.COUNTED_EVENTS] += 1
                clock[at.COUNTED_FLASH] += flash
                if is_hard:
                    gained = limits[at.TARGET] / n_layers - flash / token_bytes
                    credit[r] = min(credit[r] + gained, limits[at.CAP] * limits[at.TARGET])
        clock[at.USED] = used
        lowest[:, at_layer] = -2  # counts and slices of this layer changed
        sums[event, at.ACTIVE] += n_active
        sums[event, at.CHOSEN] += int64(last - first) * ids.shape[1]
        sums[event, at.HITS] += n_hits
        sums[event, at.DRAM] += all_dram
        sums[event, at.FLASH] += all_flash
    return int64(-1)


@kernel(int64(CHOOSE, int64, boolean, kn.I64, kn.F32_2D, kn.F32_2D, at.SLICED, kn.I32_2D, kn.U8_3D, kn.I64_2D))
def serve_rows(choose, n_layers, is_prompt, layer, values, gates, sliced, ids, flags, moved):  # type: ignore[no-untyped-def]
    """Rows of one request in the order executed: of a prompt, every run of equal layers is an event, of decodes every row."""
    n, n_events = layer.shape[0], 0
    rows, owners, layers, bounds = np.arange(n), np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n + 1, np.int64)
    for i in range(n):
        if not (is_prompt and i > 0 and layer[i] == layer[i - 1]):
            layers[n_events] = layer[i]
            n_events += 1
        bounds[n_events] = i + 1
    n_decodes = np.full(n_events, 0 if is_prompt else 1)
    return serve_events(
        choose, n_layers, layers[:n_events], bounds, n_decodes, rows, rows, owners, values, gates, sliced, ids, flags, moved,
        np.zeros((n_events, 5), np.int64),
    )  # fmt: skip
