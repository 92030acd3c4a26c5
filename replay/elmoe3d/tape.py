"""What a tape says for these formulas: its popularity, what a round accepted, experts touched, and misses of an LRU by batch.

Exact where a request's routing does not depend on its batch: of requests decoded side by side only the order of lookups is new.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from tokentape.hw.coverage import PowerLaw
from tokentape.hw.elmoe3d_constants import ELMoE3DConstants, ModelLaw
from tokentape.hw.spec import HardwareSpec, with_values
from tokentape.replay.coverage import ONE_REQUEST, recorded_by_layer
from tokentape.replay.curve import lru_curve
from tokentape.replay.elmoe3d.laws import HIT_LAWS, touched, weights_of
from tokentape.replay.elmoe3d.points import SLICE_FRAC, STATIC_FORMAT, Floats, Setup, as_points, points_of
from tokentape.replay.semantics import Semantics
from tokentape.replay.serving.coverage_points import points
from tokentape.replay.stream import Stream, stream
from tokentape.replay.trace import DECODE, Trace

STEP = Semantics(scope="per-layer", lookup="atomic", start="persistent")  # an expert hits where it is resident when a step starts
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


def side_by_side(trace: Trace, batch: int) -> Stream:
    """Lookups of `batch` requests decoded at a time, one token of each per step, in the requests' order; a request that has ended
    leaves its steps smaller. Requests that fill no batch are left out.

    Raises ValueError where the tape decodes fewer requests than the batch.
    """
    decoded = np.flatnonzero(trace.pass_kind[trace.row_pass] == DECODE)
    names = ("request", "position", "layer")
    rows = pl.DataFrame({"row": decoded} | {name: getattr(trace, f"row_{name}")[decoded] for name in names})
    n_requests = rows["request"].n_unique()
    if not 1 <= batch <= n_requests:
        raise ValueError(
            f"tape {trace.trace_id} decodes {n_requests} requests; a batch of {batch} must be at least 1 and no more"
        )
    number, position = pl.col("request").rank("dense").cast(pl.Int64) - 1, pl.col("position")
    numbered = rows.with_columns(number=number, group=number // batch, step=position - position.min().over("request"))
    ordered = numbered.filter(pl.col("group") < n_requests // batch).sort("group", "step", "layer", "number")
    at = ordered["row"].to_numpy()
    row_pass = ordered.select(pl.struct("group", "step").rle_id()).to_series().to_numpy().astype(np.int32)
    ids, widths = trace.ids_of(at)
    bounds = np.concatenate(([0], np.cumsum(widths))).astype(np.int64)
    taken = {"row_pass": row_pass, "row_layer": trace.row_layer[at], "offsets": bounds, "ids": ids}
    return stream(replace(trace, **taken, pass_kind=np.full(row_pass[-1] + 1, DECODE, np.uint8)), STEP)


def lru_miss_fracs(steps: Stream, n_layers: int, n_experts: int, n_warm: int = 0) -> Floats:
    """(n_experts + 1,) misses over unique lookups of a per-layer LRU by its slots, none to all; the first n_warm steps fill it
    uncounted. Raises ValueError where no step is left."""
    n_steps = int(steps.event_pass[-1]) + 1
    if n_warm >= n_steps:
        raise ValueError(f"{n_steps} steps; {n_warm} to warm up leave none to count")
    warm = replace(steps, segments=np.array([0, np.searchsorted(steps.event_pass, n_warm)]))
    whole, before = (lru_curve(of, STEP, n_layers, n_experts) for of in (steps, warm))
    return np.append(1.0, 1.0 - (whole.n_hits - before.n_hits) / (whole.n_lookups - before.n_lookups))


def misses(
    trace: Trace, where: Mapping[str, Any], law: ModelLaw, batches: Sequence[int], fracs: Sequence[float], warm_steps: int
) -> Iterator[dict[str, Any]]:
    """Rows of elmoe3d_misses: an LRU replayed, and the hit laws, by batch and share of the experts cached. where: of the tape."""
    g = trace.geometry
    decoded = np.unique(trace.row_request[trace.pass_kind[trace.row_pass] == DECODE]).size
    weights = weights_of([(g.n_experts, g.top_k, law.exponent)])
    for batch in (batch for batch in batches if batch <= decoded):
        steps = side_by_side(trace, batch)
        lru = lru_miss_fracs(steps, len(g.moe_layers), g.n_experts, min(warm_steps, int(steps.event_pass[-1])))
        for share in fracs:
            slots = share * g.n_experts
            at = [np.array([value], np.float64) for value in (share, law.beta, batch, g.n_experts)]
            found = {"lru": (float(int(slots)), lru[int(slots)], "exact")}
            found |= {
                name: (slots, 1.0 - hit_frac(at[0], at[1], weights, at[2], at[3])[0], "approximate")
                for name, hit_frac in HIT_LAWS.items()
            }
            for name, (held, missed, fidelity) in found.items():
                told = {"source": trace.trace_id, "batch": batch, "hit_model": name, "cache_frac": share, "cache_experts": held}
                yield {**where, **told, "miss_frac_lookups": float(missed), "fidelity": fidelity}


def coverage(trace: Trace, model: str, law: ModelLaw) -> list[dict[str, Any]]:
    """Rows of coverage_points: recorded, by tokens of different requests and of one; the law's independent tokens beside them."""
    n_experts, found = trace.geometry.n_experts, list[dict[str, Any]]()
    weights = weights_of([(n_experts, trace.geometry.top_k, law.exponent)])
    for tokens_of in ("decode", ONE_REQUEST):
        curves = recorded_by_layer(trace, tokens_of)
        sizes = curves[0].n_tokens
        shares = np.array([curve.distinct for curve in curves]) / n_experts
        independent = touched(np.repeat(weights, sizes.size, axis=0), sizes) / n_experts
        mean = shares.mean(axis=0)
        of = (trace.trace_id, model, tokens_of, "all", sizes)
        found += points("recorded", *of, mean, shares.min(axis=0), shares.max(axis=0))
        found += points("power-law", *of, independent, error=independent / mean - 1.0)
    return found
