"""The CXL GPU-NDP page on what is reproduced: the paper's numbers beside ours, bars, and what the paper's ratios force."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards import claims
from tokentape.dashboards.cxl_ndp.words import PAPER, VERDICTS
from tokentape.dashboards.engine import Ask, Drawn, some, turn_of
from tokentape.dashboards.units import quantity

UNITS = {"percentage points": "points", "percentage_points": "points", "1e9": "billion"}


def stated(ask: Ask) -> Drawn:
    """Every answered number of the paper."""
    found = claims.rows(ask.connection, PAPER)
    answered = some(found.drop_nulls("replay"))
    said = found.filter(pl.col("mode").is_in(["", claims.AS_THE_PAPER]))
    return Drawn({"claims": answered}, facts={"ours": "replay (least to most of seeds)"}, said=said)


def checks(ask: Ask) -> Drawn:
    is_above = pl.col("bar_low").is_null() | (pl.col("bar_low") <= pl.col("value"))
    is_below = pl.col("bar_high").is_null() | (pl.col("value") <= pl.col("bar_high"))
    has_bar = pl.col("bar_low").is_not_null() | pl.col("bar_high").is_not_null()
    verdict = pl.when(~has_bar).then(pl.lit("")).when(is_above & is_below).then(pl.lit("held")).otherwise(pl.lit("missed"))
    kept = some(ask("checks")).filter(has_bar | pl.col("published").is_not_null()).with_columns(verdict=verdict)
    kept = kept.sort(turn_of("verdict", ("missed", "held", "")), "check")
    found = kept.with_columns(pl.DataFrame([_said(row) for row in kept.to_dicts()])).with_columns(order=pl.int_range(pl.len()))
    return Drawn({"checks": found.drop("unit")})


def _said(row: dict[str, object]) -> dict[str, str]:
    """Numbers as they are written, and where a value lies within its bar: 0 at its least, 1 at its most."""
    unit = UNITS.get(str(row["unit"]), str(row["unit"]))

    def written(value: object) -> str:
        return "" if value is None else f"{value:.4g} ×" if unit == "x" else quantity(float(value), unit)  # type: ignore[arg-type]

    low, high = row["bar_low"], row["bar_high"]
    ends = (
        f"{written(low)} to {written(high)}"
        if low is not None and high is not None
        else f"≥ {written(low)}"
        if low is not None
        else f"≤ {written(high)}"
        if high is not None
        else ""
    )
    return {
        "value_said": written(row["value"]),
        "published_said": written(row["published"]),
        "bar_said": ends,
        "verdict_said": VERDICTS[str(row["verdict"])][0],
    }
