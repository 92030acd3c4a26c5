"""Share of decode's expert activations that find their expert on the GPU, layer by layer, for any placement.

A group is one sequence, or a batch of them that shares its placement and decodes in lockstep; finished members drop out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.placement import Capacity, FixedPlacement, ReactivePlacement, importance
from tokentape.replay.cxl_ndp.counts import count
from tokentape.replay.cxl_ndp.kernel import HITS, MIGRATED
from tokentape.replay.cxl_ndp.routing import CXLNDPRouting
from tokentape.replay.cxl_ndp.system import FP16_BITS

Placement = FixedPlacement | ReactivePlacement


@dataclass(frozen=True, eq=False)
class Hits:
    """Of G groups. hits, selected: (G, L) i64 decode activations on GPU experts, and in all. moved: (G, L) i64 experts that
    crossed the link during decode. steps: (G,) i64 layer-steps in which a member still decoded."""

    hits: NDArray[np.int64]
    selected: NDArray[np.int64]
    moved: NDArray[np.int64]
    steps: NDArray[np.int64]

    @property
    def hit_frac(self) -> float:
        """Over all groups and layers; NaN where nothing was decoded."""
        return float(self.hits.sum() / self.selected.sum()) if self.selected.any() else float("nan")

    def by_layer(self) -> NDArray[np.float64]:
        """(L,) hit share; NaN where nothing was decoded."""
        selected = self.selected.sum(axis=0)
        hits = self.hits.sum(axis=0)
        return np.asarray(np.divide(hits, selected, out=np.full(selected.size, np.nan), where=selected > 0))

    def moves_per_step(self) -> NDArray[np.float64]:
        """(L,) experts that cross the link per layer-step."""
        return np.asarray(self.moved.sum(axis=0) / max(1, int(self.steps.sum())), np.float64)


def hits_of(
    routing: CXLNDPRouting, groups: NDArray[np.int64], placement: Placement, capacity: Capacity, alpha: float = 0.5
) -> Hits:
    """Of the groups (G, B) of sequences. alpha: of the set that a reactive placement starts from.

    Raises ValueError for more places than experts, and for a reactive placement across layers.
    """
    seen = routing.seen(groups)
    steps = routing.n_decode[groups].max(axis=1).astype(np.int64)
    selected = seen.decode_counts.sum(axis=2)
    if isinstance(placement, FixedPlacement):
        hot = capacity.hot(placement.scores(seen))
        hits = (seen.decode_counts * hot).sum(axis=2)
        return Hits(hits, selected, np.zeros_like(hits), steps)
    if capacity.across_layers:
        raise ValueError(f"{type(placement).__name__} moves experts layer by layer; give every layer its own places")
    start = capacity.hot(importance(seen.prefill_counts, seen.prefill_weights, alpha))
    start &= placement.starts_placed
    bits, layers = np.full(start.shape, FP16_BITS), np.arange(routing.n_layers)
    of_layers = count(routing, groups, placement, start, capacity.experts, bits, layers, layers.size).of_layers
    group_of, (hits, moved) = np.repeat(np.arange(steps.size), steps), (np.zeros(selected.shape, np.int64) for _ in range(2))
    np.add.at(hits, group_of, of_layers[HITS].astype(np.int64))
    np.add.at(moved, group_of, of_layers[MIGRATED].astype(np.int64))
    return Hits(hits, selected, moved, steps)
