"""What the pages ask of the warehouse: one SQL question per function, aggregated there, so that a page carries hundreds of rows.

Every function takes an open read-only DuckDB connection and returns a polars frame whose columns have the names the charts use.
Units: ms, mJ and GB, because a person reads them; fractions stay fractions.
"""

import json
from collections import Counter
from pathlib import Path

import duckdb
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.engine.ask import rows_of
from tokentape.dashboards.engine.grammar import turn_of
from tokentape.dashboards.engine.say import Rows

REFERENCE_CAPACITY = 0.5  # sentences quote the replayed capacity nearest to half of the experts
SQL = Path(__file__).with_suffix(".sql")


def traces(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """The catalogue with n_replays and n_studied, those of a study; the trace a page opens with first."""
    return rows_of(connection, SQL, "traces")


def runs(connection: duckdb.DuckDBPyConnection, trace_ids: list[str], studied: bool = False) -> pl.DataFrame:
    """Replayed settings: capacity, hit rates, milliseconds and millijoules per decoded token; `policy` is the display name.

    turn: a policy's place in the house order. studied: of studies alone, without one-off replays.
    """
    found = _named(rows_of(connection, SQL, "runs", traces=trace_ids, studied=studied))
    return found.with_columns(turn=turn_of("family", theme.POLICIES))


def reference(runs: pl.DataFrame) -> pl.DataFrame:
    """The rows at the capacity nearest to half, of those at which most settings have LRU and a bound; methods before bounds, best
    hit rate first."""
    compared = (pl.col("family") == "lru").any() & pl.col("bound").any()
    found = runs.group_by("capacity", "hardware", "scope").agg(n=compared).group_by("capacity").agg(pl.col("n").sum())
    order = [-pl.col("n").cast(pl.Int64), (pl.col("capacity") - REFERENCE_CAPACITY).abs(), "capacity"]
    nearest = found.sort(order)["capacity"][0]
    return runs.filter(pl.col("capacity") == nearest).sort("bound", "hit_decode", descending=[False, True])


def reference_of(found: Rows) -> Rows:
    """As above, of a template."""
    return Rows(reference(found.frame))


def rules_sentence(rules: str) -> str:
    """The joined semantics of a row, in words."""
    lookup, recency, prefill, start, overflow, fetching, expert_format, profile = rules.split("|")
    size = "recorded expert sizes" if expert_format == "recorded" else f"{expert_format} experts"
    large = {"evict": "larger events are cut to fit", "keep": "larger events stay until the next"}.get(overflow, overflow)
    order = "" if recency == "list-order" else f" ({recency} recency)"
    priced = "" if profile == "physical" else f", priced by {profile}"
    return f"{lookup} lookups{order}, {prefill} prefill, {start} cache, {large}, {fetching} fetches, {size}{priced}"


def _named(frame: pl.DataFrame) -> pl.DataFrame:
    """`policy`: the display name, with the parameters where one policy ran with several sets of them."""
    variants = frame.select("family", "policy_params").unique().sort("family", "policy_params")
    crowded = set(variants.filter(pl.len().over("family") > 1)["family"])
    alike = Counter(map(theme.label, variants["family"].unique()))
    names = [
        (family if alike[theme.label(family)] > 1 else theme.label(family))
        + (f" {_parameters(params)}" if family in crowded else "")
        for family, params in variants.select("family", "policy_params").iter_rows()
    ]
    return frame.join(variants.with_columns(pl.Series("policy", names, pl.String)), on=["family", "policy_params"], how="left")


def _parameters(text: str) -> str:
    return ", ".join(f"{name}={value}" for name, value in json.loads(text or "{}").items())
