"""The Layered Prefill page's first figure: every number of the paper beside ours, table by table."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards import claims
from tokentape.dashboards.engine import Ask, Control, Drawn, options, some


def stated(ask: Ask) -> Drawn:
    found = _placed(claims.rows(ask.connection, "layered_prefill", is_placed=False))
    answered = some(found.drop_nulls("replay"))
    tables = answered["table"].unique(maintain_order=True).to_list()
    return Drawn(
        {"claims": answered.drop("location", "statistic", "place")},
        facts={"tables": tables, "ours": "replay (5 to 95 % of seeds)", "every": found},
        said=found.filter(pl.col("table").is_in(tables)),
        controls=(Control("table", "Table of the paper"),),
        choices=options("table", _predicted_first(answered, tables)),
    )


def _placed(found: pl.DataFrame) -> pl.DataFrame:
    """With `table`, the place in the paper, tables first and by number; rows of one table in the order of their settings."""
    table = pl.col("location").str.replace("^Sec ", "Section ")
    number = pl.col("location").str.extract(r"(\d+(?:\.\d+)?)").cast(pl.Float64)
    order = [~pl.col("location").str.starts_with("Table"), number, "setting", "claim_id"]
    placed = found.with_columns(table=table).sort(order, nulls_last=True)
    return placed.with_columns(order=pl.int_range(pl.len()))


def _predicted_first(answered: pl.DataFrame, tables: list[str]) -> list[str]:
    """The page opens with the place that most predicted numbers are from; the others stay in order."""
    counts = answered.filter(pl.col("role") == "predict").group_by("table").len().sort("len", "table", descending=[True, False])
    first = counts["table"].head(1).to_list()
    return first + [table for table in tables if table not in first]
