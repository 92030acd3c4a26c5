"""What the hardware page asks of the warehouse: machines, their numbers, and recorded steps, one SQL question per function.

Every function takes an open read-only DuckDB connection and returns a polars frame whose columns have the names the charts use.
Rates, bytes and operations are those of one device, as in the machines' files.
"""

from __future__ import annotations

from pathlib import Path

import duckdb
import polars as pl

from tokentape.dashboards.engine.ask import rows_of

SQL = Path(__file__).with_suffix(".sql")

OWN_MEMORY = "'s memory"  # behind the name of an engine that reads its memory in another way than through the tier's interface


def machines(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Machines with n_steps, n_numbers and n_assumed, those with recorded steps first."""
    return rows_of(connection, SQL, "machines")


def numbers(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Every number of every machine, by key."""
    return rows_of(connection, SQL, "numbers")


def ceilings(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Per machine: peak and reached operations/s of engines, bytes/s of tiers and links; is_main: the two that make its roof."""
    return rows_of(connection, SQL, "ceilings")


def steps(connection: duckdb.DuckDBPyConnection, n: int) -> pl.DataFrame:
    """At most n recorded steps, spread over the machines; n_steps: how many there are."""
    return rows_of(connection, SQL, "steps", n=n)


def points(connection: duckdb.DuckDBPyConnection, step_ids: list[str]) -> pl.DataFrame:
    """Per step and operation: seconds, share of the step, bytes of the fast tier, operations."""
    return rows_of(connection, SQL, "points", steps=step_ids)


def bars(connection: duckdb.DuckDBPyConnection, step_ids: list[str]) -> pl.DataFrame:
    """Per step: operations on the clock; adds_s: what a bar adds to the time its resource works; lane: order of the resources."""
    return rows_of(connection, SQL, "bars", steps=step_ids, memory=OWN_MEMORY)


def energy(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Per tier or link: `costs`, pJ/bit with its band for each side (read, write, transfer), and the machines that share them."""
    return rows_of(connection, SQL, "energy")
