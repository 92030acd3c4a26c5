"""DuckDB over rows in memory: opening a database takes 20 ms, so a process opens one and lends connections to it."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb


def in_memory() -> duckdb.DuckDBPyConnection:
    """A connection that sees only what is registered with it; close it. One thread: rows come in one order."""
    return _database().cursor()


@lru_cache(maxsize=1)
def _database() -> duckdb.DuckDBPyConnection:
    import duckdb  # only where it is asked

    return duckdb.connect(config={"threads": 1})


if hasattr(os, "register_at_fork"):  # a fork that has an open database cannot end
    os.register_at_fork(before=_database.cache_clear)
