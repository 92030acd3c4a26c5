"""Rows of elmoe3d_points, elmoe3d_mapping and elmoe3d_intensity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tokentape.hw.elmoe3d_constants import ELMoE3DConstants
from tokentape.hw.profile import Profile
from tokentape.replay.elmoe3d.baselines import Assumed
from tokentape.replay.elmoe3d.fit import IS_OPEN
from tokentape.replay.elmoe3d.mapping import map_bytes, placed
from tokentape.replay.elmoe3d.points import EAGLE, Floats, Setup, as_points, cache_of, points_of
from tokentape.replay.elmoe3d.runs import knee
from tokentape.replay.elmoe3d.timing import PAPER, Outcome, evaluate, reads_of

TABLE_SERIES, MEASURED = "table-3", "measured"
WRITTEN = "pool_write_frac"  # by events alone
PUBLISHED = ("published_ar", "published_sd", "role_ar", "role_sd")


def evaluated(points: pl.DataFrame, setup: Setup, profile: str | Profile = PAPER) -> pl.DataFrame:
    """The points with what comes of them, and the better mode."""
    made = measures(evaluate(as_points(points, setup), profile))
    best = pl.when(pl.col("phi_sd") > pl.col("phi_ar")).then(pl.lit("sd")).otherwise(pl.lit("ar"))
    kept = points.with_columns(is_measured=pl.col("accepted_len").is_not_null())
    return kept.with_columns(pl.Series(name, values) for name, values in made.items()).with_columns(best_mode=best)


def measures(found: Outcome) -> dict[str, Floats]:
    """By column of elmoe3d_points: phi_ar, phi_sd, seconds of steps, bytes, hits."""
    made: dict[str, Floats] = {
        "accepted_len": found.accepted_len,
        "resident_bytes": found.mapping.resident_bytes,
        "resident_frac": found.mapping.share,
        "spill_bytes": found.mapping.spill_bytes,
        "cold_bytes": found.mapping.cold_bytes,
        "xpu_step_s": found.xpu_s,
        "ar_step_s": found.ar.seconds,
        "draft_step_s": found.draft.seconds,
        "verify_s": found.verify.seconds,
        "phi_ar": found.phi_ar,
        "phi_sd": found.phi_sd,
    }
    for name in ("ar", "draft", "verify"):
        made |= {f"{name}_{key}": getattr(getattr(found, name), key) for key in ("experts", "hit_frac", "hb_bytes", "ext_bytes")}
    return made


def point_rows(found: pl.DataFrame, setup: Setup) -> list[dict[str, Any]]:
    """Rows of elmoe3d_points; found: what `evaluated` made of points of a series."""
    caches = {key: cache_of(machine) for key, machine in setup.machines.items()}
    is_measured, metrics = pl.col("is_measured"), found.columns[found.columns.index("is_measured") + 1 :]
    absent = (pl.lit(None).alias(name) for name in (*PUBLISHED, "ar_claim", WRITTEN) if name not in found.columns)
    whole = found.with_columns(absent).select(
        *_where(setup), "series", "hit_model", "level", "fit", "accepted_len", "n_draft_steps", *PUBLISHED, *metrics,
        *([] if WRITTEN in metrics else [WRITTEN]),
        hb_bytes=_of_machine({key: tier.capacity_bytes.value for key, tier in caches.items()}),
        hb_bytes_per_s=_of_machine({k: t.peak_bytes_per_s.value * t.efficiency_frac.value for k, t in caches.items()}),
        accepted_form=pl.when(is_measured).then(pl.lit(MEASURED)).otherwise("accepted_form"),
        alpha=pl.when(~is_measured).then("alpha"),
        fidelity=pl.when(is_measured).then(pl.lit("approximate")).otherwise(pl.lit("input")),
        is_withheld=pl.col("ar_claim").is_not_null() & ~IS_OPEN,
    )  # fmt: skip
    return whole.to_dicts()


def _where(setup: Setup) -> tuple[pl.Expr, ...]:
    """Columns of tables that say which point a row is of."""
    whole = (pl.col(name).cast(pl.Int64) for name in ("batch", "context_tokens"))
    hardware = _of_machine({key: machine.name for key, machine in setup.machines.items()}).alias("hardware")
    return hardware, pl.col("model").alias("model_id"), pl.col("scheme").alias("sd_scheme"), *whole


def _of_machine(values: Mapping[str, Any]) -> pl.Expr:
    return pl.col("machine").replace_strict(values)


def mapping_rows(points: pl.DataFrame, setup: Setup) -> list[dict[str, Any]]:
    """Rows of elmoe3d_mapping: what every part takes."""
    arrays, where = as_points(points, setup), points.select(*_where(setup))
    parts = placed(arrays, map_bytes(arrays)).items()
    told = (where.with_columns(tier=pl.lit(tier), part=pl.lit(part), placed_bytes=taken) for (tier, part), taken in parts)
    return pl.concat(told).to_dicts()


def intensity_rows(
    of: Assumed, setup: Setup, table: pl.DataFrame, fit: ELMoE3DConstants, profile: Profile
) -> list[dict[str, Any]]:
    """Rows of elmoe3d_intensity: operations per byte of the static part and of the experts, in AR and in verification, and where
    each tier's roofline bends. Attention over the context is not counted, its bytes are."""
    nodes: dict[str, Any] = {"verify_nodes": of.headline_verify_nodes, "draft_nodes": of.draft_nodes}
    frame = points_of(table.filter(pl.col("scheme") == EAGLE), fit, **nodes)
    where, points = frame.select(*_where(setup)).drop("sd_scheme", "context_tokens"), as_points(frame, setup)
    reads = reads_of(points, map_bytes(points))
    others = {model: g.non_expert_params for model, (g, _) in setup.models.items()}
    experts = {model: len(g.moe_layers) * g.top_k * g.expert_params for model, (g, _) in setup.models.items()}  # of a token
    static, routed = (frame["model"].replace_strict(params).to_numpy() for params in (others, experts))
    made = []
    for mode, read in (("ar", reads["ar"]), ("sd", reads["verify"])):
        ops = 2.0 * points.batch * read.nodes
        for part, values in (("static", ops * static / read.static_bytes), ("experts", ops * routed / read.expert_bytes)):
            made.append(where.with_columns(step_mode=pl.lit(mode), part=pl.lit(part), ops_per_byte=values))
    knees = [
        {
            "hardware": machine.name,
            "model_id": model,
            "batch": 1,
            "step_mode": "ar",
            "part": f"knee {tier}",
            "ops_per_byte": bends_at,
        }
        for machine in setup.machines.values()
        for tier, role in (("hb", "expert_cache"), ("ext", "expert_home"))
        for bends_at in [knee(machine, role, profile)]
        for model in setup.models
    ]
    return [*pl.concat(made).to_dicts(), *knees]
