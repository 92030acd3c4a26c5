"""The Layered Prefill page on a dense model, where there are no experts to save."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards.engine import Ask, Drawn, some
from tokentape.dashboards.layered_prefill import rows
from tokentape.dashboards.layered_prefill.rates import grid
from tokentape.dashboards.layered_prefill.words import of_series
from tokentape.dashboards.units import quantity

DENSE = "dense"
MEANS = {"ttft_mean_s": "mean TTFT", "tbt_mean_s": "mean TBT"}
N_LIMITS = 3  # TBT limits that are drawn: the tightest, the middle and the loosest


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
