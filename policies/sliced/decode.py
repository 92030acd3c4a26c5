"""The decode kernel: (token, layer) events through a router, the sliced cache, the precision rule and the budget.

The same compiled code runs a whole tape and, with one event per call, inside a live model.
"""

from __future__ import annotations

import numpy as np

from tokentape.policies.kernels import (
    array,
    boolean,
    float32,
    float64,
    function,
    int32,
    int64,
    kernel,
    uint8,
    uint32,
    uint64,
    void,
)
from tokentape.policies.sliced import state
from tokentape.policies.sliced.cache import drop, make_room, push_back, refresh
from tokentape.policies.sliced.ranking import SELECT_SIGNATURE, by_gate, top_k

_I32, _F32, _F64, _I64, _U8, _U32 = (array(t, 1) for t in (int32, float32, float64, int64, uint8, uint32))
_I32_2D, _F32_2D, _F64_2D, _I64_2D = (array(t, 2) for t in (int32, float32, float64, int64))
_F32_3D, _U8_3D = array(float32, 3), array(uint8, 3)


@kernel(void(_I64, _I64, _U32, _U32, _U8, _U8, _I64))
def drop_used_lsb(sizes, clock, msb_link, lsb_link, msb_in, lsb_in, lsb_token):  # type: ignore[no-untyped-def]
    """Drops the LSB slices that the current token used: they stand at the end of their list."""
    end = uint64(lsb_in.shape[0])
    node = uint64(lsb_link[2 * end])
    while node != end and lsb_token[node] == clock[state.TOKEN]:
        before = uint64(lsb_link[2 * node])
        clock[state.USED] = drop(
            clock[state.USED], node, end, False, sizes[state.MSB], sizes[state.LSB], msb_in, lsb_in, msb_link, lsb_link
        )
        node = before


@kernel(void(_I64, _F64, _I64, _F64, float64))
def _settle_soft(sizes, limits, clock, pulls, token_bytes):  # type: ignore[no-untyped-def]
    """Moves the router's strength by the misses of the token that is done."""
    miss = clock[state.TOKEN_FLASH] / token_bytes
    pulls[state.MEAN_MISS] = (
        limits[state.DECAY] * pulls[state.MEAN_MISS] + (1.0 - limits[state.DECAY]) * miss if clock[state.STEP] else miss
    )
    if clock[state.STEP] >= sizes[state.FREE_STEPS]:
        moved = pulls[state.STRENGTH] + limits[state.GAIN] * (pulls[state.MEAN_MISS] - limits[state.TARGET])
        pulls[state.STRENGTH] = min(max(moved, 0.0), 1.0)


@kernel(boolean(_F32, _U8, _F32, _I64, _I64, _I64))
def _choose_resident(values, resident, scratch, keys, order, chosen):  # type: ignore[no-untyped-def]
    """The top k of the resident experts; False, and nothing chosen, where fewer than k are resident.

    The spec subtracts 1e6 from the others' logits: the same choice under every router, since all of them fall behind.
    """
    k = uint64(chosen.shape[0])
    for e in range(uint64(values.shape[0])):
        scratch[e] = values[e] if resident[e] else -np.inf
    top_k(scratch, chosen.shape[0], keys, order)
    if order[k - uint64(1)] < 0:
        return False
    for j in range(k):
        chosen[j] = order[j]
    return True


@kernel(
    int64(uint64, uint64, float64, boolean, _F32, _I64, _F64, _I64, _I64, _U32, _U32, _U8, _U8, _I64, _I64, _I64, _U8_3D),
)
def _access(  # type: ignore[no-untyped-def]
    i, first_key, total_gate, is_over, gates, sizes, limits, clock, chosen, msb_link, lsb_link, msb_in, lsb_in, pin, lsb_token,
    moved, flags,
):  # fmt: skip
    """Looks the chosen experts' slices up in order; fills row i of `flags`; moved: Flash and DRAM bytes of the event."""
    msb, lsb, end, now = sizes[state.MSB], sizes[state.LSB], uint64(msb_in.shape[0]), clock[state.EVENT]
    used, pinned, capacity = clock[state.USED], int64(0), sizes[state.CAPACITY]
    for j in range(uint64(chosen.shape[0])):
        key = first_key + uint64(chosen[j])
        pin[key] = now
        pinned += msb * msb_in[key] + lsb * lsb_in[key]
    flash = dram = int64(0)
    for j in range(uint64(chosen.shape[0])):
        key = first_key + uint64(chosen[j])
        flags[state.F_MSB_HIT, i, j] = msb_in[key]
        dram += msb
        if msb_in[key]:
            refresh(key, end, msb_link)
        else:
            flash += msb
            if pinned + msb <= capacity:  # else it is streamed
                used = msb + make_room(used, capacity - msb, msb, lsb, end, now, msb_link, lsb_link, msb_in, lsb_in, pin)
                pinned += msb
                msb_in[key] = 1
                push_back(key, end, msb_link)
        if not sizes[state.IS_SLICED]:
            flags[state.F_HIGH, i, j] = sizes[state.IS_HIGH]
        elif limits[state.TAU] < 0.0 or gates[uint64(chosen[j])] > limits[state.TAU] * total_gate:
            flags[state.F_LSB_NEEDED, i, j] = 1
            flags[state.F_LSB_HIT, i, j] = lsb_in[key]
            if is_over and not lsb_in[key]:
                flags[state.F_DEGRADED, i, j] = 1
                continue
            flags[state.F_HIGH, i, j] = 1
            dram += lsb
            lsb_token[key] = clock[state.TOKEN]
            if lsb_in[key]:
                refresh(key, end, lsb_link)
                continue
            flash += lsb
            if msb_in[key] and pinned + lsb <= capacity:
                used = lsb + make_room(used, capacity - lsb, msb, lsb, end, now, msb_link, lsb_link, msb_in, lsb_in, pin)
                pinned += lsb
                lsb_in[key] = 1
                push_back(key, end, lsb_link)
    clock[state.USED] = used
    moved[0], moved[1] = flash, dram
    return flash


@kernel(
    int64(
        function(SELECT_SIGNATURE), _F64, _F32_3D, _I32, _F32_2D, _F32_2D, _I64, _F64, _I64, _F64, _F64_2D, _U32, _U32,
        _U8, _U8, _I64, _I64, _I32_2D, _U8_3D, _I64_2D,
    ),
)  # fmt: skip
def run_decode(  # type: ignore[no-untyped-def]
    select, params, table, layer, values, gates, sizes, limits, clock, pulls, memory, msb_link, lsb_link, msb_in, lsb_in, pin,
    lsb_token, ids, flags, moved,
):  # fmt: skip
    """Advances every state array over n events; returns the first row with fewer than k experts to choose from, else -1.

    select: compiled function of SELECT_SIGNATURE, with its params, table (L, E, E) or (1, 1, 1) and memory (L, 2). layer (n,)
    i32; values, gates (n, E) f32. sizes, limits, clock, pulls: see state.py. msb_link, lsb_link (2 (K + 1),) u32, msb_in, lsb_in
    (K,) u8, pin, lsb_token (K,) i64: see cache.py. Out: ids (n, k) i32, flags (5, n, k) u8 (zero on entry), moved (n, 2) i64.
    """
    n_experts, k, n_layers = uint64(values.shape[1]), ids.shape[1], memory.shape[0]
    scratch, chosen = np.empty(n_experts, np.float32), np.empty(k, np.int64)
    keys, order = np.empty(n_experts, np.int64), np.empty(n_experts, np.int64)
    token_bytes = float(n_layers * k * sizes[state.HIGH])
    for i in range(uint64(layer.shape[0])):
        at = uint64(uint32(layer[i]))
        if layer[i] <= clock[state.LAST_LAYER]:  # a token begins
            if sizes[state.AFTER_USE]:
                drop_used_lsb(sizes, clock, msb_link, lsb_link, msb_in, lsb_in, lsb_token)
            if sizes[state.BUDGET] == state.SOFT and clock[state.STEP] >= 0:
                _settle_soft(sizes, limits, clock, pulls, token_bytes)
            clock[state.STEP] += 1
            clock[state.TOKEN] += 1
            clock[state.TOKEN_FLASH] = 0
        clock[state.LAST_LAYER] = layer[i]
        clock[state.EVENT] += 1
        is_bound = clock[state.STEP] >= sizes[state.FREE_STEPS]
        in_debt = is_bound and sizes[state.BUDGET] == state.HARD and pulls[state.CREDIT] < 0.0
        is_over = in_debt or (is_bound and sizes[state.SKIPS_LSB] == 1 and pulls[state.MEAN_MISS] > limits[state.TARGET])
        first_key = at * n_experts
        resident = msb_in[first_key : first_key + n_experts]
        row_values, row_gates = values[i], gates[i]
        if not (in_debt and _choose_resident(row_values, resident, scratch, keys, order, chosen)):
            of_layer = table[at] if table.shape[0] > 1 else table[uint64(0)]
            strength = pulls[state.STRENGTH]
            select(row_values, row_gates, resident, strength, params, of_layer, memory[at], scratch, keys, order, chosen)
        total_gate = 0.0
        for j in range(uint64(k)):
            if chosen[j] < 0:
                return int64(i)
            total_gate += row_gates[uint64(chosen[j])]
        by_gate(row_values, row_gates, chosen)
        for j in range(uint64(k)):
            ids[i, j] = chosen[j]
        flash = _access(
            i, first_key, total_gate, is_over, row_gates, sizes, limits, clock, chosen, msb_link, lsb_link, msb_in, lsb_in, pin,
            lsb_token, moved[i], flags,
        )  # fmt: skip
        clock[state.TOKEN_FLASH] += flash
        if is_bound:
            clock[state.COUNTED_EVENTS] += 1
            clock[state.COUNTED_FLASH] += flash
            if sizes[state.BUDGET] == state.HARD:
                gained = limits[state.TARGET] / n_layers - flash / token_bytes
                pulls[state.CREDIT] = min(pulls[state.CREDIT] + gained, limits[state.CAP] * limits[state.TARGET])
    return int64(-1)
