"""What the Layered Prefill page asks of the warehouse: the study's serving points, one row each, and what was drawn of some.

Every function takes an open read-only DuckDB connection and returns a polars frame; a metric's band over seeds is beside it as
`metric_low` and `metric_high` (5th and 95th percentile).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import duckdb
import polars as pl

from tokentape.warehouse import models

STUDY = "layered_prefill"
SETTING = ("model", "workload", "arrival", "hardware", "coverage")  # all but the rate and the scheduler
KINDS = ("value", "low", "high")
KNOBS = {"chunk_tokens": pl.Int64, "n_max": pl.Int64, "n_lg_rule": pl.String, "pass_tokens": pl.Int64}

_POINTS = """
select point_id, series, model_id as model, workload, arrival, rate_per_s as rate, scheduler, policy_params, hardware, coverage,
    n_seeds, metric, value, low, high
from serving_points where study = $study order by point_id, metric
"""

_OF_POINTS = "select * exclude (study) from {} where study = $study and point_id in (select unnest($points)) order by all"

_COVERAGE = """
select source, model_id as model, form, tokens_of, layer_band as band, n_tokens, coverage_frac as covered, low, high
from coverage_points where study = $study order by all
"""


def points(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """A row per point with a column per metric, is_dense, and the scheduler's knobs (null where it has none)."""
    long = connection.sql(_POINTS, params={"study": STUDY}).pl()
    if long.is_empty():
        return pl.DataFrame()
    metrics = long["metric"].unique().sort().to_list()
    kept = [name for name in long.columns if name not in ("metric", "value", "low", "high")]
    wide = long.pivot("metric", index=kept, values=["value", "low", "high"])
    renamed = {f"{kind}_{name}": name + ("" if kind == "value" else f"_{kind}") for name in metrics for kind in KINDS}
    knobs = [_knobs(text) for text in wide["policy_params"].to_list()]
    dense = {name: _is_dense(name) for name in wide["model"].unique()}
    return wide.rename(renamed).with_columns(
        pl.DataFrame(knobs, schema=KNOBS),
        is_dense=pl.col("model").replace_strict(dense, return_dtype=pl.Boolean),
    )


def _knobs(text: str) -> dict[str, Any]:
    """The scheduler's own parameters; a result of the engine has them beside others."""
    found = json.loads(text or "{}")
    own = found.get("scheduler", found)
    return {name: own.get(name) if isinstance(own, dict) else None for name in KNOBS}


def _is_dense(name: str) -> bool:
    return name in models.names() and not models.load(name).geometry.n_experts


def attainment(connection: duckdb.DuckDBPyConnection, found: Sequence[str]) -> pl.DataFrame:
    """Shares of requests that meet both limits, of these points."""
    return _of_points(connection, "serving_attainment", found)


def iterations(connection: duckdb.DuckDBPyConnection, found: Sequence[str]) -> pl.DataFrame:
    """The iterations of the drawn window, of these points."""
    return _of_points(connection, "serving_iterations", found)


def spans(connection: duckdb.DuckDBPyConnection, found: Sequence[str]) -> pl.DataFrame:
    """What the requests of the drawn window did when, of these points."""
    return _of_points(connection, "serving_spans", found)


def tokens(connection: duckdb.DuckDBPyConnection, found: Sequence[str]) -> pl.DataFrame:
    """When the tokens of drawn requests came, of these points."""
    return _of_points(connection, "serving_tokens", found)


def coverage(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Shares of a layer's experts that tokens touch together, by form and band of layers."""
    return connection.sql(_COVERAGE, params={"study": STUDY}).pl()


def _of_points(connection: duckdb.DuckDBPyConnection, table: str, found: Sequence[str]) -> pl.DataFrame:
    return connection.sql(_OF_POINTS.format(table), params={"study": STUDY, "points": list(found)}).pl()
