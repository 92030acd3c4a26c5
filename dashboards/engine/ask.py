"""What figures ask of the warehouse: the queries of their page's rows.sql, each asked once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import polars as pl

Made = TypeVar("Made")


class Nothing(Exception):
    """A figure has no rows: in its place the page says what to run."""


def some(found: pl.DataFrame) -> pl.DataFrame:
    """The rows. Raises Nothing if there are none."""
    if found.is_empty():
        raise Nothing
    return found


@dataclass(frozen=True)
class Ask:
    """A page's questions. folder: with rows.sql; size: how many tapes or models to show; params: values of its $names.

    start: what the page's own menus open with.
    """

    connection: duckdb.DuckDBPyConnection
    folder: Path
    size: int = 16
    params: Mapping[str, Any] = field(default_factory=dict)
    start: Mapping[str, str] = field(default_factory=dict)
    asked: dict[Any, Any] = field(default_factory=dict)

    def __call__(self, name: str, **more: Any) -> pl.DataFrame:
        """The rows of a query. more: values of $names beside those of the page."""
        rows: pl.DataFrame = self.of((name, str(more)) if more else name, lambda: self._rows(name, **more))
        return rows

    def made(self, make: Callable[[Ask], Made]) -> Made:
        """What a function makes of rows, made once for all figures that need it."""
        return self.of(make, lambda: make(self))

    def of(self, key: Any, make: Callable[[], Made]) -> Made:
        if key not in self.asked:
            self.asked[key] = make()
        return self.asked[key]  # type: ignore[no-any-return]

    def _rows(self, name: str, **more: Any) -> pl.DataFrame:
        return rows_of(self.connection, self.folder / "rows.sql", name, **self.params, **more)


def rows_of(connection: duckdb.DuckDBPyConnection, file: Path, name: str, **params: Any) -> pl.DataFrame:
    """The rows of a query of `file`. params: values of its $names and of others, which DuckDB would refuse."""
    text = queries(file)[name]
    rows: pl.DataFrame = connection.sql(text, params={key: value for key, value in params.items() if f"${key}" in text}).pl()
    return rows


@cache
def queries(file: Path) -> dict[str, str]:
    """Name -> SQL of a file of queries, each below a line "-- name: what its rows are"; {name} stands for an earlier one."""
    parts = re.split(r"^-- ([a-z_0-9]+): .*\n", file.read_text(encoding="utf-8"), flags=re.M)
    found: dict[str, str] = {}
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        found[name] = re.sub(r"\{(\w+)\}", lambda m: found[m[1]].strip(), text)
    return found
