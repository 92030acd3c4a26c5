"""The kernel that takes recorded attention rows through a KV policy: one event is one query of one layer, all heads."""

import numpy as np

from tokentape.policies import kernels as kn
from tokentape.policies.kernels import array, boolean, float32, float64, function, int32, int64, kernel, uint64
from tokentape.policies.kv.recompute import enter, judge, leave
from tokentape.policies.kv.rule import WEIGH_SIGNATURE
from tokentape.policies.kv.slots import expire, place, settle

_F32_IN, _I32_IN = (array(t, 1, readonly=True) for t in (float32, int32))  # as Arrow hands them over
ROW_TOLERANCE = 2e-3  # of a softmax row's sum, float16 rows included
# What is wrong with a row: codes that run_events returns, times ROWS plus the row.
OK, NOT_A_NUMBER, SUM_IS_OFF, OUT_OF_RANGE, NO_SLOT = range(5)
ROWS = 1 << 40


@kernel(int64(_I32_IN, _F32_IN, int64, kn.F32))
def _spread(keys, mass, now, dense):  # type: ignore[no-untyped-def]
    """Writes listed masses to `dense` (n,) by position. Returns OK or what is wrong with the row."""
    for i in range(uint64(mass.shape[0])):
        at = keys[i]
        if at < 0 or at > now:
            return OUT_OF_RANGE
        dense[uint64(at)] = mass[i]
    return OK


@kernel(
    int64(
        function(WEIGH_SIGNATURE), kn.F64, kn.I64, boolean, boolean, float64, float64, kn.I64, kn.I32, kn.I64, kn.I64, _F32_IN,
        kn.I64, _I32_IN, _F32_IN, kn.I32_3D, kn.F64_3D, kn.F64_3D, array(float32, 4), kn.I64_2D, kn.F64_3D, kn.I32_2D, kn.U8_2D,
        kn.I64_2D, kn.F64_3D, kn.I64_2D, kn.I64_2D, kn.F32, kn.F64,
    ),
)  # fmt: skip
def run_events(  # type: ignore[no-untyped-def]
    weigh, params, limits, renorm, stores_x, row_sum, theta, windows, layers, now, mass_bounds, mass, key_bounds, keys, rest,
    positions, total, rank, memory, salts, future, held, is_x, tally, kept, n_left, tallies, dense, seen,
):  # fmt: skip
    """Advances one request by m events of n_heads rows each; returns OK or a code (see above) for the first bad row.

    layers (m,) i32, now (m,) i64: layer index and query position of an event; its rows e * n_heads + h bounded by mass_bounds and
    key_bounds (no keys: all positions from 0), rest by row. windows (L,): of sliding layers, 0: none. State by layer: positions,
    total, rank (L, G, S), memory (L, G, S, m), salts (L, G), G 1 where heads share a set; held (L, n), is_x (L, n), tally (L, 5).
    future (L, G, n): attention still to come, weighed instead, (0, 0, 0): none. row_sum: what a row must sum to, negative:
    at most so much. Out: kept (m, n_heads, 3): mass on retained tokens, not listed, and of the whole row; n_left (m, G) tokens
    evicted; tallies (m, 5) after the event. dense (n,) zero on entry and exit, seen (S,): scratch.
    """
    n_heads, n_sets, n_slots = kept.shape[1], positions.shape[1], uint64(positions.shape[2])
    per_set = n_heads // n_sets
    has_future = future.shape[0] > 0
    here = np.zeros(n_slots)
    for e in range(now.shape[0]):
        at, t = layers[e], now[e]
        enter(held[at], is_x[at], tally[at], t, n_heads, theta, stores_x)
        for g in range(n_sets):
            slots = positions[at, g]
            if place(slots, total[at, g], rank[at, g], t) < 0:
                return NO_SLOT * ROWS + e * n_heads + g
            seen[:] = 0.0
            for h in range(g * per_set, (g + 1) * per_set):
                row = e * n_heads + h
                first, last = mass_bounds[row], mass_bounds[row + 1]
                listed, until = key_bounds[row], key_bounds[row + 1]
                is_listed = until > listed
                if not is_listed and last - first != t + 1:
                    return OUT_OF_RANGE * ROWS + row
                row_mass = mass[first:last]
                if is_listed and _spread(keys[listed:until], row_mass, t, dense) != OK:
                    return OUT_OF_RANGE * ROWS + row
                whole, on_kept = float64(rest[row]), 0.0
                for i in range(uint64(row_mass.shape[0])):
                    whole += row_mass[i]
                for s in range(n_slots):
                    at_slot = uint64(max(slots[s], 0))
                    here[s] = (dense[at_slot] if is_listed else row_mass[at_slot]) if slots[s] >= 0 else 0.0
                    on_kept += here[s]
                if not (whole >= 0.0 and rest[row] > -ROW_TOLERANCE):
                    return NOT_A_NUMBER * ROWS + row
                if whole > abs(row_sum) * (1.0 + ROW_TOLERANCE) or (row_sum > 0.0 and whole < row_sum * (1.0 - ROW_TOLERANCE)):
                    return SUM_IS_OFF * ROWS + row
                kept[e, h, 0], kept[e, h, 1], kept[e, h, 2] = on_kept, rest[row], whole
                factor = whole / on_kept if renorm and on_kept > 0.0 else 1.0
                for s in range(n_slots):
                    seen[s] += factor * here[s]
                if has_future:
                    for i in range(row_mass.shape[0]):
                        future[at, g, keys[listed + i] if is_listed else i] -= row_mass[i]
                for i in range(listed, until):
                    dense[uint64(keys[i])] = 0.0
            if has_future:
                for s in range(n_slots):
                    seen[s] = future[at, g, slots[s]] if slots[s] >= 0 else 0.0
            left = settle(
                weigh, params, seen, slots, t, limits, windows[at], salts[at, g], total[at, g], rank[at, g], memory[at, g]
            )
            n_left[e, g] = left >= 0
            expired = expire(slots, t, windows[at])
            for position in (left, expired):
                if position >= 0:
                    for _ in range(per_set):
                        leave(held[at], is_x[at], tally[at], position, n_heads, theta)
        out_of_window = t - limits[2]
        if stores_x and out_of_window >= 0 and held[at, out_of_window] > 0:
            judge(held[at], is_x[at], tally[at], out_of_window, n_heads, theta)
        tallies[e] = tally[at]
    return int64(OK)


@kernel(int64(kn.I32, kn.I64, _F32_IN, kn.I64, _I32_IN, kn.I64, kn.F64_3D, int64))
def add_future(layers, mass_bounds, mass, key_bounds, keys, now, future, n_heads):  # type: ignore[no-untyped-def]
    """Adds the rows of m events to `future` (L, G, n); returns OK or a code for the first bad row."""
    per_set = n_heads // future.shape[1]
    for e in range(layers.shape[0]):
        for h in range(n_heads):
            row = e * n_heads + h
            listed, until = key_bounds[row], key_bounds[row + 1]
            for i in range(mass_bounds[row + 1] - mass_bounds[row]):
                position = keys[listed + i] if until > listed else i
                if position < 0 or position > now[e]:
                    return OUT_OF_RANGE * ROWS + row
                future[layers[e], h // per_set, position] += mass[mass_bounds[row] + i]
    return int64(OK)
