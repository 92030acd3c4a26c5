"""The prefill kernel: a prompt layer by layer at high precision through limited DRAM (SliceMoE section 4.5).

All tokens of a layer are routed first, then every expert they need is loaded once. Experts of the layer in flight never leave
while it is in flight; what does not fit beside them is streamed.
"""

from __future__ import annotations

import numpy as np

from tokentape.policies.kernels import array, boolean, float32, float64, int32, int64, kernel, uint8, uint32, uint64, void
from tokentape.policies.sliced import state
from tokentape.policies.sliced.cache import drop, make_room, push_back, refresh
from tokentape.policies.sliced.ranking import by_gate, top_k

_I32, _F32, _F64, _I64, _U8, _U32 = (array(t, 1) for t in (int32, float32, float64, int64, uint8, uint32))
_I32_2D, _F32_2D, _F64_2D, _I64_2D = (array(t, 2) for t in (int32, float32, float64, int64))
_U8_3D = array(uint8, 3)


@kernel(int64(_I32, _F32_2D, _F32_2D, int64, _F64, _I32_2D, _F64_2D))
def route_prompt(layer, values, gates, n_experts, limits, ids, counted):  # type: ignore[no-untyped-def]
    """Fills `ids` with the natural top k and adds the rows to `counted`; returns the first row with too few experts, else -1.

    counted (3, K) f64: tokens routed to each expert, their renormalised gate mass, and how often it was critical.
    """
    k = uint64(ids.shape[1])
    keys, order = np.empty(n_experts, np.int64), np.empty(n_experts, np.int64)
    for i in range(uint64(layer.shape[0])):
        first_key = uint64(uint32(layer[i])) * uint64(n_experts)
        top_k(values[i], ids.shape[1], keys, order)
        total_gate = 0.0
        for j in range(k):
            if order[j] < 0:
                return int64(i)
            total_gate += gates[i, uint64(order[j])]
        by_gate(values[i], gates[i], order[:k])
        for j in range(k):
            ids[i, j] = order[j]
            key, gate = first_key + uint64(order[j]), gates[i, uint64(order[j])]
            counted[0, key] += 1.0
            counted[1, key] += gate / total_gate if total_gate > 0.0 else 0.0
            counted[2, key] += limits[state.TAU] < 0.0 or gate > limits[state.TAU] * total_gate
    return int64(-1)


@kernel(int64(_U8, _F64, _I64, int64))
def _lowest(is_in, rank, pin, now):  # type: ignore[no-untyped-def]
    """The resident, unpinned key of lowest rank, ties by lowest key; -1 if there is none."""
    found, lowest = int64(-1), np.inf
    for key in range(uint64(is_in.shape[0])):
        if is_in[key] and pin[key] != now and rank[key] < lowest:
            found, lowest = int64(key), rank[key]
    return found


@kernel(int64(int64, int64, int64, _I64, _F64_2D, _U32, _U32, _U8, _U8, _I64))
def _make_room_by_counts(used, allowed, now, sizes, counted, msb_link, lsb_link, msb_in, lsb_in, pin):  # type: ignore[no-untyped-def]
    """As cache.make_room: LSB slices leave by rising gate mass, then MSB slices by rising count."""
    end = uint64(msb_in.shape[0])
    while used > allowed:
        victim = _lowest(lsb_in, counted[1], pin, now)
        whole = victim < 0
        if whole:
            victim = _lowest(msb_in, counted[0], pin, now)
        used = drop(used, uint64(victim), end, whole, sizes[state.MSB], sizes[state.LSB], msb_in, lsb_in, msb_link, lsb_link)
    return used


@kernel(
    int64(boolean, boolean, int64, int64, int64, uint64, _I64, _F64_2D, _U32, _U32, _U8, _U8, _I64),
)
def _load(  # type: ignore[no-untyped-def]
    is_lsb, by_counts, used, pinned, now, key, sizes, counted, msb_link, lsb_link, msb_in, lsb_in, pin
):
    """Inserts a missing slice if it fits beside the pinned ones; returns the bytes used."""
    end, msb, lsb, capacity = uint64(msb_in.shape[0]), sizes[state.MSB], sizes[state.LSB], sizes[state.CAPACITY]
    size = lsb if is_lsb else msb
    if pinned + size > capacity or (is_lsb and not msb_in[key]):
        return used
    if by_counts:
        used = _make_room_by_counts(used, capacity - size, now, sizes, counted, msb_link, lsb_link, msb_in, lsb_in, pin)
    else:
        used = make_room(used, capacity - size, msb, lsb, end, now, msb_link, lsb_link, msb_in, lsb_in, pin)
    if is_lsb:
        lsb_in[key] = 1
        push_back(key, end, lsb_link)
    else:
        msb_in[key] = 1
        push_back(key, end, msb_link)
    return used + size


@kernel(void(_I32, int64, boolean, _I64, _I64, _F64_2D, _U32, _U32, _U8, _U8, _I64, _I32_2D, _U8_3D, _I64_2D))
def load_prompt(  # type: ignore[no-untyped-def]
    layer, n_experts, by_counts, sizes, clock, counted, msb_link, lsb_link, msb_in, lsb_in, pin, ids, flags, moved
):
    """Loads what the routed rows need, layer by layer; arguments as in decode.run_decode, `counted` as in route_prompt.

    by_counts: the predictive warm-up's eviction, else least recently used. The bytes of an expert stand in the first row of the
    layer that needs it; later rows of the layer find it loaded.
    """
    msb, lsb, end = sizes[state.MSB], sizes[state.LSB], uint64(msb_in.shape[0])
    seen = np.full(n_experts, -1, np.int64)
    pinned = 0
    for i in range(uint64(layer.shape[0])):
        first_key = uint64(uint32(layer[i])) * uint64(n_experts)
        if i == 0 or layer[i] != layer[i - uint64(1)]:
            clock[state.EVENT] += 1
            pinned = 0
            for key in range(first_key, first_key + uint64(n_experts)):
                pin[key] = clock[state.EVENT]
                pinned += msb * msb_in[key] + lsb * lsb_in[key]
        now = clock[state.EVENT]
        for j in range(uint64(ids.shape[1])):
            e = uint64(uint32(ids[i, j]))
            key = first_key + e
            flags[state.F_HIGH, i, j] = sizes[state.IS_HIGH]
            flags[state.F_LSB_NEEDED, i, j] = sizes[state.IS_SLICED]
            is_new = seen[e] != now
            seen[e] = now
            flags[state.F_MSB_HIT, i, j] = msb_in[key] if is_new else 1
            flags[state.F_LSB_HIT, i, j] = (lsb_in[key] if is_new else 1) * sizes[state.IS_SLICED]
            if not is_new:
                continue
            for part in range(1 + sizes[state.IS_SLICED]):
                is_lsb = part == 1
                size, before = lsb if is_lsb else msb, clock[state.USED]
                moved[i, 1] += size
                if lsb_in[key] if is_lsb else msb_in[key]:
                    refresh(key, end, lsb_link if is_lsb else msb_link)
                    continue
                moved[i, 0] += size
                clock[state.USED] = _load(
                    is_lsb, by_counts, before, pinned, now, key, sizes, counted, msb_link, lsb_link, msb_in, lsb_in, pin
                )
                pinned += size * (lsb_in[key] if is_lsb else msb_in[key])
