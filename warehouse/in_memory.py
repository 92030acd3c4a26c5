"""DuckDB over rows in memory: opening a database takes 20 ms, so a process opens one and lends connections to it."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb


def in_memory(n_threads: int | None = None) -> duckdb.DuckDBPyConnection:
    """A connection that sees only what is registered with it; close it. n_threads: 1 where rows are to come in one order."""
    return _database(n_threads, os.getpid()).cursor()


@lru_cache(maxsize=8)
def _database(n_threads: int | None, process: int) -> duckdb.DuckDBPyConnection:
    """process: a fork has none of its parent's threads."""
    import duckdb  # only where it is asked

    return duckdb.connect(config={"threads": n_threads} if n_threads else {})
