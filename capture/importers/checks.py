"""Is a trace what it says it is? Rows that break the tape's contract are rejected; signs of contamination become manifest flags.

The signs come from public traces that had them: warm-up batches logged as tokens (31 to 87 % consecutive identical rows in three
layer-0 logs), dummy batches with all weights 1/k, runs with an overridden top-k, engines that skip the last layer for all prompt
tokens but one, data sets with duplicate prompts.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from capture.importers.rows import RoutedRows, Source

REPEATED_TOKENS_FRAC = 0.05  # above it, consecutive identical tokens are reported

# Top-k of published models, to notice a run that overrode it. Keys are parts of a lower-case model name; the first to fit counts.
# Source: num_experts_per_tok in each model's config.json on the Hugging Face hub.
KNOWN_TOP_K = {
    "qwen3-30b-a3b": 8,
    "qwen3-coder-30b-a3b": 8,
    "qwen3-235b-a22b": 8,
    "qwen1.5-moe-a2.7b": 4,
    "gemma-4-26b-a4b": 8,  # https://docs.nvidia.com/nemo/megatron-bridge (Gemma 4 provider)
    "glm-4.7-flash": 4,
    "deepseek-v2-lite": 6,
    "deepseek-v3": 8,
    "gpt-oss": 4,
    "mixtral": 2,
    "olmoe": 8,
}


class BadImport(ValueError):
    """A trace that cannot become a tape; the message names the file, the row and the remedy. The store is unchanged."""


def known_top_k(model_name: str) -> int | None:
    """Top-k the model was published with, or None if it is not in the list."""
    return next((k for part, k in KNOWN_TOP_K.items() if part in model_name.lower()), None)


def reject(rows: RoutedRows, n_experts: int, where: str) -> None:
    """Raises BadImport for no rows, ids outside 0..n_experts-1 or repeated in a row, a weight not finite, a row given twice."""
    if not len(rows):
        raise BadImport(f"{where}: no routed rows; record the trace again")
    remedy = "the trace is damaged: record it again"
    outside = (rows.expert_ids < 0) | (rows.expert_ids >= n_experts)
    if outside.any():
        at, slot = np.argwhere(outside)[0]
        expert = rows.expert_ids[at, slot]
        raise BadImport(f"{where}: {_place(rows, at)}: expert {expert} is outside 0..{n_experts - 1}; {remedy}")
    ordered = np.sort(rows.expert_ids, axis=1)
    repeated = ordered[:, 1:] == ordered[:, :-1]
    if repeated.any():
        at, slot = np.argwhere(repeated)[0]
        raise BadImport(f"{where}: {_place(rows, at)}: expert {ordered[at, slot]} appears twice in the row; {remedy}")
    if rows.gate_weights is not None and not np.isfinite(rows.gate_weights).all():
        at, slot = np.argwhere(~np.isfinite(rows.gate_weights))[0]
        raise BadImport(f"{where}: {_place(rows, at)}: weight {slot} is {rows.gate_weights[at, slot]}; {remedy}")
    order = np.lexsort((rows.layer, rows.position, rows.request_id))
    twice = (np.diff(rows.request_id[order]) == 0) & (np.diff(rows.position[order]) == 0) & (np.diff(rows.layer[order]) == 0)
    if twice.any():
        raise BadImport(f"{where}: {_place(rows, order[1:][twice][0])}: this row was already given; {remedy}")


def findings(rows: RoutedRows, source: Source) -> dict[str, Any]:
    """Signs of contamination: name -> detail, JSON values. Empty for a clean trace.

    top_k_override, missing_rows, repeated_tokens_frac, uniform_weights_frac, duplicate_prompts: see this module's head.
    """
    flags: dict[str, Any] = {}
    k = rows.expert_ids.shape[1]
    if source.model_top_k is not None and source.model_top_k != k:
        flags["top_k_override"] = {"recorded": k, "model": source.model_top_k}
    n_tokens, layers = len(rows.first_of_token()), source.geometry.moe_layers
    if len(rows) != n_tokens * len(layers):
        counts = np.bincount(rows.layer, minlength=source.geometry.n_layers)
        short = {str(layer): int(n_tokens - counts[layer]) for layer in layers if counts[layer] < n_tokens}
        flags["missing_rows"] = {"expected": n_tokens * len(layers), "found": len(rows), "missing_by_layer": short}
    repeated = _repeated_tokens_frac(rows)
    if repeated > REPEATED_TOKENS_FRAC:
        flags["repeated_tokens_frac"] = round(repeated, 4)
    if rows.gate_weights is not None and k > 1:
        uniform = float(np.mean(np.all(np.abs(rows.gate_weights - 1 / k) < 1e-6, axis=1)))
        if uniform > 0:
            flags["uniform_weights_frac"] = round(uniform, 4)
    duplicates = _duplicate_prompts(rows, source.token_ids)
    if duplicates:
        flags["duplicate_prompts"] = duplicates
    return flags


def _place(rows: RoutedRows, at: int) -> str:
    return f"request {rows.request_id[at]}, position {rows.position[at]}, layer {rows.layer[at]}"


def _repeated_tokens_frac(rows: RoutedRows) -> float:
    """Share of tokens that chose, in every layer they have, exactly the experts of the token before in their request."""
    order = np.lexsort((rows.position, rows.layer, rows.request_id))
    request, layer, position = rows.request_id[order], rows.layer[order], rows.position[order]
    ids = rows.expert_ids[order]
    follows = (np.diff(request) == 0) & (np.diff(layer) == 0) & (np.diff(position) == 1)
    same = follows & (ids[1:] == ids[:-1]).all(axis=1)
    token = (request[1:].astype(np.int64) << 32) | position[1:]
    compared, inverse = np.unique(token[follows], return_inverse=True)
    if not len(compared):
        return 0.0
    differing = np.bincount(inverse, weights=~same[follows])
    return float(np.mean(differing == 0))


def _duplicate_prompts(rows: RoutedRows, token_ids: dict[int, np.ndarray] | None) -> int:
    """Requests whose prompt an earlier request had; judged by the prompt's token ids, else by its routing."""
    seen: set[bytes] = set()
    requests = np.unique(rows.request_id)
    for request in requests:
        prompt = (rows.request_id == request) & ~rows.is_decode
        if token_ids is not None and int(request) in token_ids:
            content = token_ids[int(request)][: len(np.unique(rows.position[prompt]))]
        else:
            content = np.column_stack((rows.position[prompt], rows.layer[prompt], rows.expert_ids[prompt]))
        seen.add(hashlib.sha256(np.ascontiguousarray(content, dtype=np.int64).tobytes()).digest())
    return len(requests) - len(seen)
