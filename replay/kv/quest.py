"""Quest over a tape: what share of recorded attention lies on the pages that each decoded query would read."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import numpy as np
import polars as pl

from tokentape.policies.kv.quest import Quest, page_scores
from tokentape.policies.kv.rule import Floats
from tokentape.policies.registry import name_of
from tokentape.replay.kv.tape import COLUMNS, AttentionTape, flat

VECTORS = ("query", "key_min", "key_max")


def replay_quest(tape: AttentionTape, policy: Quest, head_bytes: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Rows of kv_replays (one) and kv_heads. kept_mass_frac is of the tokens read; n_updates counts pages scored, and a page's
    bounds weigh what a token's keys and values do (head_bytes).

    Raises ValueError for a tape without pages, or whose rows are cut short.
    """
    page = int(tape.notes.get("page_tokens", 0))
    if not page or tape.notes["keep"] != "full":
        what = "holds no pages of keys" if not page else f"keeps {tape.notes['keep']} of every row"
        raise ValueError(f"tape {tape.trace_id} {what}; record it with --key-pages 16 --attention full")
    longest = max((n for _, n in tape.requests.values()), default=0)
    bounds: dict[tuple[int, int, int], tuple[np.ndarray, np.ndarray]] = {}
    sums = np.zeros((tape.geometry.n_layers, tape.n_heads, 4))  # as head_rows takes them
    n_scored = stored = whole_pairs = 0
    for piece in tape.pieces():
        frame = piece.select(*COLUMNS, *VECTORS).filter(pl.col("reduction").is_in(["column_sum", "row"]))
        lists = {name: flat(frame[name], np.float32) for name in ("mass", "key_positions", *VECTORS)}
        told = frame.select("request_id", "position", "layer", "kv_head", "reduction", "n_queries").iter_rows()
        for i, (request_id, position, layer, head, reduction, n_queries) in enumerate(told):
            mass, keys, query, low, high = (values[at[i] : at[i + 1]] for at, values in lists.values())
            first, n_pages = (position - n_queries + 1) // page, position // page + 1
            if (request_id, layer, head) not in bounds:
                width = low.size // (n_pages - first)
                made = np.full((-(-longest // page), width), np.inf, np.float32)
                bounds[request_id, layer, head] = made, -made
            lows, highs = bounds[request_id, layer, head]
            np.minimum(lows[first:n_pages], low.reshape(-1, lows.shape[1]), out=lows[first:n_pages])
            np.maximum(highs[first:n_pages], high.reshape(-1, lows.shape[1]), out=highs[first:n_pages])
            if reduction != "row":
                continue
            start = int(keys[0]) if keys.size else 0  # what a sliding layer still sees
            pages = np.arange(start // page, n_pages)
            if layer >= policy.dense_layers:
                seen = slice(pages[0], n_pages)
                pages = pages[0] + policy.read(page_scores(query.reshape(-1, lows.shape[1]), lows[seen], highs[seen]), page)
                n_scored += n_pages - seen.start
            is_read = np.isin(np.arange(start, position + 1) // page, pages)
            kept = mass[is_read].sum() / mass.sum()
            sums[layer, head] += 1, kept, kept, 0
            window = tape.geometry.windows_by_layer[layer]
            gone = max(0, position + 2 - window) if window else 0  # what the next query no longer sees
            stored += position + 1 - gone + n_pages - gone // page
            whole_pairs += position + 1
    n, all_kept = sums[..., 0].sum(), float(sums[..., 1].sum())
    if not n:
        raise ValueError(f"tape {tape.trace_id} holds no decoded attention rows: there is nothing to replay")
    told_policy = json.dumps(asdict(policy), sort_keys=True)
    key = {"trace_id": tape.trace_id, "policy": name_of("kv", policy), "parameters": told_policy, "renorm": False}
    steps = n / (len(tape.layers) * tape.n_heads)
    row = {
        "is_bound": False, "origin": tape.origin, "is_exact": True, "budget_tokens": policy.budget,
        "n_requests": len({request for request, _, _ in bounds}), "n_steps": round(steps), "kept_mass_frac": float(all_kept / n),
        "kept_mass_high_frac": float(all_kept / n),
        "n_evicted": 0, "n_updates": int(n_scored), "popular_frac": 1.0, "popular_stays_frac": 1.0, "x_bytes": 0.0,
        "kv_bytes": float(stored * head_bytes / steps), "full_bytes": float(whole_pairs * head_bytes / steps),
    }  # fmt: skip
    return key | row, head_rows(key, range(len(sums)), sums)


def head_rows(key: dict[str, Any], layers: Iterable[int], of_heads: Floats) -> list[dict[str, Any]]:
    """Rows of kv_heads. of_heads (layers, heads, 4): steps, sums of the kept mass and of its upper end, tokens evicted."""
    return [
        key | {
            "layer": layer, "kv_head": head, "n_steps": int(n), "kept_mass_frac": low / n, "kept_mass_high_frac": high / n,
            "n_evicted": int(left),
        }
        for layer, of_layer in zip(layers, of_heads, strict=True)
        for head, (n, low, high, left) in enumerate(of_layer.tolist())
        if n
    ]  # fmt: skip
