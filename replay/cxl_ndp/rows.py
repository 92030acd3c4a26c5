"""What placements hit, how alike prompt and decode are, and which experts requests use: as rows of the warehouse's tables.

Rows lack what only the caller knows: study, model, source, and ranges over seeds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.replay.cxl_ndp.hits import Hits
from tokentape.replay.cxl_ndp.routing import CXLNDPRouting
from tokentape.replay.cxl_ndp.similarity import Similarity

Rows = list[dict[str, Any]]


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
