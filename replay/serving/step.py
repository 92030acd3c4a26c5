"""Seconds, bytes and operations of one iteration of a serving engine, from coefficients per kind of layer.

Layers of one kind cost the same for the same work, so an iteration is a sum over kinds: layers of the group that processes the
prompt batch, and the others, which see decodes only. docs/serving.md explains the terms; replay/serving/cost.py makes the
coefficients.
"""

from __future__ import annotations

import math

from tokentape.policies.kernels import array, float64, int64, kernel, uint64

# Columns of `layers` (C, N_LAYER): one row per kind of layer. All times are those of one device of the tensor-parallel group.
(
    COVERED_S,  # reading all routed experts; times the share touched
    TOKEN_S,  # a token through its experts
    WEIGHTS_S,  # reading what every token uses: the attention projections, and the dense FFN or the shared experts
    WEIGHTS_TOKEN_S,  # a token through them
    PAIR_S,  # a prefill query and a key
    CONTEXT_S,  # reading one token of a decode's KV cache
    IS_WINDOWED,  # 1: attends to the window only
    COVERED_BYTES,  # routed experts of a layer; 0 in a dense one
    FIXED_BYTES,  # what every token uses
    CONTEXT_BYTES,
    TOKEN_BYTES,  # activations
    TOKEN_OPS,
    PAIR_OPS,
) = range(13)
N_LAYER = 13

# Entries of `engine` (N_ENGINE,).
(
    REDUCE_S,  # both all-reduces of a layer, whatever they carry
    REDUCE_TOKEN_S,  # and per token
    PREFILL_LAYER_S,  # rest of a layer when the iteration carries prefill
    DECODE_LAYER_S,  # and when it does not
    PREFILL_TOKEN_S,  # rest of a layer per prefill token of it
    HEAD_S,  # output head
    PREFILL_ITERATION_S,  # rest of an iteration that carries prefill
    DECODE_ITERATION_S,  # and of one that does not
    KV_FRAC,  # share of the bandwidth at which decodes read the KV cache
    KV_FRAC_PER_DECODE,  # its limit per decode of the batch; 0: none
    MULTIPLIER,  # of every time
    NODES,  # drafted tokens that every decode has verified
    DRAFT_S,  # making them, in an iteration with decodes
) = range(13)
N_ENGINE = 13

# Entries of an iteration's cost (N_COST,): seconds by part, then what it moves and computes on all devices together.
MOE_S, DENSE_S, ATTENTION_S, COMM_S, OTHER_S, EXPERT_BYTES, MOVED_BYTES, OPS = range(8)
N_COST = 8
N_TIMES = 5
POINTS_PER_OCTAVE = 8  # of a table of expert times

_F2 = array(float64, 2)


@kernel(float64(_F2, int64, int64), error_model="numpy")
def covered(table, n_tokens, kind):  # type: ignore[no-untyped-def]
    """Share of a layer's experts that n_tokens touch. Beyond the table the untouched share falls as 1 / n_tokens."""
    last = table.shape[0] - 1
    if n_tokens <= last:
        return table[uint64(n_tokens), uint64(kind)]
    return 1.0 - (1.0 - table[last, kind]) * last / n_tokens


@kernel("float64(float64[:, ::1], float64, float64)", error_model="numpy")
def experts_s(table, n_tokens, share):  # type: ignore[no-untyped-def]
    """Seconds of a layer's experts from a table over tokens (POINTS_PER_OCTAVE from 1) and share touched (0 to 1), bilinear."""
    across, along = table.shape[1] - 1, table.shape[0] - 1
    x, y = min(math.log2(n_tokens) * POINTS_PER_OCTAVE, along), share * across
    i, j = min(int(x), along - 1), min(int(y), across - 1)
    low = table[i, j] + (table[i, j + 1] - table[i, j]) * (y - j)
    high = table[i + 1, j] + (table[i + 1, j + 1] - table[i + 1, j]) * (y - j)
    return low + (high - low) * (x - i)


@kernel(
    "UniTuple(float64, 8)(float64[:, ::1], float64[::1], float64[:, ::1], float64[::1], float64[::1], float64[::1], float64[::1],"
    "int64, int64, float64, float64, float64, float64)",
    error_model="numpy",
)
def iteration_cost(  # type: ignore[no-untyped-def]
    layers, engine, expert_times, in_group, others, cov_mixed, cov_decode, n_prefill, n_decode, pairs, pairs_w, context, context_w
):
    """The cost of one iteration, in the order of MOE_S .. OPS.

    expert_times: a table of experts_s, or empty: then the coefficients tell. in_group, others: (C,) layers of each kind that
    process the prompt batch and the decodes, and the decodes only; a layer without tokens does nothing. cov_mixed, cov_decode:
    (C,) share of the experts touched in them. pairs: query-key pairs of the prompt slices; context: tokens in the decodes' KV
    caches; with _w: counted within the window.
    """
    moe_s = dense_s = attention_s = comm_s = other_s = expert_bytes = moved_bytes = ops = 0.0
    kv = 1.0
    if engine[KV_FRAC_PER_DECODE] > 0.0:
        kv = max(1.0, engine[KV_FRAC] / (engine[KV_FRAC_PER_DECODE] * max(n_decode, 1)))
    n_nodes = engine[NODES]
    n_verified = n_decode * (1.0 + n_nodes)
    rest_s = engine[PREFILL_LAYER_S] if n_prefill > 0 else engine[DECODE_LAYER_S]
    for kind in range(layers.shape[0]):
        c = uint64(kind)
        of_kind = layers[c]
        keys = context_w if of_kind[IS_WINDOWED] > 0.0 else context
        keys_s = keys * max(kv * of_kind[CONTEXT_S], n_nodes * of_kind[PAIR_S])
        scored = keys * (1.0 + n_nodes)
        for is_group in range(2):
            count = in_group[c] if is_group else others[c]
            n = n_verified + n_prefill if is_group else n_verified
            if count == 0.0 or n == 0.0:
                continue
            share, queries = cov_decode[c], 0.0
            if is_group:
                share = cov_mixed[c]
                queries = pairs_w if of_kind[IS_WINDOWED] > 0.0 else pairs
                other_s += count * n_prefill * engine[PREFILL_TOKEN_S]
            if expert_times.shape[0] > 0 and of_kind[COVERED_BYTES] > 0.0:
                moe_s += count * experts_s(expert_times, n, share)
            else:
                moe_s += count * (share * of_kind[COVERED_S] + n * of_kind[TOKEN_S])
            dense_s += count * max(of_kind[WEIGHTS_S], n * of_kind[WEIGHTS_TOKEN_S])
            attention_s += count * (queries * of_kind[PAIR_S] + keys_s)
            comm_s += count * (engine[REDUCE_S] + n * engine[REDUCE_TOKEN_S])
            other_s += count * rest_s
            expert_bytes += count * share * of_kind[COVERED_BYTES]
            moved_bytes += count * (
                share * of_kind[COVERED_BYTES] + of_kind[FIXED_BYTES] + keys * of_kind[CONTEXT_BYTES] + n * of_kind[TOKEN_BYTES]
            )
            ops += count * (n * of_kind[TOKEN_OPS] + (queries + scored) * of_kind[PAIR_OPS])
    dense_s += engine[HEAD_S]
    other_s += engine[PREFILL_ITERATION_S] if n_prefill > 0 else engine[DECODE_ITERATION_S]
    if n_decode > 0:
        other_s += engine[DRAFT_S]
    m = engine[MULTIPLIER]
    return moe_s * m, dense_s * m, attention_s * m, comm_s * m, other_s * m, expert_bytes, moved_bytes, ops
