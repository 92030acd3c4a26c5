"""The Layered Prefill page's first figure: every number of the paper beside ours, table by table."""

from __future__ import annotations

import statistics

import polars as pl

from tokentape.dashboards import claims
from tokentape.dashboards.engine import Ask, Control, Drawn, options, some
from tokentape.dashboards.units import percent


def stated(ask: Ask) -> Drawn:
    found = _placed(claims.rows(ask.connection, "layered_prefill"))
    answered = some(found.drop_nulls("replay"))
    tables = answered["table"].unique(maintain_order=True).to_list()
    return Drawn(
        {"claims": answered.drop("location", "statistic", "place")},
        {str(table): f"{predicted(found)}{_of_table(found, table)}" for table in tables},
        {"tables": tables, "ours": "replay (5 to 95 % of seeds)"},
        controls=(Control("table", "Table of the paper"),),
        choices=options("table", _predicted_first(answered, tables)),
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
