"""What placements hit, how alike prompt and decode are, and which experts requests use: as rows of the warehouse's tables.

Rows lack what only the caller knows: study, model, source; medians and ranges over seeds come last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.placement import FIXED, Capacity
from tokentape.policies.placement.fixed import ShuffledPrompts
from tokentape.policies.placement.reactive import EMA
from tokentape.replay.cxl_ndp.decode import fixed
from tokentape.replay.cxl_ndp.hits import Hits, Placement, hits_of
from tokentape.replay.cxl_ndp.routing import CXLNDPRouting, in_batches
from tokentape.replay.cxl_ndp.similarity import Similarity, similarity

Row = dict[str, Any]
Rows = list[Row]


def hit_rows(hits: Hits, layers: tuple[int, ...]) -> Rows:
    """Columns layer and gpu_hit_frac; layer None: all together. None where nothing was decoded."""
    if not hits.selected.any():
        return []
    by_layer = [{"layer": layer, "gpu_hit_frac": float(frac)} for layer, frac in zip(layers, hits.by_layer(), strict=True)]
    return [{"layer": None, "gpu_hit_frac": hits.hit_frac}, *by_layer]


def similarity_rows(found: Similarity, layers: tuple[int, ...]) -> Rows:
    """Columns layer, *_cosine, static_frac and n_requests; layer None: mean of the layers. None without two that decode."""
    if np.isnan(found.shuffled).any():
        return []
    columns = {
        "own_cosine": found.by_layer(),
        "shuffled_cosine": found.shuffled,
        "static_cosine": found.static,
        "flat_cosine": found.flat,
        "flat_shuffled_cosine": found.flat_shuffled,
    }
    n_requests = int((~np.isnan(found.own[:, 0])).sum())
    above, popular = columns["own_cosine"] - found.flat, found.shuffled - found.flat_shuffled
    rows = []
    for layer, where in [(None, slice(None)), *((layer, slice(i, i + 1)) for i, layer in enumerate(layers))]:
        means = {name: float(values[where].mean()) for name, values in columns.items()}
        own, other = float(above[where].mean()), float(popular[where].mean())
        rows.append({"layer": layer, **means, "static_frac": other / own if own > 0 else None, "n_requests": n_requests})
    return rows


def use_rows(routing: CXLNDPRouting, sequences: NDArray[np.int64], bin_steps: int) -> Rows:
    """Columns request_id, layer, first_step, bin_steps, expert, use_frac of these sequences' decode."""
    if bin_steps < 1:
        raise ValueError(f"bin of {bin_steps} steps must be 1 or more")
    rows = []
    for s in sequences:
        for first in range(0, int(routing.n_decode[s]), bin_steps):
            ids = routing.decode_ids[s, first : min(first + bin_steps, int(routing.n_decode[s]))]
            for i, layer in enumerate(routing.layers):
                counts = np.bincount(ids[:, i].ravel(), minlength=routing.n_experts)
                place = {"request_id": int(routing.request_ids[s]), "layer": layer, "first_step": first, "bin_steps": bin_steps}
                used = ((int(e), float(counts[e] / counts.sum())) for e in np.flatnonzero(counts))
                rows += [{**place, "expert": expert, "use_frac": frac} for expert, frac in used]
    return rows


def hits_over_seeds(tapes: Sequence[CXLNDPRouting], where: Row, batch: int, ema_beta: float, hot_experts: int) -> Iterator[Row]:
    """Every fixed placement and the reactive EMA, once per sequence and once per batch: medians and ranges over tapes.

    tapes: one per seed. where: model_id, source and origin.
    """
    named: dict[str, Placement] = {name: fixed(name) for name in FIXED}
    named["ema"] = EMA(ema_beta)
    fewest = min(tape.n_sequences for tape in tapes)
    for size in (1, min(batch, fewest)):
        for name, placement in named.items():
            if isinstance(placement, ShuffledPrompts) and fewest < 2 * size:
                continue  # another group's prompt, where there is none
            groups = in_batches(fewest, size)
            by_tape = [hit_rows(hits_of(tape, groups, placement, Capacity(hot_experts)), tape.layers) for tape in tapes]
            common = {**where, "batch": size, "placement": name, "is_bound": placement.is_bound}
            for of_layer in zip(*by_tape, strict=True):
                shares = np.array([row["gpu_hit_frac"] for row in of_layer])
                band = {"gpu_hit_frac": float(np.median(shares)), "low": float(shares.min()), "high": float(shares.max())}
                yield common | {"hot_experts": hot_experts, "layer": of_layer[0]["layer"], "n_seeds": len(tapes)} | band


def similarity_over_seeds(tapes: Sequence[CXLNDPRouting], where: Row) -> Iterator[Row]:
    """By layer, and their mean; means over tapes."""
    by_tape = [similarity_rows(similarity(tape), tape.layers) for tape in tapes]
    for of_layer in zip(*by_tape, strict=True):
        means = {
            name: float(np.mean([row[name] for row in of_layer]))
            for name in of_layer[0]
            if name not in ("layer", "n_requests") and all(row[name] is not None for row in of_layer)
        }
        yield {**where, "n_seeds": len(tapes), "static_frac": None} | of_layer[0] | means
