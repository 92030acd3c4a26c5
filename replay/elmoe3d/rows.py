"""Rows of ELMoE-3D's views: elmoe3d_points, elmoe3d_mapping and elmoe3d_intensity; elmoe3d_platforms and elmoe3d_energy, of the
proposed design and the paper's five baselines, AR and speculating.

What the paper does not give of the baselines is varied one thing at a time around the headline: nodes verified, bandwidth next to
memory, what is held there. Every platform computes the same nodes; ours too, so its times here may exceed those of Table 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, ClassVar

import polars as pl

from tokentape.hw.elmoe3d_constants import ELMoE3DConstants
from tokentape.hw.profile import ENDS, Profile
from tokentape.hw.sourced import Sourced
from tokentape.hw.spec import HardwareSpec, with_values
from tokentape.hw.work import Floats
from tokentape.replay.elmoe3d.fit import IS_OPEN
from tokentape.replay.elmoe3d.mapping import map_bytes, placed
from tokentape.replay.elmoe3d.points import EAGLE, ELASTIC, Points, Setup, as_points, cache_of, points_of
from tokentape.replay.elmoe3d.runs import Holds, Mode, Run, baseline, knee, ours
from tokentape.replay.elmoe3d.timing import PAPER, PARTS, Outcome, evaluate, reads_of

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
    at, roles = {"batch": 1, "step_mode": "ar"}, {"hb": "expert_cache", "ext": "expert_home"}
    knees = [
        {"hardware": machine.name, "model_id": model, **at, "part": f"knee {tier}", "ops_per_byte": bends_at}
        for machine in setup.machines.values()
        for tier, role in roles.items()
        for bends_at in [knee(machine, role, profile)]
        for model in setup.models
    ]
    return [*pl.concat(made).to_dicts(), *knees]


DATASET = "mt-bench"  # the one with published acceptance
OURS, REFERENCE, HB_XPU = "elmoe3d", "xpu", "hb-xpu"
NEAR = "xpu-nmp"
ASSUMED = ("hit_model", "verify_nodes")  # of every platform; of near-memory compute NEAR_AS too
NEAR_AS = ("nmp_ext_ratio", "placement")
AT = ("model_id", "batch", *ASSUMED)


@dataclass(frozen=True)
class Assumed:
    """The baselines, and what the paper does not say of them: each in its range, the headline's value beside it."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    baselines: tuple[str, ...]
    ours_gb: int
    drafted_by: str
    verify_nodes: tuple[float, ...]
    headline_verify_nodes: float
    draft_nodes: float
    near_ext_ratios: tuple[float, ...]
    headline_near_ext_ratio: float
    holds: tuple[Holds, ...]
    headline_holds: Holds


def platforms(
    of: Assumed,
    specs: Mapping[str, HardwareSpec],
    setup: Setup,
    table: pl.DataFrame,
    fit: ELMoE3DConstants,
    hit_models: Sequence[str],
    profile: Profile,
    pool_write_frac: Sourced,
) -> pl.DataFrame:
    """Ours, HB-xPU, then every baseline in either mode, over models and batches, by hit model and number of verified nodes;
    near-memory compute once per ratio and holding. token_s; joules per token in columns `PART END` and `END` in all; speedup:
    over the xPU's AR with as many nodes; is_best: the faster mode.

    specs: the baselines' machines by name, and ours. pool_write_frac: of `ours`.
    """
    settings = pl.DataFrame(list(product(hit_models, map(float, of.verify_nodes))), schema=ASSUMED, orient="row")

    def ran(
        name: str, scheme: str, machine: HardwareSpec, run: Callable[[Points], Mapping[Mode, Run]], *near: float | str
    ) -> Iterator[pl.DataFrame]:
        cells = table.filter((pl.col("hb_gb") == of.ours_gb) & (pl.col("scheme") == scheme)).with_columns(machine=pl.lit(name))
        points = points_of(settings.join(cells, how="cross"), fit, draft_nodes=of.draft_nodes)
        runs = run(as_points(points, replace(setup, machines={name: machine})))
        where = points.select(platform="machine", model_id="model", dataset=pl.lit(DATASET), batch="batch", level="level")
        where = where.with_columns(points.select(ASSUMED), **dict(zip(NEAR_AS, map(pl.lit, near or (None, None)), strict=True)))
        is_sd = runs["sd"].token_s < runs["ar"].token_s
        for mode, one in runs.items():
            joules = {f"{part} {end}": one.joules_per_token[k, i] for k, part in enumerate(PARTS) for i, end in enumerate(ENDS)}
            is_best = is_sd == (mode == "sd")
            yield where.with_columns(step_mode=pl.lit(mode), token_s=one.token_s, is_best=is_best, **joules)

    def ours_of(points: Points) -> dict[Mode, Run]:
        return ours(points, evaluate(points, profile, with_joules=True), profile, pool_write_frac)

    made = [*ran(OURS, ELASTIC, specs[OURS], ours_of), *ran(HB_XPU, of.drafted_by, specs[OURS], ours_of)]
    for name in of.baselines:
        short = name.removeprefix("elmoe3d-")
        once: list[tuple[float | None, Holds]] = [(None, "dense")]
        for ratio, holds in product(of.near_ext_ratios, of.holds) if short == NEAR else once:
            machine = near_at(specs[name], ratio) if ratio else specs[name]
            near = (ratio, holds) if ratio else ()
            made += ran(short, of.drafted_by, machine, partial(baseline, holds=holds, profile=profile), *near)
    every = pl.concat(made, how="vertical_relaxed")
    reference = every.filter((pl.col("platform") == REFERENCE) & (pl.col("step_mode") == "ar")).select(*AT, xpu_s="token_s")
    joined = every.join(reference, on=AT, how="left", maintain_order="left")
    return joined.with_columns(
        *(pl.sum_horizontal(*(f"{part} {end}" for part in PARTS)).alias(end) for end in ENDS),
        speedup=pl.col("xpu_s") / pl.col("token_s"),
    )


def near_at(machine: HardwareSpec, ratio: float) -> HardwareSpec:
    """With compute next to channels at so many times the bandwidth of all channels."""
    name = machine.roles.near_compute
    tiers = (machine.engines[name].memory, machine.roles.expert_home)
    whole = sum(machine.tiers[tier].peak_bytes_per_s.value for tier in tiers)
    return with_values(machine, {f"engines.{name}.memory_bytes_per_s": ratio * whole})


def platform_rows(every: pl.DataFrame) -> pl.DataFrame:
    """Rows of elmoe3d_platforms."""
    where = ("platform", "model_id", "dataset", "batch", "level", "hit_model", *NEAR_AS, "verify_nodes", "step_mode")
    return every.select(*where, "token_s", "speedup", "is_best", fidelity=pl.lit("input"))


def energy_rows(of: Assumed, every: pl.DataFrame) -> pl.DataFrame:
    """Rows of elmoe3d_energy, of the headline's settings."""
    kept = ("platform", "model_id", "dataset", "batch", "level", "hit_model", "step_mode", "is_best")
    near = (pl.col("nmp_ext_ratio") == of.headline_near_ext_ratio) & (pl.col("placement") == of.headline_holds)
    at = every.filter(pl.col("verify_nodes") == of.headline_verify_nodes, near | pl.col("placement").is_null())
    return pl.concat(
        at.select(*kept, part=pl.lit(part), j_per_token=f"{part} value", low=f"{part} low", high=f"{part} high") for part in PARTS
    )
