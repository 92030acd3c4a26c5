"""Measured times of a model's own layers (hw/by_model.py), read in the serving engine's loop from the table of an iteration.

Kernels take that table, whose third row from the last has the pack from column FIRST on.
"""

import numpy as np

from tokentape.hw.by_model import ALPHA, OF_ATTENTION, OF_EXPERTS, OF_LAYER, OF_ONCE, OF_SEQUENCE, ByModel
from tokentape.policies.kernels import F64_2D, float64, int64, kernel

# Rows of a transformer's step (replay/transformer.py) that the tables time, by name; those in _WITHIN in others' times.
LAYER, HEAD, EXPERTS = "query, key, value", "output head", "routed experts"
_WITHIN = (
    "attention output", "router", "shared experts, up", "shared experts, down", "dense FFN, up", "dense FFN, down",
    "norms, rotary embedding, activation", "sampler", "decode attention", "write keys and values",
)  # fmt: skip
ATTENTION = "prefill attention"
FIRST = 2  # column of an iteration's constants in which the pack begins


def seconds_of(tables: ByModel, n_experts: int, data: int, expert_parallel: int, has_ranks: bool) -> dict[str, str]:
    """Seconds of rows by name, as code over what an iteration carries (replay/serving/iteration.py): of the layer's rows and the
    head's. data: replicas, which wait for the busiest; expert_parallel: ranks of experts, of which the fullest counts where
    has_ranks."""
    busiest, pairs = f"verified / {data} + busiest", "pairs" if data == 1 else "busy_pairs"
    found = dict.fromkeys(_WITHIN, "")
    found[LAYER] = f"curve(t, {OF_LAYER}, {busiest})"
    found[ATTENTION] = f"attention(t, busiest, {pairs}, decodes / {data}, context, longest)"
    found[HEAD] = (
        f"curve(t, {OF_SEQUENCE}, verified / {data} + crowd * carries_prompt) + curve(t, {OF_ONCE}, verified / {data} + most)"
    )
    if tables.has_experts:
        tokens, share = ("heavy", "wide") if has_ranks else ("tokens", "share")
        found[EXPERTS] = f"plane(t, {tokens} / {expert_parallel}, {share} * {n_experts / expert_parallel!r})"
    return found


@kernel(float64(F64_2D, int64, float64))
def curve(t, which, n):  # type: ignore[no-untyped-def]
    """Seconds at n of a curve; 0 at 0."""
    if n <= 0.0:
        return 0.0
    at = FIRST + np.int64(t[t.shape[0] - 3, FIRST + which])
    row = t[t.shape[0] - 3]
    last = np.int64(row[at])
    i = min(np.int64(n), last - 1)
    return row[at + 1 + i] + (n - i) * (row[at + 2 + i] - row[at + 1 + i])


@kernel(float64(F64_2D, float64, float64))
def plane(t, n_tokens, n_active):  # type: ignore[no-untyped-def]
    """Seconds of a layer of experts."""
    row = t[t.shape[0] - 3]
    at = FIRST + np.int64(row[FIRST + OF_EXPERTS])
    last, n_columns = np.int64(row[at]), np.int64(row[at + 1])
    i = min(np.int64(n_tokens), last - 1)
    j = 0
    while j < n_columns - 2 and row[at + 3 + j] <= n_active:
        j += 1
    axis, values = at + 2, at + 2 + n_columns
    share = max(0.0, n_active - row[axis + j]) / (row[axis + j + 1] - row[axis + j])
    low, high = values + i * n_columns + j, values + (i + 1) * n_columns + j
    below = row[low] + share * (row[low + 1] - row[low])
    return below + (n_tokens - i) * (row[high] + share * (row[high + 1] - row[high]) - below)


@kernel()
def _below(row, start, value):  # type: ignore[no-untyped-def]
    """The point of an axis that a value lies above, as a float that also says how far towards the next."""
    low, high = np.int64(0), np.int64(row[start]) - 2
    while low < high:
        middle = (low + high + 1) // 2
        if row[start + 1 + middle] <= value:
            low = middle
        else:
            high = middle - 1
    at = start + 1 + low
    return low + (max(value, row[start + 1]) - row[at]) / (row[at + 1] - row[at]), low


@kernel(float64(F64_2D, *[float64] * 5))
def attention(t, prompt, pairs, decodes, context, longest):  # type: ignore[no-untyped-def]
    """Seconds of a call: prompt tokens with so many query-key pairs, beside decodes that attend to the mean `context`."""
    mean_s, alpha = _attention(t, prompt, pairs, decodes, context), t[t.shape[0] - 3, FIRST + ALPHA]
    if alpha == 0.0 or longest <= context:
        return mean_s
    return mean_s + alpha * (_attention(t, prompt, pairs, decodes, longest) - mean_s)


@kernel()
def _attention(t, prompt, pairs, decodes, context):  # type: ignore[no-untyped-def]
    """Of decodes that attend to as many tokens each."""
    row = t[t.shape[0] - 3]
    before = max(0.0, pairs / prompt - 0.5 * (prompt + 1.0)) if prompt > 0.0 else 0.0
    a0 = FIRST + np.int64(row[FIRST + OF_ATTENTION])
    a1 = a0 + 1 + np.int64(row[a0])
    a2 = a1 + 1 + np.int64(row[a1])
    a3 = a2 + 1 + np.int64(row[a2])
    values = a3 + 1 + np.int64(row[a3])
    n1, n2, n3 = np.int64(row[a1]), np.int64(row[a2]), np.int64(row[a3])
    x0, i0 = _below(row, a0, prompt)
    x1, i1 = _below(row, a1, before)
    x2, i2 = _below(row, a2, decodes)
    x3, i3 = _below(row, a3, context)
    total = 0.0
    for corner in range(16):
        b0, b1, b2, b3 = corner & 1, corner >> 1 & 1, corner >> 2 & 1, corner >> 3
        share = (x0 - i0 if b0 else 1.0 - (x0 - i0)) * (x1 - i1 if b1 else 1.0 - (x1 - i1))
        share *= (x2 - i2 if b2 else 1.0 - (x2 - i2)) * (x3 - i3 if b3 else 1.0 - (x3 - i3))
        if share != 0.0:
            total += share * row[values + (((i0 + b0) * n1 + i1 + b1) * n2 + i2 + b2) * n3 + i3 + b3]
    return total
