"""What routing says of placement, over seeds: rows of `cxl_ndp_hits`, `cxl_ndp_similarity` and `cxl_ndp_use`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tokentape.policies.placement import FIXED, Capacity
from tokentape.policies.placement.fixed import ShuffledPrompts
from tokentape.policies.placement.reactive import EMA
from tokentape.replay.cxl_ndp import rows
from tokentape.replay.cxl_ndp.decode import fixed
from tokentape.replay.cxl_ndp.hits import Placement, hits_of
from tokentape.replay.cxl_ndp.routing import CXLNDPRouting, in_batches
from tokentape.replay.cxl_ndp.similarity import similarity

Row = dict[str, Any]


def hit_rows(tapes: Sequence[CXLNDPRouting], where: Row, batch: int, ema_beta: float, hot_experts: int) -> Iterator[Row]:
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
            by_tape = [rows.hit_rows(hits_of(tape, groups, placement, Capacity(hot_experts)), tape.layers) for tape in tapes]
            common = {**where, "batch": size, "placement": name, "is_bound": placement.is_bound}
            for of_layer in zip(*by_tape, strict=True):
                shares = np.array([row["gpu_hit_frac"] for row in of_layer])
                band = {"gpu_hit_frac": float(np.median(shares)), "low": float(shares.min()), "high": float(shares.max())}
                yield common | {"hot_experts": hot_experts, "layer": of_layer[0]["layer"], "n_seeds": len(tapes)} | band


def similarity_rows(tapes: Sequence[CXLNDPRouting], where: Row) -> Iterator[Row]:
    """By layer, and their mean; means over tapes."""
    by_tape = [rows.similarity_rows(similarity(tape), tape.layers) for tape in tapes]
    for of_layer in zip(*by_tape, strict=True):
        means = {
            name: float(np.mean([row[name] for row in of_layer]))
            for name in of_layer[0]
            if name not in ("layer", "n_requests") and all(row[name] is not None for row in of_layer)
        }
        yield {**where, "n_seeds": len(tapes), "static_frac": None} | of_layer[0] | means


def use_rows(tape: CXLNDPRouting, where: Row, n_requests: int, bin_steps: int) -> Iterator[Row]:
    """Of the first requests that decode, by layer and bin of decode steps."""
    chosen = np.flatnonzero(tape.n_decode)[:n_requests]
    return ({**where, **row} for row in rows.use_rows(tape, chosen, bin_steps))
