"""The Layered Prefill page on where it must lose: a dense model, and what relaxed limits change."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards.engine import Ask, Drawn, some
from tokentape.dashboards.layered_prefill import rows
from tokentape.dashboards.layered_prefill.rates import grid
from tokentape.dashboards.layered_prefill.words import of_series
from tokentape.dashboards.units import joined, quantity

SERIES = "dense"
MEASURES = {"ttft_mean_s": "mean TTFT", "tbt_mean_s": "mean TBT"}
CLOSED_FRAC = 0.02  # a gap in attainment that is called closed
N_LIMITS = 3  # TBT limits that are drawn: the tightest, the middle and the loosest


def dense(ask: Ask) -> Drawn:
    held = of_series(ask.made(rows.points), SERIES)
    ratios = some(_ratios(held))
    gaps = _gaps(grid(ask, held))
    gapped: list[dict[str, str]] = [] if gaps.is_empty() else [{}]
    return Drawn({"dense": ratios, "dense_gaps": gaps}, {"": answer(ratios, gaps)}, {"gapped": gapped})


def _ratios(held: pl.DataFrame) -> pl.DataFrame:
    """setting, rate and layered over chunked in every measure, where both were served."""
    if held.is_empty():
        return held
    ours, theirs = (held.filter(pl.col("scheduler") == name) for name in ("layered", "chunked"))
    both = ours.join(theirs, on=["setting", "rate"], suffix="_chunked").drop_nulls("rate")
    return both.select("setting", "rate", *((pl.col(name) / pl.col(f"{name}_chunked")).alias(name) for name in MEASURES)).sort(
        "rate"
    )


def _gaps(found: pl.DataFrame) -> pl.DataFrame:
    """rate, both limits and what layered attains more, at N_LIMITS of the TBT limits."""
    if found.is_empty():
        return found
    keys = ["setting", "rate", "ttft_limit_s", "tbt_limit_s"]
    kind = pl.col("system").str.split(" ").list.first()
    ours, theirs = (found.filter(kind == name).select(*keys, "attained_frac") for name in ("layered", "chunked"))
    both = ours.join(theirs, on=keys, suffix="_chunked").with_columns(
        gap=pl.col("attained_frac") - pl.col("attained_frac_chunked")
    )
    limits = both["tbt_limit_s"].unique().sort().to_list()
    kept = sorted({limits[round(n * (len(limits) - 1) / (N_LIMITS - 1))] for n in range(N_LIMITS)}) if limits else []
    panel = pl.col("tbt_limit_s").map_elements(lambda limit: f"no gap above {quantity(limit, 's')}", pl.String)
    return both.filter(pl.col("tbt_limit_s").is_in(kept)).with_columns(panel=panel).sort("tbt_limit_s", "rate", "ttft_limit_s")


def answer(ratios: pl.DataFrame, gaps: pl.DataFrame) -> str:
    """At how many rates layered is slower and by how much at the highest; the gap at the tightest and the loosest limits."""
    slower = ratios.filter(pl.all_horizontal(pl.col(name) > 1 for name in MEASURES)).height
    last = ratios.row(-1, named=True)
    by = joined([f"{last[name]:.2f} × the {said}" for name, said in MEASURES.items()])
    verdict = "No" if slower else "It is not slower"
    said = f"{verdict}: layered is slower in both at {slower} of {ratios.height} rates; at {last['rate']:g}/s it has {by}."
    if gaps.is_empty():
        return said
    by_limit = gaps.filter(pl.col("rate") == last["rate"]).sort("tbt_limit_s", "ttft_limit_s")
    loosest = by_limit.row(-1, named=True)
    worst = gaps.sort("gap").row(0, named=True)
    told = (
        f" Its worst gap is {_points(worst['gap'])} at {worst['rate']:g}/s (first token within "
        f"{quantity(worst['ttft_limit_s'], 's')}, {worst['panel']})"
    )
    closes = "closes" if abs(loosest["gap"]) <= CLOSED_FRAC else "does not close"
    return f"{said}{told}; at the loosest limits it is {_points(loosest['gap'])} at {last['rate']:g}/s: the gap {closes}."


def _points(gap: float) -> str:
    return f"{100 * gap:+.0f} points" if abs(gap) >= 0.005 else "0 points"
