"""The Layered Prefill page's first figure: every number of the paper beside ours, table by table."""

from __future__ import annotations

import statistics

import altair as alt
import duckdb
import polars as pl

from tokentape.dashboards import claims, claims_chart, theme
from tokentape.dashboards.answers import percent
from tokentape.dashboards.layered_prefill.words import STUDY
from tokentape.dashboards.shell import Control, Figure, Part

QUESTION = "How near are our numbers to the paper's?"
NO_CLAIMS = f"Nothing to draw: no number of the paper is answered. {STUDY}"
PAPER, ALL = "layered_prefill", "all"


def part(connection: duckdb.DuckDBPyConnection) -> Part:
    found = _placed(claims.rows(connection, PAPER))
    answered = found.drop_nulls("replay")
    if answered.is_empty():
        return Part((Figure("claims", QUESTION, None, {}, (), "", NO_CLAIMS),))
    tables = answered["table"].unique(maintain_order=True).to_list()
    return Part(
        (
            Figure(
                "claims",
                QUESTION,
                _chart(tables),
                {str(table): f"{predicted(found)}{_of_table(found, table)}" for table in tables},
                ("table",),
                "Above: every answered number by its place in the paper; below: those of the place chosen. Bands: 5 to 95 % of "
                "the seeds. Fitted numbers prove nothing by being near; predicted ones were never fitted to. A number that the "
                "paper states as a bound has words only. A place without an answered number is left out.",
                NO_CLAIMS,
            ),
        ),
        controls=(Control("table", "Table of the paper"),),
        choices=tuple({"table": table} for table in _predicted_first(answered, tables)),
        data={"claims": answered.drop("location", "statistic", "place")},
    )


def _placed(found: pl.DataFrame) -> pl.DataFrame:
    """With `table`, the place in the paper, tables first and by number; rows of one table in the order of their settings."""
    table = pl.col("location").str.replace("^Sec ", "Section ")
    number = pl.col("location").str.extract(r"(\d+(?:\.\d+)?)").cast(pl.Float64)
    order = [~pl.col("location").str.starts_with("Table"), number, "setting", "claim_id"]
    placed = found.with_columns(table=table).sort(order, nulls_last=True)
    # The place is said above: not again in every row.
    bare = pl.col("claim").str.replace(r" \([^()]*\)$", "")
    return placed.with_columns(order=pl.int_range(pl.len()), claim=bare)


def _predicted_first(answered: pl.DataFrame, tables: list[str]) -> list[str]:
    """The page opens with the place that most predicted numbers are from; the others stay in order."""
    counts = answered.filter(pl.col("role") == "predict").group_by("table").len().sort("len", "table", descending=[True, False])
    first = counts["table"].head(1).to_list()
    return first + [table for table in tables if table not in first]


def predicted(found: pl.DataFrame) -> str:
    """Median and mean error of the predicted numbers, of all and of layered prefill's, and how many lie inside the band.

    Of a percentage, a saving or a reduction, the error is in points: it is made of two numbers that are listed themselves.
    """
    is_value = (pl.col("bound") == "") & (pl.col("mode") != "physical")
    values = found.filter(is_value & (pl.col("role") == "predict")).drop_nulls("error")
    if values.is_empty():
        return ""
    said, layered = [f"Predicted numbers {_off(values)}"], values.filter(pl.col("setting").str.contains("layered"))
    if 0 < layered.height < values.height:
        said.append(f"those of layered prefill {_off(layered)}")
    points = " (percentages in points)" if (values["unit"] == "percent").any() else ""
    return f"{'; '.join(said)}{points}. "


def _off(values: pl.DataFrame) -> str:
    errors = values["error"].abs().to_list()
    banded = values.drop_nulls("low")
    inside = f", {banded['is_inside'].sum()} of {banded.height} with a band lie inside it" if banded.height else ""
    return (
        f"are off by {percent(statistics.median(errors))} in the median and {percent(statistics.mean(errors))} on average{inside}"
    )


def _of_table(found: pl.DataFrame, table: str) -> str:
    return f"{table}: {claims.answer(found.filter(pl.col('table') == table))}".strip()


def _chart(tables: list[str]) -> alt.VConcatChart:
    params = [alt.param(name="table", value=tables[0])]
    below = claims_chart.ratios("datum.table === table", "5 to 95 % of seeds")
    return alt.vconcat(_overview(tables), below, spacing=30, params=[made.param for made in params]).resolve_scale(
        color="shared", shape="shared", x="independent", y="independent"
    )


def _overview(tables: list[str]) -> alt.LayerChart:
    """Every ratio on one line per place, the chosen place shaded."""
    base = alt.Chart(alt.NamedData("claims")).transform_filter("isValid(datum.ratio)")
    axis = alt.Axis(labelLimit=300, ticks=False, domain=False, grid=True)
    y = alt.Y("table:N", title=None, sort=list(tables), axis=axis, scale=alt.Scale(domain=list(tables)))
    scale = alt.Scale(type="log", nice=False, padding=20)
    x = alt.X(
        "ratio:Q", title="replay / paper (%, log scale)", scale=scale, axis=alt.Axis(format=".0%", values=claims_chart.MARKS)
    )
    colour, shape = claims_chart.roles()
    tips = [alt.Tooltip("claim:N"), alt.Tooltip("said_paper:N", title="paper"), alt.Tooltip("said_replay:N", title="replay")]
    chosen = base.transform_filter("datum.table === table").transform_aggregate(n="count()", groupby=["table"])
    shade = chosen.mark_rule(color=theme.GRID, strokeWidth=16).encode(y)
    one = base.transform_aggregate(n="count()").transform_calculate(one="1").mark_rule(color=theme.INK, strokeDash=[3, 3])
    marks = base.mark_point(size=55, opacity=0.75).encode(x, y, colour, shape, tooltip=tips)
    return alt.layer(shade, one.encode(alt.X("one:Q", scale=scale)), marks).properties(width=620, height=alt.Step(20))
