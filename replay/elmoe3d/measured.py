"""What a tape says of a model for these formulas: its popularity, how hot its hottest experts are, and what a round accepted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from tokentape.hw.coverage import PowerLaw
from tokentape.hw.elmoe3d_constants import ELMoE3DConstants, ModelLaw
from tokentape.hw.spec import HardwareSpec, with_values
from tokentape.replay.elmoe3d.mapping import SLICE_FRAC
from tokentape.replay.elmoe3d.points import STATIC_FORMAT, Setup, as_points, points_of
from tokentape.replay.trace import Trace

HALF = 0.5
LEAST_BETA = 1e-6


def law_of(trace: Trace) -> ModelLaw:
    """Exponent of the popularity, mean over layers, and the beta at which (half of the experts)^beta is the share of lookups that
    go to the hotter half: a static cache's hit rate, not an LRU's. No head.

    Raises ValueError where fewer than two tokens were routed.
    """
    geometry, exponents, hottest = trace.geometry, [], []
    for layer in range(len(geometry.moe_layers)):
        rows = np.flatnonzero(trace.row_layer == layer)
        counts = np.sort(np.bincount(trace.ids_of(rows)[0], minlength=geometry.n_experts))[::-1]
        exponents.append(PowerLaw.from_counts(counts, rows.size).exponent)
        hottest.append(counts[: geometry.n_experts // 2].sum() / counts.sum())
    beta = np.log(np.mean(hottest)) / np.log(HALF)
    return ModelLaw(beta=float(np.clip(beta, LEAST_BETA, 1.0)), exponent=float(np.mean(exponents)))


def mean_accepted(rounds: pl.DataFrame) -> float:
    """Accepted tokens of a round, mean over all requests; rounds: the tape's table, with a row per round and layer or per round.

    Raises ValueError without a round.
    """
    if rounds.is_empty():
        raise ValueError("the tape has no round: nothing was drafted")
    per_round = rounds.group_by("request_id", "round").agg(pl.col("n_accepted").first())
    return float(per_round["n_accepted"].cast(pl.Float64).mean())  # type: ignore[arg-type]


def through_machine(
    model: str,
    trace: Trace,
    rounds: pl.DataFrame,
    drafted: Mapping[str, Any],
    scheme: str,
    batch: int,
    largest: HardwareSpec,
    fit: ELMoE3DConstants,
) -> tuple[pl.DataFrame, Setup]:
    """The tape's model under the scheme that it was drafted with: its own popularity, accepted length, depth and batch.

    drafted: the drafter's settings. HB is as large as holds its pool, with the rates of the `largest` machine; what a round costs
    is the fit's.
    """
    own = replace(fit, laws={model: law_of(trace)}, speculation=replace(fit.speculation, n_draft_steps=int(drafted["depth"])))
    table = pl.DataFrame({"model": model, "machine": largest.name, "scheme": scheme, "batch": batch})
    point = points_of(table, own, accepted_len=mean_accepted(rounds))
    setup = Setup({model: (trace.geometry, STATIC_FORMAT)}, {largest.name: largest})
    of = as_points(point, setup)
    pool_bytes = SLICE_FRAC * float(drafted.get("pool_frac", 1.0)) * of.expert_bytes * of.n_experts * of.n_layers
    held_bytes = of.static_bytes + of.embedding_bytes + of.kv_bytes + pool_bytes
    key = f"tiers.{largest.roles.expert_cache}.capacity_bytes"
    return point, replace(setup, machines={largest.name: with_values(largest, {key: float(held_bytes[0])})})
