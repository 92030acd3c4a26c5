"""Seconds, bytes and operations of one iteration of a serving engine, from coefficients per kind of layer.

Layers of one kind cost the same for the same work, so an iteration is a sum over kinds: layers of the group that processes the
prompt batch, and the others, which see decodes only. The terms are those of Layered Prefill (docs/serving.md); replay/serving_cost.py
makes the coefficients.
"""

from __future__ import annotations

from numba import njit, types
from numba.core.types import float64, int64

# Columns of `layers` (C, N_LAYER): one row per kind of layer. All times are those of one device of the tensor-parallel group.
(
    COVERED_S,  # reading all routed experts; times the share touched
    TOKEN_S,  # a token through its experts, or through the dense FFN
    SHARED_S,  # reading what every token uses of the FFN beside routed experts
    WEIGHTS_S,  # reading the attention projections
    WEIGHTS_TOKEN_S,  # a token through them
    PAIR_S,  # a prefill query and a key
    CONTEXT_S,  # reading one token of a decode's KV cache
    IS_WINDOWED,  # 1: attends to the window only
    COVERED_BYTES,  # routed experts of a layer; 0 in a dense one
    FFN_BYTES,  # all FFN weights that coverage is a share of
    FIXED_BYTES,  # attention projections and shared experts
    CONTEXT_BYTES,
    TOKEN_BYTES,  # activations
    TOKEN_OPS,
    PAIR_OPS,
) = range(15)
N_LAYER = 15

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
) = range(11)
N_ENGINE = 11

# Entries of an iteration's cost (N_COST,): seconds by part, then what it moves and computes on all devices together.
MOE_S, DENSE_S, ATTENTION_S, COMM_S, OTHER_S, EXPERT_BYTES, MOVED_BYTES, OPS = range(8)
N_COST = 8
N_TIMES = 5

_F1, _F2 = types.Array(float64, 1, "C"), types.Array(float64, 2, "C")


@njit(float64(_F2, int64, int64), cache=True, nogil=True)
def covered(table, n_tokens, kind):  # type: ignore[no-untyped-def]
    """Share of a layer's experts that n_tokens touch. Beyond the table the untouched share falls as 1 / n_tokens."""
    last = table.shape[0] - 1
    if n_tokens <= last:
        return table[n_tokens, kind]
    return 1.0 - (1.0 - table[last, kind]) * last / n_tokens


@njit(
    types.void(_F2, _F1, _F1, _F1, _F1, _F1, int64, int64, float64, float64, float64, float64, _F1),
    cache=True,
    nogil=True,
)
def iteration_cost(layers, engine, in_group, others, cov_mixed, cov_decode, n_prefill, n_decode, pairs, pairs_w, context, context_w, cost):  # type: ignore[no-untyped-def]
    """Fills `cost` (N_COST,) of one iteration.

    in_group, others: (C,) layers of each kind that process the prompt batch and the decodes, and the decodes only. cov_mixed,
    cov_decode: (C,) share of the experts touched in them. pairs: query-key pairs of the prompt slices; context: tokens in the
    decodes' KV caches; with _w: counted within the window.
    """
    for i in range(N_COST):
        cost[i] = 0.0
    kv = 1.0
    if engine[KV_FRAC_PER_DECODE] > 0.0:
        kv = max(1.0, engine[KV_FRAC] / (engine[KV_FRAC_PER_DECODE] * max(n_decode, 1)))
    n_layers = 0.0
    for c in range(layers.shape[0]):
        n_layers += in_group[c] + others[c]
        keys = context_w if layers[c, IS_WINDOWED] else context
        queries = pairs_w if layers[c, IS_WINDOWED] else pairs
        for is_group in range(2):
            count = in_group[c] if is_group else others[c]
            if count == 0.0:
                continue
            share = cov_mixed[c] if is_group else cov_decode[c]
            n = float(n_decode + n_prefill if is_group else n_decode)
            seen = queries if is_group else 0.0
            has_tokens = 1.0 if n > 0.0 else 0.0
            cost[MOE_S] += count * (share * layers[c, COVERED_S] + has_tokens * layers[c, SHARED_S] + n * layers[c, TOKEN_S])
            cost[DENSE_S] += count * max(layers[c, WEIGHTS_S], n * layers[c, WEIGHTS_TOKEN_S])
            cost[ATTENTION_S] += count * (seen * layers[c, PAIR_S] + keys * kv * layers[c, CONTEXT_S])
            cost[COMM_S] += count * (engine[REDUCE_S] + n * engine[REDUCE_TOKEN_S])
            cost[EXPERT_BYTES] += count * share * layers[c, COVERED_BYTES]
            cost[MOVED_BYTES] += count * (
                share * layers[c, FFN_BYTES] + layers[c, FIXED_BYTES] + keys * layers[c, CONTEXT_BYTES] + n * layers[c, TOKEN_BYTES]
            )
            cost[OPS] += count * (n * layers[c, TOKEN_OPS] + (seen + keys) * layers[c, PAIR_OPS])
            if is_group:
                cost[OTHER_S] += count * n_prefill * engine[PREFILL_TOKEN_S]
    if n_prefill > 0:
        cost[OTHER_S] += n_layers * engine[PREFILL_LAYER_S] + engine[PREFILL_ITERATION_S]
    else:
        cost[OTHER_S] += n_layers * engine[DECODE_LAYER_S] + engine[DECODE_ITERATION_S]
    cost[DENSE_S] += engine[HEAD_S]
    for i in range(N_TIMES):
        cost[i] *= engine[MULTIPLIER]
