"""Share of decode's expert activations that find their expert on the GPU, layer by layer, for any placement.

A group is one sequence, or a batch of them that shares its placement and decodes in lockstep; finished members drop out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.kernels import array, float64, function, int16, int32, int64, kernel, uint8, void
from tokentape.policies.placement import (
    MIGRATE_SIGNATURE,
    Capacity,
    FixedPlacement,
    ReactivePlacement,
    importance,
    start_average,
)
from tokentape.replay.cxl_ndp.routing import CXLNDPRouting

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
    resident = np.ascontiguousarray(start if placement.starts_placed else np.zeros_like(start)).view(np.uint8)
    average = start_average(seen.prefill_counts, groups.shape[1], routing.top_k)
    hits, moved = np.zeros(selected.shape, np.int64), np.zeros(selected.shape, np.int64)
    ids, ends, params = np.ascontiguousarray(routing.decode_ids), routing.n_decode, placement.params()
    _follow(placement.migrate, params, ids, ends, groups, capacity.experts, average, resident, hits, moved)
    return Hits(hits, selected, moved, steps)


_F64, _I32 = array(float64, 1), array(int32, 1)
_I64_2D, _F64_3D, _U8_3D = array(int64, 2), array(float64, 3), array(uint8, 3)
_I16_4D = array(int16, 4)


@kernel(
    void(
        function(MIGRATE_SIGNATURE), _F64, _I16_4D, _I32, _I64_2D, int64, _F64_3D, _U8_3D, _I64_2D, _I64_2D,
    ),
)  # fmt: skip
def _follow(migrate, params, ids, ends, groups, capacity, average, resident, hits, moved):  # type: ignore[no-untyped-def]
    counts = np.zeros(average.shape[2], np.int64)
    for g in range(groups.shape[0]):
        for layer in range(ids.shape[2]):
            for t in range(ids.shape[1]):
                counts[:] = 0
                n_active = 0
                for s in groups[g]:
                    if t < ends[s]:
                        n_active += 1
                        for j in range(ids.shape[3]):
                            counts[ids[s, t, layer, j]] += 1
                if n_active == 0:
                    break
                moved[g, layer] += migrate(counts, average[g, layer], resident[g, layer], capacity, params)
                for e in range(counts.shape[0]):
                    if resident[g, layer, e]:
                        hits[g, layer] += counts[e]
