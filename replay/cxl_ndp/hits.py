"""Share of decode's expert activations that find their expert on the GPU, layer by layer, for any placement.

A group is one sequence, or a batch of them that shares its placement and decodes in lockstep; finished members drop out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.placement import FIXED, Capacity, FixedPlacement, ReactivePlacement, importance
from tokentape.policies.placement.fixed import ShuffledPrompts
from tokentape.policies.placement.reactive import EMA, Never
from tokentape.replay.cxl_ndp.decode import fixed
from tokentape.replay.cxl_ndp.kernel import HITS, MIGRATED, count
from tokentape.replay.cxl_ndp.routing import CXLNDPRouting, in_batches
from tokentape.replay.cxl_ndp.system import FP16_BITS

Placement = FixedPlacement | ReactivePlacement
Row = dict[str, Any]


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


def hit_rows(hits: Hits, layers: tuple[int, ...]) -> list[Row]:
    """Columns layer and gpu_hit_frac; layer None: all together. None where nothing was decoded."""
    if not hits.selected.any():
        return []
    by_layer = [{"layer": layer, "gpu_hit_frac": float(frac)} for layer, frac in zip(layers, hits.by_layer(), strict=True)]
    return [{"layer": None, "gpu_hit_frac": hits.hit_frac}, *by_layer]


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
