"""The CXL GPU-NDP page on what is reproduced: the paper's numbers beside ours, bars, and what the paper's ratios force."""

from __future__ import annotations

import altair as alt
import duckdb
import polars as pl

from tokentape.dashboards import claims, claims_chart, theme
from tokentape.dashboards.cxl_ndp.rows import PAPER
from tokentape.dashboards.cxl_ndp.words import STUDY, source
from tokentape.dashboards.panels import stacked
from tokentape.dashboards.shell import Figure, Part
from tokentape.dashboards.units import joined, quantity

CLAIMS, CHECKS = "How near are our numbers to the paper's?", "Does the model keep its bars, and what do the paper's ratios force?"
NO_CLAIMS = f"Nothing to draw: no number of the paper is answered. {STUDY}"
NO_CHECKS = f"Nothing to draw: nothing was checked. {STUDY}"
VERDICTS = {
    "held": ("inside its bar", theme.GREEN),
    "missed": ("outside its bar", theme.VERMILLION),
    "": ("no bar, beside the paper", theme.QUIET),
}
AS_THE_PAPER = "paper"  # of answers.mode: counted as the paper counts
COLUMNS = {"value_said": ("ours", 125), "published_said": ("paper", 235), "bar_said": ("bar", 265)}
UNITS = {"percentage points": "points", "percentage_points": "points", "1e9": "billion"}


def claims_part(connection: duckdb.DuckDBPyConnection) -> Part:
    """Every answered number of the paper."""
    stated = claims.rows(connection, PAPER)
    other = pl.col("mode").str.strip_prefix(AS_THE_PAPER).str.strip_prefix(", ")
    head = pl.when(other == "").then(pl.lit("|")).otherwise(pl.format(", {}|", other))
    answered = stated.drop_nulls("replay").with_columns(claim=pl.col("claim").str.replace("|", head, literal=True))
    if answered.is_empty():
        return Part((Figure("claims", CLAIMS, None, {}, (), "", NO_CLAIMS),))
    reading = (
        "Calibrated numbers were fitted on the smaller model and prove nothing by being near; predicted ones were never fitted "
        "to. A number that can be counted in two ways has a row for each; the sentence counts the first. The accuracies of "
        "Table 3 are the paper's alone: no model of that size is run here."
    )
    chart = stacked([claims_chart.ratios()], source())
    return Part(
        (
            Figure(
                "claims",
                CLAIMS,
                chart,
                {"": claims.answer(stated.filter(pl.col("mode").is_in(["", AS_THE_PAPER])))},
                (),
                reading,
                NO_CLAIMS,
            ),
        ),
        data={"claims": answered},
    )


def checks_part(checks: pl.DataFrame) -> Part:
    """checks: rows.checks."""
    if checks.is_empty():
        return Part((Figure("checks", CHECKS, None, {}, (), "", NO_CHECKS),))
    inside = ((pl.col("bar_low").is_null() | (pl.col("bar_low") <= pl.col("value"))) & (
        pl.col("bar_high").is_null() | (pl.col("value") <= pl.col("bar_high"))
    ))  # fmt: skip
    has_bar = pl.col("bar_low").is_not_null() | pl.col("bar_high").is_not_null()
    found = (
        checks.filter(has_bar | pl.col("published").is_not_null())
        .with_columns(verdict=pl.when(~has_bar).then(pl.lit("")).when(inside).then(pl.lit("held")).otherwise(pl.lit("missed")))
        .sort(pl.col("verdict").replace_strict({"missed": 0, "held": 1, "": 2}, return_dtype=pl.Int64), "check")
    )
    told = [_said(row) for row in found.to_dicts()]
    found = found.with_columns(pl.DataFrame(told)).with_columns(order=pl.int_range(pl.len()))
    reading = (
        "How each number is made is under the pointer. Without a bar: what the paper's ratios force, and its own numbers "
        "derived a second way; where they disagree, the paper disagrees with itself or leaves open what it measured."
    )
    return Part(
        (Figure("checks", CHECKS, _checks_chart(), {"": checks_answer(found)}, (), reading, NO_CHECKS),),
        data={"checks": found.drop("unit")},
    )


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


def checks_answer(found: pl.DataFrame) -> str:
    """How many bars are held, which are not, and how many numbers have none."""
    barred, missed = found.filter(pl.col("verdict") != ""), found.filter(pl.col("verdict") == "missed")
    outside = (
        f"; outside: {joined(['{check} ({value_said})'.format(**row) for row in missed.to_dicts()])}" if missed.height else ""
    )
    return (
        f"{barred.height - missed.height} of {barred.height} bars are held{outside}. "
        f"{found.height - barred.height} numbers of the paper, derived a second way, have none."
    )


def _checks_chart() -> alt.VConcatChart:
    base = alt.Chart(alt.NamedData("checks"))
    axis = alt.Axis(
        labelLimit=640, ticks=False, domain=False, grid=False, labelFontSize=12.5, titleAngle=0, titleAlign="right", titleX=-6,
        titleY=-10, titleFontWeight=600, titleBaseline="alphabetic",
    )  # fmt: skip
    y = alt.Y("check:N", title="check (and value)", sort=alt.EncodingSortField("order", op="min"), axis=axis)
    scale = alt.Scale(domain=[words for words, _ in VERDICTS.values()], range=[c for _, c in VERDICTS.values()])
    legend = alt.Legend(title=None, orient="top", symbolOpacity=1, offset=26)
    looks = alt.Color("verdict_said:N", scale=scale, legend=legend)
    shape = alt.Shape(
        "verdict_said:N", scale=alt.Scale(domain=scale.domain, range=["circle", "diamond", "square"]), legend=legend
    )
    tips = [alt.Tooltip("check:N"), alt.Tooltip("value_said:N", title="ours"), alt.Tooltip("how:N")]
    marks = base.mark_point(size=80).encode(y, looks, shape, x=alt.value(10), tooltip=tips)
    words = []
    for name, (title, at) in COLUMNS.items():
        align = "left" if name == "bar_said" else "right"
        mark = {"align": align, "fontSize": 12.5, "color": theme.INK}
        words.append(base.mark_text(**mark).encode(y, x=alt.value(at), text=f"{name}:N", tooltip=tips))
        head = base.transform_aggregate(n="count()").transform_calculate(title=theme.quote(title))
        words.append(head.mark_text(fontWeight=600, **mark).encode(x=alt.value(at), y=alt.value(-10), text="title:N"))
    drawn = alt.layer(marks, *words).properties(width=420, height=alt.Step(24))
    return stacked([drawn], source())
