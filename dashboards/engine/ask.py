"""What figures ask of the warehouse: the queries of their page's rows.sql, each asked once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import polars as pl

from tokentape.dashboards import theme

Made = TypeVar("Made")
SHARED = Path(__file__).parents[1] / "rows.sql"  # its queries stand before those of every page


class Nothing(Exception):
    """A figure has no rows: in its place the page says what to run."""


def some(found: pl.DataFrame) -> pl.DataFrame:
    """The rows. Raises Nothing if there are none."""
    if found.is_empty():
        raise Nothing
    return found


@dataclass(frozen=True)
class Ask:
    """A page's questions. folder: with rows.sql; size: how many tapes or models to show; params: values of its $names, beside
    `size` and the words of the page.

    start: what the page's own menus open with. beneath: SQL that comes before what is being made, innermost last; names: SQL of
    rows that others call by a name.
    """

    connection: duckdb.DuckDBPyConnection
    folder: Path
    size: int = 16
    params: Mapping[str, Any] = field(default_factory=dict)
    start: Mapping[str, str] = field(default_factory=dict)
    asked: dict[Any, Any] = field(default_factory=dict)
    beneath: list[dict[str, None]] = field(default_factory=lambda: [{}])
    names: dict[str, str] = field(default_factory=dict)

    def __call__(self, name: str, **more: Any) -> pl.DataFrame:
        """The rows of a query. more: values of $names beside those of the page."""
        rows: pl.DataFrame = self.of((name, str(more)) if more else name, lambda: self._rows(name, **more))
        return rows

    def made(self, make: Callable[[Ask], Made]) -> Made:
        """What a function makes of rows, made once for all figures that need it."""
        return self.of(make, lambda: make(self))

    def of(self, key: Any, make: Callable[[], Made]) -> Made:
        if key not in self.asked:
            self.beneath.append({})
            try:
                made = make()
            finally:
                texts = self.beneath.pop()
            self.asked[key] = made, texts
        self.beneath[-1].update(self.asked[key][1])
        return self.asked[key][0]  # type: ignore[no-any-return]

    def sql_of(self, key: Any) -> str:
        """Statements that what was made under the key comes from, as the warehouse takes them."""
        return ";\n\n".join(self.asked[key][1])

    def name(self, name: str, of: str) -> None:
        """Lets other queries call the rows of a query by a name."""
        self.connection.register(name, self(of))
        self.names[name] = self.spelled(of)

    def sql(self, text: str, told: pl.DataFrame | None = None) -> pl.DataFrame:
        """The rows of a query by its name, or of SQL, in which {name} stands for a query and `told` for the rows of that name."""
        known = queries(self.folder / "rows.sql")
        if text in known and "told" not in known[text]:
            return self(text)
        if told is not None:
            self.connection.register("told", told)
        whole = known[text] if text in known else _filled(re.sub(r"\(\{(\w+)\}\)", self._once, text), known)
        if told is None:
            self.keep(text)
        return _found(self.connection, whole, self._params)

    def _once(self, found: re.Match[str]) -> str:
        """A query between brackets is asked once, unless it is part of others or asks `told`."""
        name, text = found[1], queries(self.folder / "rows.sql")[found[1]]
        if "told" in text or not text.lstrip().startswith(("select", "with", "from")):
            return found[0]
        self.of(("registered", name), lambda: self.connection.register(f"asked_{name}", self(name)))
        return f"asked_{name}"

    def _rows(self, name: str, **more: Any) -> pl.DataFrame:
        self.keep(name, **more)
        return rows_of(self.connection, self.folder / "rows.sql", name, **self._params, **more)

    def keep(self, text: str, **more: Any) -> None:
        """Notes a query by its name, or SQL, beneath what is being made."""
        self.beneath[-1][self.spelled(text, **more)] = None

    def spelled(self, text: str, **more: Any) -> str:
        """A query as the warehouse takes it: with the values of its parameters, and before it the rows that it calls by name."""
        values, known = {**self._params, **more}, queries(self.folder / "rows.sql")
        text = known[text] if text in known else _filled(text, known)
        text = re.sub(r"\$(\w+)", lambda m: _literal(values[m[1]]) if m[1] in values else m[0], text.strip())
        called = [name for name in self.names if re.search(rf"\b{name}\b", text) and f"{name} as (" not in text]
        before = [f"{name} as (\n{self.names[name]}\n)" for name in called]
        rest = f", {text[4:]}" if text.startswith("with") else f"\n{text}"
        return f"with {', '.join(before)}{rest}" if before else text

    @property
    def _params(self) -> dict[str, Any]:
        return {**tables_of(self.folder.name), "size": self.size, **self.params}


def _literal(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_literal, value))}]"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


def rows_of(connection: duckdb.DuckDBPyConnection, file: Path, name: str, **params: Any) -> pl.DataFrame:
    """The rows of a query of `file`. params: values of its $names and of others, which DuckDB would refuse."""
    return _found(connection, queries(file)[name], params)


def _found(connection: duckdb.DuckDBPyConnection, text: str, params: Mapping[str, Any]) -> pl.DataFrame:
    asked = set(re.findall(r"\$(\w+)", text))
    rows: pl.DataFrame = connection.sql(text, params={key: value for key, value in params.items() if key in asked}).pl()
    return rows


@cache
def words_of(page: str) -> dict[str, Any]:
    """What files of a page's figures call by name, beside the facts of the figure: the look's words, and those that words.toml of
    all pages and of the page say, where the house's colours go by their names.

    Of a table NAME its words by key; NAME_words: the words alone; where its rows have looks NAME_colour, say: those by words.
    """
    folder, found = SHARED.parent / page, dict(vars(theme))
    if (folder / "words.py").exists():
        found |= vars(import_module(f"tokentape.dashboards.{page}.words"))
    for path in filter(Path.exists, (SHARED.parent / "words.toml", folder / "words.toml")):
        for name, of in theme.read(path).items():
            found |= _looks(name, of)
    tables = {name: of for name, of in found.items() if name.isupper() and isinstance(of, dict)}
    said = {name: [one[0] if isinstance(one, (list, tuple)) else str(one) for one in of.values()] for name, of in tables.items()}
    return found | {f"{name}_words": words for name, words in said.items()}


def _looks(name: str, of: Any) -> dict[str, Any]:
    """A table's rows by the key and, of each look, by their words."""
    rows = of.values() if isinstance(of, dict) else ()
    if not rows or not all(isinstance(row, dict) for row in rows):
        return {name: of}
    looks = dict.fromkeys(look for row in rows for look in row if look != "words")
    by_look = {f"{name}_{look}": {row.get("words", key): row[look] for key, row in of.items()} for look in looks}
    return {name: {key: row.get("words", key) for key, row in of.items()}, **by_look}


@cache
def tables_of(page: str) -> dict[str, Any]:
    """Words as SQL takes them: text, numbers and lists as they are; of a table its keys."""
    words = {name: of for name, of in words_of(page).items() if name.isupper() or name.endswith("_words")}
    kept = {name: of for name, of in words.items() if isinstance(of, (str, int, float, list, tuple, dict))}
    return {name: list(of) if isinstance(of, (tuple, dict)) else of for name, of in kept.items()}


@cache
def queries(file: Path) -> dict[str, str]:
    """Name -> SQL of a file of queries, each below a line "-- name: what its rows are"; {name} stands for an earlier one,
    or one of SHARED. Those alone where there is no file."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    parts = re.split(r"^-- ([a-z_0-9]+): .*\n", text, flags=re.M)
    found = {} if file == SHARED else dict(queries(SHARED))
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        found[name] = _filled(text, found)
    return found


def _filled(text: str, queries: Mapping[str, str]) -> str:
    return re.sub(r"\{([a-z]\w*)\}", lambda m: queries[m[1]].strip(), text)
