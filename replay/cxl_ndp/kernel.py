"""The decode of all batches on one system, layer-step by layer-step, over recorded routing: where experts compute and what moves.

Nothing is sampled or averaged, and nothing is timed. Sequences of a batch decode in lockstep; one that has ended drops out.
"""

import numpy as np
from numpy.typing import NDArray

from tokentape.hw.work import Floats, Ints
from tokentape.policies.kernels import F64, F64_3D, I32, I64, I64_2D, U8_3D, array, function, int16, int64, kernel, void
from tokentape.policies.placement import MIGRATE_SIGNATURE, ReactivePlacement, migrated, start_average
from tokentape.replay.cxl_ndp.routing import CXLNDPRouting
from tokentape.replay.cxl_ndp.work import Items

# Of a layer-step: experts that migrated, experts on the GPU and elsewhere that have tokens, those tokens, and the experts
# elsewhere in FP16 ones.
MIGRATED, HOT, HITS, AWAY, ON_AWAY, READS, N_COUNTS = range(7)

_I16_4D = array(int16, 4)


@kernel(int64(int64, int64, int64, int64, I64, I64, I64, F64))
def _add(cell, key, first, n, at, cells, keys, times):  # type: ignore[no-untyped-def]
    """One more expert of `key` in the cell whose items begin at `first`; the items there are then."""
    i = at[key]
    if i >= first and i < n and keys[i] == key:
        times[i] += 1.0
        return n
    at[key] = n
    cells[n] = cell
    keys[n] = key
    times[n] = 1.0
    return n + 1


@kernel(
    void(
        function(MIGRATE_SIGNATURE), F64, _I16_4D, I32, I64_2D, F64_3D, U8_3D, U8_3D, F64, int64, I64, int64, F64_3D,
        I64, I64, F64, I64, I64, F64, I64,
    ),
)  # fmt: skip
def decode(  # type: ignore[no-untyped-def]
    migrate, params, ids, n_decode, groups, average, resident, width_of, widths, capacity, blocks, n_blocks, counted,
    hot_cells, hot_keys, hot_times, away_cells, away_keys, away_times, n_found,
):  # fmt: skip
    """Counts every layer-step.

    migrate, params: of a reactive placement. ids (S, T, L, k) i16, n_decode (S,) i32. groups (G, B) i64 sequences of a batch.
    average (G, L, E) f64 and resident (G, L, E) u8: the placement when decoding starts; both are overwritten. width_of (G, L, E)
    u8: index into widths, the bits of an expert that is not on the GPU. capacity: experts of a layer there. blocks (L,) of
    n_blocks: which block a layer is. Out: counted (N_COUNTS, steps, L), zero on entry, steps of all batches one after the other;
    hot_, away_: experts by cell (step x n_blocks + block), on the GPU by tokens, elsewhere by width x (B + 1) + tokens, and how
    many alike; n_found (2,): how many of both.
    """
    n_members, n_layers, n_experts, top_k = groups.shape[1], resident.shape[1], resident.shape[2], ids.shape[3]
    counts, n_keys = np.zeros(n_experts, np.int64), n_members + 1
    hot_at, away_at = np.full(n_keys, -1, np.int64), np.full(n_keys * widths.size, -1, np.int64)
    step, n_hot, n_away = 0, 0, 0
    for g in range(groups.shape[0]):
        for t in range(ids.shape[1]):
            batch = 0
            for m in range(n_members):
                batch += n_decode[groups[g, m]] > t
            if batch == 0:
                break
            for at in range(n_layers):
                counts[:] = 0
                for m in range(n_members):
                    s = groups[g, m]
                    if n_decode[s] > t:
                        for j in range(top_k):
                            counts[ids[s, t, at, j]] += 1
                counted[MIGRATED, step, at] = migrated(migrate, counts, average[g, at], resident[g, at], capacity, params)
                cell, first_hot, first_away = step * n_blocks + blocks[at], n_hot, n_away
                for e in range(n_experts):
                    n = counts[e]
                    if n == 0:
                        continue
                    if resident[g, at, e]:
                        counted[HOT, step, at] += 1.0
                        counted[HITS, step, at] += n
                        n_hot = _add(cell, n, first_hot, n_hot, hot_at, hot_cells, hot_keys, hot_times)
                    else:
                        w = width_of[g, at, e]
                        counted[AWAY, step, at] += 1.0
                        counted[ON_AWAY, step, at] += n
                        counted[READS, step, at] += widths[w] / 16.0
                        n_away = _add(cell, w * n_keys + n, first_away, n_away, away_at, away_cells, away_keys, away_times)
            step += 1
    n_found[0], n_found[1] = n_hot, n_away


def count(
    routing: CXLNDPRouting,
    groups: Ints,
    placement: ReactivePlacement,
    start: NDArray[np.bool_],
    capacity: int,
    bits: NDArray[np.number],
    blocks: Ints,
    n_blocks: int,
) -> tuple[Floats, Items, Items]:
    """(N_COUNTS, S, L) of S steps, of all batches one after the other; experts by themselves, on the GPU and elsewhere.

    groups (G, B) sequences of a batch; start (G, L, E): on the GPU when decoding starts; capacity: experts of a layer there;
    bits (G, L, E): of experts elsewhere; blocks (L,) of n_blocks: which block of a step a layer is."""
    n_members, (n_layers, n_experts) = groups.shape[1], start.shape[1:]
    n_steps = int(routing.n_decode[groups].max(axis=1).sum())
    average = start_average(routing.prefill_counts[groups].sum(axis=1), n_members, routing.top_k)
    widths, width_of = np.unique(bits, return_inverse=True)
    n_items = n_steps * n_layers * min(n_experts, n_members * routing.top_k)
    counted, n_found = np.zeros((N_COUNTS, n_steps, n_layers)), np.zeros(2, np.int64)
    hot, away = ((np.empty(n_items, np.int64), np.empty(n_items, np.int64), np.empty(n_items)) for _ in range(2))
    decode(
        placement.migrate, placement.params(), np.ascontiguousarray(routing.decode_ids), routing.n_decode, groups, average,
        start.astype(np.uint8), width_of.reshape(start.shape).astype(np.uint8), widths.astype(np.float64), capacity, blocks,
        n_blocks, counted, *hot, *away, n_found,
    )  # fmt: skip
    n_hot, n_away = n_found
    width, tokens = np.divmod(away[1][:n_away], n_members + 1)
    return (
        counted,
        Items(hot[0][:n_hot], hot[1][:n_hot], hot[2][:n_hot], hot[2][:n_hot]).at_fp16(),
        Items(away[0][:n_away], tokens, widths[width].astype(np.float64), away[2][:n_away]),
    )
