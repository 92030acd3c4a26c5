"""What prompts say of the decode that follows: the share of its expert activations that find their expert on the GPU, for any
placement, and how alike the two use a layer's experts, and how much of that any other prompt would do.

A group is one sequence, or a batch of them that shares its placement and decodes in lockstep; finished members drop out.

Similarity is the cosine of the two count vectors over the experts, per (sequence, layer). Counts are positive, so that even use
is alike: of two vectors whose uneven parts have nothing in common the cosine is `flat`. What lies above is this sequence's own,
or popularity: the prompts of all other sequences, each against this decode, show the latter.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.hw.work import Floats
from tokentape.policies.placement import FIXED, PLACEMENTS, Capacity, FixedPlacement, ReactivePlacement, importance
from tokentape.policies.placement.fixed import ShuffledPrompts
from tokentape.policies.placement.reactive import EMA, Never
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
        found = count(routing, groups[of], mover, start[of], capacity.experts, bits[of], layers, layers.size)[0]
        hits[g], moved[g] = found[HITS].sum(axis=0), found[MIGRATED].sum(axis=0)
    return Hits(hits, seen.decode_counts.sum(axis=2), moved, routing.n_decode[groups].max(axis=1).astype(np.int64))


def hit_rows(found: Sequence[Hits], layers: tuple[int, ...]) -> list[Row]:
    """Columns layer, gpu_hit_frac, low, high and n_seeds: medians and ranges over tapes; layer None: all together. None where
    nothing was decoded."""
    by_tape = np.array([[hits.hit_frac, *hits.by_layer()] for hits in found if hits.selected.any()])
    rows = []
    for layer, of in zip((None, *layers), by_tape.T, strict=by_tape.size > 0):
        band = {"gpu_hit_frac": float(np.median(of)), "low": float(of.min()), "high": float(of.max())}
        rows.append({"layer": layer, "n_seeds": of.size, **band})
    return rows


def hits_over_seeds(tapes: Sequence[CXLNDPRouting], where: Row, batch: int, ema_beta: float, hot_experts: int) -> Iterator[Row]:
    """Every fixed placement and the reactive EMA, once per sequence and once per batch.

    tapes: one per seed; what decodes nothing here takes no part. where: model_id, source and origin.
    """
    named: dict[str, Any] = {name: PLACEMENTS[name]() for name in FIXED} | {"ema": EMA(ema_beta)}
    fewest = min(tape.n_sequences for tape in tapes)
    for size in (1, min(batch, fewest)):
        for name, placement in named.items():
            if isinstance(placement, ShuffledPrompts) and fewest < 2 * size:
                continue  # another group's prompt, where there is none
            groups = in_batches(fewest, size)
            found = [hits_of(tape, groups, placement, Capacity(hot_experts)) for tape in tapes]
            known = {"batch": size, "placement": name, "is_bound": placement.is_bound, "hot_experts": hot_experts}
            yield from (where | known | row for row in hit_rows(found, tapes[0].layers))


def similarity_rows(routing: CXLNDPRouting) -> list[Row]:
    """Columns layer, *_cosine, static_frac and n_requests; layer None: mean of the layers. None without two that decode.

    own: of a sequence's prompt and decode, mean over those that decode; the others take part in nothing. shuffled: over all pairs
    of a decode and another sequence's prompt. static: of a decode and the prompts of all other sequences summed, a popularity
    list. flat, flat_shuffled: the same pairs as own and shuffled if uneven use had nothing in common.
    """
    is_used = routing.n_decode > 0
    if is_used.sum() < 2:
        return []
    prompts, decoded = routing.prefill_counts[is_used].astype(np.float64), routing.decode_counts()[is_used].astype(np.float64)
    p, d, others = _unit(prompts), _unit(decoded), _unit(prompts.sum(axis=0) - prompts)
    even = np.full(p.shape[2], p.shape[2] ** -0.5)
    columns = {
        "own_cosine": (p * d).sum(axis=2).mean(axis=0),
        "shuffled_cosine": _of_pairs(p, d),
        "static_cosine": (others * d).sum(axis=2).mean(axis=0),
        "flat_cosine": ((p @ even) * (d @ even)).mean(axis=0),
        "flat_shuffled_cosine": _of_pairs((p @ even)[..., None], (d @ even)[..., None]),
    }
    above = columns["own_cosine"] - columns["flat_cosine"]
    popular = columns["shuffled_cosine"] - columns["flat_shuffled_cosine"]
    rows = []
    for layer, where in [(None, slice(None)), *((layer, slice(i, i + 1)) for i, layer in enumerate(routing.layers))]:
        means = {name: float(values[where].mean()) for name, values in columns.items()}
        own, other = float(above[where].mean()), float(popular[where].mean())
        static_frac = other / own if own > 0 else None
        rows.append({"layer": layer, **means, "static_frac": static_frac, "n_requests": int(is_used.sum())})
    return rows


def _of_pairs(prompts: Floats, decoded: Floats) -> Floats:
    """(L,) mean inner product of a prompt and another sequence's decode, (n, L, m) each, over all n (n - 1) pairs."""
    n = len(prompts)
    total = (prompts.sum(axis=0) * decoded.sum(axis=0)).sum(axis=1) - (prompts * decoded).sum(axis=(0, 2))
    return np.asarray(total / (n * (n - 1)), np.float64)


def _unit(counts: Floats) -> Floats:
    length = np.linalg.norm(counts, axis=2, keepdims=True)
    return np.asarray(np.divide(counts, length, out=np.zeros_like(counts), where=length > 0))


def similarity_over_seeds(tapes: Sequence[CXLNDPRouting], where: Row) -> Iterator[Row]:
    """By layer, and their mean; means over tapes of which two sequences decode."""
    by_tape = [rows for tape in tapes if (rows := similarity_rows(tape))]
    for of_layer in zip(*by_tape, strict=True):
        columns = {name: [row[name] for row in of_layer] for name in of_layer[0] if name.endswith(("_cosine", "_frac"))}
        means = {name: None if None in of else float(np.mean(of)) for name, of in columns.items()}
        yield where | {"n_seeds": len(by_tape)} | of_layer[0] | means


def use_rows(routing: CXLNDPRouting, sequences: NDArray[np.int64], bin_steps: int) -> list[Row]:
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
