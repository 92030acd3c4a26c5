"""Is a trace what it says it is? Rows that break the tape's contract are rejected; signs of contamination become manifest flags.

The signs come from public traces that had them: warm-up batches logged as tokens (31 to 87 % consecutive identical rows in three
layer-0 logs), dummy batches with all weights 1/k, runs with an overridden top-k, engines that skip the last layer for all prompt
tokens but one, data sets with duplicate prompts.
"""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tokentape.capture.importers.limits import MAX_EXPERTS, MAX_GATE_WEIGHT, MAX_LAYERS, MAX_TOKENS, U32, BadImport

if TYPE_CHECKING:
    from tokentape.capture.importers.rows import RoutedRows, Source

BLOCK_ROWS = 1 << 16  # that are sorted or compared together
REPEATED_TOKENS_FRAC = 0.05  # above it, consecutive identical tokens are reported
_FEW_COLUMNS = 16  # every pair of so many is compared in less time than their rows are sorted

KNOWN_TOP_K: dict[str, int] = tomllib.loads((Path(__file__).parent / "top_k.toml").read_text(encoding="utf-8"))


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
        ("expert", ids, geometry.n_experts - 1),
    ):
        if numbers.min() < 0 or numbers.max() > most:
            at, *slot = np.argwhere((numbers < 0) | (numbers > most))[0]
            raise _bad(rows, source, at, f"{name} {numbers[at, *slot]} is outside 0..{most}")
    is_moe = np.isin(np.arange(geometry.n_layers), geometry.moe_layers)
    if not is_moe[rows.layer].all():
        at = int(np.argmin(is_moe[rows.layer]))
        raise _bad(rows, source, at, f"layer {rows.layer[at]} has no experts in this model")
    twice = _given_twice(ids)
    if twice is not None:
        raise _bad(rows, source, twice[0], f"expert {twice[1]} appears twice in the row")
    weights = rows.gate_weights
    if weights is not None and not np.abs(weights).max() <= MAX_GATE_WEIGHT:
        at, slot = np.argwhere(~(np.abs(weights) <= MAX_GATE_WEIGHT))[0]
        raise _bad(rows, source, at, f"weight {slot} is {weights[at, slot]}, outside {MAX_GATE_WEIGHT:g} either way")
    grouped = rows.grouped
    for row, what in ((grouped.repeated, "this row was already given"), (grouped.moved, "its token runs in two passes")):
        if row is not None:
            raise _bad(rows, source, row, what)


def findings(rows: RoutedRows, source: Source) -> dict[str, Any]:
    """Signs of contamination: name -> detail, JSON values. Empty for a clean trace.

    top_k_override, missing_rows, missing_prefill (tokens before a request's first), repeated_tokens_frac, uniform_weights_frac,
    duplicate_prompts: see this module's head.
    """
    flags: dict[str, Any] = {}
    k = rows.expert_ids.shape[1]
    if source.model_top_k is not None and source.model_top_k != k:
        flags["top_k_override"] = {"recorded": k, "model": source.model_top_k}
    layers, places, starts = source.geometry.moe_layers, rows.position[rows.grouped.first], rows.grouped.bounds[:-1]
    spans = np.maximum.reduceat(places, starts) - np.minimum.reduceat(places, starts) + 1  # a request's tokens follow each other
    n_tokens = int(spans.sum())
    if len(rows) != n_tokens * len(layers):
        counts = np.bincount(rows.layer, minlength=source.geometry.n_layers)
        short = {str(layer): int(n_tokens - counts[layer]) for layer in layers if counts[layer] < n_tokens}
        flags["missing_rows"] = {"expected": n_tokens * len(layers), "found": len(rows), "missing_by_layer": short}
    before = places[starts]
    if before.any():
        flags["missing_prefill"] = {"requests": int((before > 0).sum()), "tokens": int(before.sum())}
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


def _given_twice(ids: np.ndarray) -> tuple[int, int] | None:
    """The first row that has an id twice, and the least such id; None if none has."""
    k = ids.shape[1]
    for begin in range(0, len(ids), BLOCK_ROWS):
        block = ids[begin : begin + BLOCK_ROWS]
        columns = np.ascontiguousarray(block.T)
        if k <= _FEW_COLUMNS and not any((columns[gap:] == columns[:-gap]).any() for gap in range(1, k)):
            continue
        ordered = np.sort(block, axis=1)
        is_repeated = ordered[:, 1:] == ordered[:, :-1]
        if is_repeated.any():
            at, slot = np.argwhere(is_repeated)[0]
            return begin + int(at), int(ordered[at, slot])
    return None


def _repeated_tokens_frac(rows: RoutedRows, n_moe: int) -> float:
    """Share of tokens that chose, in every layer they have, exactly the experts of the token before in their request."""
    grouped, ids, n = rows.grouped, rows.expert_ids, len(rows)
    first, order, starts = grouped.first, grouped.order, grouped.starts
    follows = np.concatenate(([False], (np.diff(rows.position[first]) == 1) & (np.diff(rows.request_id[first]) == 0)))
    differs = np.zeros(len(first), bool)
    if n == len(first) * n_moe:  # every token has every layer: most differ in the first one already
        differs[1:] = (ids[first[1:]] != ids[first[:-1]]).any(axis=1)
        alike = np.flatnonzero(follows & ~differs)
        later, before = (order[starts[tokens][:, None] + np.arange(n_moe)] for tokens in (alike, alike - 1))
        differs[alike] = (ids[later] != ids[before]).any(axis=(1, 2))
    else:
        token, n_layers = np.repeat(np.arange(len(first)), np.diff(starts, append=n)), int(rows.layer.max()) + 1
        key = token * n_layers + rows.layer[order]
        found = np.searchsorted(key, key - n_layers)
        later = np.flatnonzero(key[found] == key - n_layers)
        follows[np.setdiff1d(token, token[later])] = False
        differs[token[later][(ids[order[later]] != ids[order[found[later]]]).any(axis=1)]] = True
    compared, differing = int(follows.sum()), int((follows & differs).sum())
    return 1 - differing / compared if compared else 0.0


def _duplicate_prompts(rows: RoutedRows, token_ids: dict[int, np.ndarray] | None) -> int:
    """Requests whose prompt an earlier request had, of those with one; judged by its token ids, else by its routing."""
    seen: set[bytes] = set()
    grouped, known = rows.grouped, token_ids or {}
    is_prompt, ends = ~rows.is_decode[grouped.first], np.append(grouped.starts, len(rows))
    asked = np.flatnonzero(np.logical_or.reduceat(is_prompt, grouped.bounds[:-1]))
    for at in asked.tolist():
        number, begin, end = int(grouped.request_ids[at]), grouped.bounds[at], grouped.bounds[at + 1]
        if number in known:
            parts = [known[number][: is_prompt[begin:end].sum()]]
        else:
            routed = grouped.order[ends[begin] : ends[end]]
            routed = routed[~rows.is_decode[routed]]
            parts = [column[routed] for column in (rows.position, rows.layer, rows.expert_ids)]
        seen.add(hashlib.sha256(b"".join(np.ascontiguousarray(part).data for part in parts)).digest())
    return len(asked) - len(seen)
