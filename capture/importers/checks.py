"""Is a trace what it says it is? Rows that break the tape's contract are rejected; signs of contamination become manifest flags.

The signs come from public traces that had them: warm-up batches logged as tokens (31 to 87 % consecutive identical rows in three
layer-0 logs), dummy batches with all weights 1/k, runs with an overridden top-k, engines that skip the last layer for all prompt
tokens but one, data sets with duplicate prompts.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from tokentape.capture.importers.limits import MAX_EXPERTS, MAX_GATE_WEIGHT, MAX_LAYERS, MAX_TOKENS, U32, BadImport

if TYPE_CHECKING:
    from tokentape.capture.importers.rows import RoutedRows, Source

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


def known_top_k(model_name: str) -> int | None:
    """Top-k the model was published with, or None if it is not in the list."""
    return next((k for part, k in KNOWN_TOP_K.items() if part in model_name.lower()), None)


def reject(rows: RoutedRows, source: Source) -> None:
    """Raises BadImport for no rows, numbers no model has, an id twice in a row, a row given twice, a token in two passes."""
    geometry, ids = source.geometry, rows.expert_ids
    if not len(rows):
        raise BadImport(f"{source.path}: no routed rows; record the trace again")
    for name, found, most in (("layers", geometry.n_layers, MAX_LAYERS), ("experts", geometry.n_experts, MAX_EXPERTS)):
        if found > most:
            raise BadImport(f"{source.path}: {found} {name}; no model has more than {most}: give the trace of a real one")
    for name, numbers, most in (
        ("request", rows.request_id, U32),
        ("position", rows.position, MAX_TOKENS - 1),
        ("layer", rows.layer, geometry.n_layers - 1),
    ):
        if numbers.min() < 0 or numbers.max() > most:
            at = int(np.argmax((numbers < 0) | (numbers > most)))
            raise _bad(rows, source, at, f"{name} {numbers[at]} is outside 0..{most}")
    is_moe = np.isin(np.arange(geometry.n_layers), geometry.moe_layers)
    if not is_moe[rows.layer].all():
        at = int(np.argmin(is_moe[rows.layer]))
        raise _bad(rows, source, at, f"layer {rows.layer[at]} has no experts in this model")
    if ids.min() < 0 or ids.max() >= geometry.n_experts:
        at, slot = np.argwhere((ids < 0) | (ids >= geometry.n_experts))[0]
        raise _bad(rows, source, at, f"expert {ids[at, slot]} is outside 0..{geometry.n_experts - 1}")
    ordered = np.sort(ids.astype(np.uint16), axis=1)
    repeated = ordered[:, 1:] == ordered[:, :-1]
    if repeated.any():
        at, slot = np.argwhere(repeated)[0]
        raise _bad(rows, source, at, f"expert {ordered[at, slot]} appears twice in the row")
    weights = rows.gate_weights
    if weights is not None and not np.abs(weights).max() <= MAX_GATE_WEIGHT:
        at, slot = np.argwhere(~(np.abs(weights) <= MAX_GATE_WEIGHT))[0]
        raise _bad(rows, source, at, f"weight {slot} is {weights[at, slot]}, outside {MAX_GATE_WEIGHT:g} either way")
    grouped = rows.grouped
    is_next = np.diff(grouped.code)
    if not is_next.all():
        raise _bad(rows, source, grouped.order[np.argmin(is_next != 0) + 1], "this row was already given")
    moved = np.diff(rows.pass_id[grouped.order]) != 0
    moved[grouped.starts[1:] - 1] = False
    if moved.any():
        raise _bad(rows, source, grouped.order[np.argmax(moved) + 1], "its token runs in two passes")


def findings(rows: RoutedRows, source: Source) -> dict[str, Any]:
    """Signs of contamination: name -> detail, JSON values. Empty for a clean trace.

    top_k_override, missing_rows, repeated_tokens_frac, uniform_weights_frac, duplicate_prompts: see this module's head.
    """
    flags: dict[str, Any] = {}
    k = rows.expert_ids.shape[1]
    if source.model_top_k is not None and source.model_top_k != k:
        flags["top_k_override"] = {"recorded": k, "model": source.model_top_k}
    n_tokens, layers = len(rows.grouped.first), source.geometry.moe_layers
    if len(rows) != n_tokens * len(layers):
        counts = np.bincount(rows.layer, minlength=source.geometry.n_layers)
        short = {str(layer): int(n_tokens - counts[layer]) for layer in layers if counts[layer] < n_tokens}
        flags["missing_rows"] = {"expected": n_tokens * len(layers), "found": len(rows), "missing_by_layer": short}
    repeated = _repeated_tokens_frac(rows, len(layers))
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


def _bad(rows: RoutedRows, source: Source, at: int, what: str) -> BadImport:
    request = int(rows.request_id[at])
    where = source.origins[request] if source.origins else f"{source.path}: request {request}"
    place = f"{where}, position {rows.position[at]}, layer {rows.layer[at]}"
    return BadImport(f"{place}: {what}; the trace is damaged: record it again")


def _repeated_tokens_frac(rows: RoutedRows, n_moe: int) -> float:
    """Share of tokens that chose, in every layer they have, exactly the experts of the token before in their request."""
    grouped, n = rows.grouped, len(rows)
    later: slice | np.ndarray
    before: slice | np.ndarray
    if n == len(grouped.first) * n_moe:  # every token has every layer: the token before stands so many rows back
        later, before = slice(n_moe, None), slice(None, max(0, n - n_moe))
    else:
        found = np.searchsorted(grouped.code, grouped.code - grouped.n_layers)
        later = np.flatnonzero(grouped.code[found] == grouped.code - grouped.n_layers)
        before = found[later]
    adjacent = grouped.code[later] - grouped.code[before] == grouped.n_layers
    adjacent &= rows.position[grouped.order][later] > 0  # not the last token of the request before
    follows, differs = np.zeros((2, n), bool)
    follows[later] = adjacent
    differs[later] = adjacent & (grouped.expert_ids[later] != grouped.expert_ids[before]).any(axis=1)
    compared, differing = (np.bitwise_or.reduceat(flags, grouped.starts).sum() for flags in (follows, differs))
    return float(1 - differing / compared) if compared else 0.0


def _duplicate_prompts(rows: RoutedRows, token_ids: dict[int, np.ndarray] | None) -> int:
    """Requests whose prompt an earlier request had; judged by the prompt's token ids, else by its routing."""
    seen: set[bytes] = set()
    grouped, known = rows.grouped, token_ids or {}
    is_prompt = ~rows.is_decode[grouped.order]
    code, ids = grouped.code[is_prompt], grouped.expert_ids[is_prompt]
    bounds = grouped.request_ids * grouped.n_positions * grouped.n_layers
    begins = np.searchsorted(code, bounds)
    for number, bound, begin, end in zip(grouped.request_ids.tolist(), bounds, begins, [*begins[1:], len(code)], strict=True):
        places = code[begin:end] - bound  # positions with layers
        parts = [places, ids[begin:end]]
        if number in known:
            parts = [known[number][: len(np.unique(places // grouped.n_layers))]]
        seen.add(hashlib.sha256(b"".join(np.ascontiguousarray(part).data for part in parts)).digest())
    return len(grouped.request_ids) - len(seen)
