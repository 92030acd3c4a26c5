"""What a tape says for these formulas: its popularity, what a round accepted, experts touched, and misses of an LRU by batch.

Exact where a request's routing does not depend on its batch: of requests decoded side by side only the company is new.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from tokentape.hw.coverage import PowerLaw
from tokentape.hw.elmoe3d_constants import ELMoE3DConstants, ModelLaw
from tokentape.hw.profile import Profile
from tokentape.hw.spec import HardwareSpec, with_values
from tokentape.hw.work import Rows
from tokentape.replay.coverage import ONE_REQUEST, recorded_by_layer
from tokentape.replay.elmoe3d.events import lru_hits, texts_of
from tokentape.replay.elmoe3d.laws import HIT_LAWS, touched, weights_of
from tokentape.replay.elmoe3d.points import SLICE_FRAC, STATIC_FORMAT, Setup, as_points, points_of
from tokentape.replay.elmoe3d.runs import s_per_byte
from tokentape.replay.serving.coverage_points import points
from tokentape.replay.trace import Trace

HALF = 0.5
LEAST_BETA = 1e-6
PRINTED = 0.005  # of the paper's speed-ups
EXPONENTS = np.linspace(0.0, 4.0, 401)


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


def drafted_point(
    model: str, trace: Trace, drafted: Mapping[str, Any], scheme: str, batch: int, largest: HardwareSpec, fit: ELMoE3DConstants
) -> tuple[pl.DataFrame, Setup]:
    """The tape's model under the scheme and depth that it was drafted with, without its acceptance and law, which events count.

    drafted: the drafter's settings. HB is as large as holds its pool, with the rates of the `largest` machine.
    """
    depth, unused = int(drafted["depth"]), {model: ModelLaw(beta=1.0, exponent=0.0)}
    own = replace(fit, laws=unused, speculation=replace(fit.speculation, n_draft_steps=depth))
    table = pl.DataFrame({"model": model, "machine": largest.name, "scheme": scheme, "batch": batch})
    point, setup = (
        points_of(table, own, accepted_len=0.0),
        Setup({model: (trace.geometry, STATIC_FORMAT)}, {largest.name: largest}),
    )
    of = as_points(point, setup)
    pool_bytes = SLICE_FRAC * float(drafted.get("pool_frac", 1.0)) * of.expert_bytes * of.n_experts * of.n_layers
    held_bytes = of.static_bytes + of.embedding_bytes + of.kv_bytes + pool_bytes
    key = f"tiers.{largest.roles.expert_cache}.capacity_bytes"
    return point, replace(setup, machines={largest.name: with_values(largest, {key: float(held_bytes[0])})})


def misses(
    trace: Trace, where: Mapping[str, Any], law: ModelLaw, batches: Sequence[int], fracs: Sequence[float], warm_steps: int
) -> Iterator[dict[str, Any]]:
    """Rows of elmoe3d_misses: an LRU replayed, and the hit laws, by batch and share of the experts cached. where: of the tape."""
    g, texts = trace.geometry, texts_of(trace)
    weights = weights_of([(g.n_experts, g.top_k, law.exponent)])
    for batch in (batch for batch in batches if batch <= len(texts.tokens)):
        steps = np.concatenate(texts.side_by_side(batch)) > 0
        if not len(steps):
            continue
        counted = slice(min(warm_steps, len(steps) - 1), None)
        for share in fracs:
            slots = share * g.n_experts
            at = [np.array([value], np.float64) for value in (share, law.beta, batch, g.n_experts)]
            missed = 1.0 - float(lru_hits(steps, int(slots))[counted].sum() / steps[counted].sum())
            found = {"lru": (float(int(slots)), missed, "exact")}
            found |= {
                name: (slots, 1.0 - hit_frac(at[0], at[1], weights, at[2], at[3])[0], "approximate")
                for name, hit_frac in HIT_LAWS.items()
            }
            for name, (held, missed, fidelity) in found.items():
                told = {"source": trace.trace_id, "batch": batch, "hit_model": name, "cache_frac": share, "cache_experts": held}
                yield {**where, **told, "miss_frac_lookups": float(missed), "fidelity": fidelity}


def implied(found: pl.DataFrame, setup: Setup, profile: Profile) -> pl.DataFrame:
    """model, batch, experts: distinct ones of a layer in an AR step, as the published Phi_AR of cells without a cache has them;
    exponent: of the popularity with as many; mean over cells, least and most by their two decimals. found: Table 3, evaluated.

    Without hits Phi_AR = (S + X) / EXT over S / HB + X / EXT, so X follows from S alone: nothing is fitted.
    """
    made = []
    bare = found.filter(pl.col("published_ar").is_not_null() & (pl.col("resident_bytes") == 0.0) & (pl.col("batch") > 1))
    for cell in bare.unique(["model", "machine", "batch", "published_ar"], maintain_order=True).iter_rows(named=True):
        (g, expert_format), machine = setup.models[cell["model"]], setup.machines[cell["machine"]]
        weights = weights_of([(g.n_experts, g.top_k, float(of)) for of in EXPONENTS])
        hb, ext = (s_per_byte(machine, Rows(kind="expert", tier=tier), profile) for tier in ("expert_cache", "expert_home"))
        for phi in cell["published_ar"] + np.array([0.0, PRINTED, -PRINTED]):
            experts = float(cell["ar_hb_bytes"] * (1.0 - phi * hb / ext) / (phi - 1.0) / sum(g.expert_bytes(expert_format)))
            exponent = np.interp(-experts, -touched(weights, np.full(EXPONENTS.size, float(cell["batch"]))), EXPONENTS)
            made.append({"model": cell["model"], "batch": cell["batch"], "experts": experts, "exponent": exponent})
    ends = ((name, how) for name in ("experts", "exponent") for how in ("mean", "min", "max"))
    aggregated = (getattr(pl.col(name), how)().alias(f"{name}_{how}") for name, how in ends)
    return pl.DataFrame(made).group_by("model", "batch").agg(*aggregated).sort("model", "batch")


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
