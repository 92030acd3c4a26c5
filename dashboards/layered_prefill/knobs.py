"""The Layered Prefill page on what a scheduler costs: TTFT against TBT over its knobs, energy per token, and a dense model."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards.engine import Ask, Control, Drawn, Nothing, options, some, turn_of
from tokentape.dashboards.layered_prefill import rows
from tokentape.dashboards.layered_prefill.rates import grid
from tokentape.dashboards.layered_prefill.words import drawing_order, of_series
from tokentape.dashboards.units import quantity

FRONT, GROUPS = "pareto", ("n-sweep", "table-11")  # series
MEASURES = {"ttft_mean_s": "TTFT, mean", "ttft_p99_s": "TTFT, p99", "tbt_mean_s": "TBT, mean", "tbt_p99_s": "TBT, p99"}
FIELDS = ("setting", "at", "scheduler", "system", "rate", "knob", "n_seeds")
MEASURED = ("table-2", "table-6", "table-8")
JOULES = ("static", "bytes", "ops")
MEANINGS = ("energy_j_per_token", "energy_j_per_output_token")
DENSE = "dense"
MEANS = {"ttft_mean_s": "mean TTFT", "tbt_mean_s": "mean TBT"}
N_LIMITS = 3  # TBT limits that are drawn: the tightest, the middle and the loosest


def front(ask: Ask) -> Drawn:
    found = some(_swept(ask.made(rows.points), FRONT))
    return Drawn(
        {"front": _with_front(found)},
        controls=(Control("at", "Front at"),),
        choices=options("at", found["at"].unique(maintain_order=True)),
    )


def groups(ask: Ask) -> Drawn:
    found = some(_rule_apart(_swept(ask.made(rows.points), *GROUPS)))
    own = {"legend": "title=null orient=top labelLimit=300" if found["at"].n_unique() > 1 else "none"}
    return Drawn({"groups": found}, facts=own)


def _swept(points: pl.DataFrame, *series: str) -> pl.DataFrame:
    found = of_series(points, *series)
    if found.is_empty():
        return found
    knob = pl.when(pl.col("scheduler") == "chunked").then("chunk_tokens").otherwise("n_max")
    told = found.with_columns(knob=knob, at=pl.format("{}, {}/s", "setting", "rate")).drop_nulls("knob")
    bands = [f"{name}{end}" for name in MEASURES for end in ("", "_low", "_high")]
    return told.select(*FIELDS, "n_lg_rule", *bands).sort("at", "scheduler", "knob", descending=[True, False, False])


def _with_front(found: pl.DataFrame) -> pl.DataFrame:
    """is_best: no other point of the setting is as good in both TTFT and TBT and better in one."""
    best = []
    for row in found.to_dicts():
        x, y = pl.col("tbt_p99_s"), pl.col("ttft_mean_s")
        as_good = (x <= row["tbt_p99_s"]) & (y <= row["ttft_mean_s"])
        better = (x < row["tbt_p99_s"]) | (y < row["ttft_mean_s"])
        best.append(found.filter((pl.col("at") == row["at"]) & as_good & better).is_empty())
    return found.with_columns(pl.Series("is_best", best, pl.Boolean))


def _rule_apart(found: pl.DataFrame) -> pl.DataFrame:
    """The fixed rule alone where it is swept: with another the number is the most that a batch may take."""
    fixed = found.filter(pl.col("n_lg_rule") == "fixed") if not found.is_empty() else found
    return fixed if not fixed.is_empty() else found


def energy(ask: Ask) -> Drawn:
    found = of_series(ask.made(rows.points), *MEASURED)
    if not set(MEANINGS) <= set(found.columns):
        raise Nothing
    order = ["setting", turn_of("system", drawing_order(found["system"])), "rate"]
    told = found.drop_nulls(MEANINGS).sort(order, descending=[True, False, False])
    split = pl.sum_horizontal(f"energy_{name}_j" for name in JOULES)
    told = told.select(
        "setting",
        "system",
        "scheduler",
        "rate",
        "n_seeds",
        *(f"{name}{end}" for name in MEANINGS for end in ("", "_low", "_high")),
        *((pl.col(f"energy_{name}_j") / split).alias(name) for name in JOULES),
        label=pl.format("{} at {}/s", "system", "rate"),
    )
    settings = [{"setting": name} for name in told["setting"].unique(maintain_order=True)]
    return Drawn({"energy": told.drop("scheduler")}, facts={"settings": settings}, said=told)


def dense(ask: Ask) -> Drawn:
    held = of_series(ask.made(rows.points), DENSE)
    ratios = some(_ratios(held))
    gaps = _gaps(grid(ask, held))
    gapped: list[dict[str, str]] = [] if gaps.is_empty() else [{}]
    return Drawn({"dense": ratios, "dense_gaps": gaps}, facts={"gapped": gapped})


def _ratios(held: pl.DataFrame) -> pl.DataFrame:
    """setting, rate and layered over chunked in every measure, where both were served."""
    if held.is_empty():
        return held
    ours, theirs = (held.filter(pl.col("scheduler") == name) for name in ("layered", "chunked"))
    both = ours.join(theirs, on=["setting", "rate"], suffix="_chunked").drop_nulls("rate")
    return both.select("setting", "rate", *((pl.col(name) / pl.col(f"{name}_chunked")).alias(name) for name in MEANS)).sort(
        "rate"
    )


def _gaps(found: pl.DataFrame) -> pl.DataFrame:
    """rate, both limits and what layered attains more, at N_LIMITS of the TBT limits."""
    if found.is_empty():
        return found
    keys = ["setting", "rate", "ttft_limit_s", "tbt_limit_s"]
    ours, theirs = (found.filter(scheduler=name).select(*keys, "attained_frac") for name in ("layered", "chunked"))
    both = ours.join(theirs, on=keys, suffix="_chunked").with_columns(
        gap=pl.col("attained_frac") - pl.col("attained_frac_chunked")
    )
    limits = both["tbt_limit_s"].unique().sort().to_list()
    kept = sorted({limits[round(n * (len(limits) - 1) / (N_LIMITS - 1))] for n in range(N_LIMITS)}) if limits else []
    panel = pl.col("tbt_limit_s").map_elements(lambda limit: f"no gap above {quantity(limit, 's')}", pl.String)
    return both.filter(pl.col("tbt_limit_s").is_in(kept)).with_columns(panel=panel).sort("tbt_limit_s", "rate", "ttft_limit_s")
