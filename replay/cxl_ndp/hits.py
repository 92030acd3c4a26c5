"""Share of decode's expert activations that find their expert on the GPU, layer by layer, for any placement.

A group is one sequence, or a batch of them that shares its placement and decodes in lockstep; finished members drop out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.placement import Capacity, FixedPlacement, ReactivePlacement, importance
from tokentape.policies.placement.reactive import Never
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
    seen, mover = routing.seen(groups), Never() if isinstance(placement, FixedPlacement) else placement
    if isinstance(placement, FixedPlacement):
        start = capacity.hot(placement.scores(seen))
    elif capacity.across_layers:
        raise ValueError(f"{type(placement).__name__} moves experts layer by layer; give every layer its own places")
    else:
        start = capacity.hot(importance(seen.prefill_counts, seen.prefill_weights, alpha)) & placement.starts_placed
    bits, layers = np.full(start.shape, FP16_BITS), np.arange(routing.n_layers)
    hits, moved = np.zeros((2, len(groups), routing.n_layers), np.int64)
    for g, of in enumerate(slice(g, g + 1) for g in range(len(groups))):  # the kernel's items of one batch at a time
        found = count(routing, groups[of], mover, start[of], capacity.experts, bits[of], layers, layers.size).of_layers
        hits[g], moved[g] = found[HITS].sum(axis=0), found[MIGRATED].sum(axis=0)
    return Hits(hits, seen.decode_counts.sum(axis=2), moved, routing.n_decode[groups].max(axis=1).astype(np.int64))
