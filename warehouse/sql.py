"""Questions to the warehouse: read-only SQL, the named queries of queries/*.sql, and the forms an answer is printed in.

A connection made here can change nothing: the database is opened read-only, DuckDB may touch no other file and load no extension,
and these settings are locked.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import duckdb
import polars as pl
from rich.console import Console
from rich.table import Table
from rich.text import Text

from warehouse.asides import replace

QUERIES = Path(__file__).parent / "queries"
FORMATS = ("table", "csv", "json", "parquet")
NO_EXTENSIONS: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}
_READ_ONLY = NO_EXTENSIONS | {
    "enable_external_access": "false",
    "python_enable_replacements": "false",
    "lock_configuration": "true",
}
_WAIT_S = 3.0  # for another process to let go of the file
_ANSWERS = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)


class BadWarehouse(ValueError):
    """A database that cannot be read or built; the message names it and the remedy."""


class HeldWarehouse(BadWarehouse):
    """A database that another program holds."""


class BadQuery(ValueError):
    """SQL that DuckDB does not accept, or that is not one question."""


@dataclass(frozen=True)
class NamedQuery:
    """One file of queries/: its name, the question of its first line, its text."""

    name: str
    question: str
    sql: str


def one_line(error: Exception) -> str:
    """DuckDB's message without the excerpt of the statement, on one line."""
    return " ".join(str(error).split("\n\nLINE ")[0].split())


def named() -> dict[str, NamedQuery]:
    """The shipped queries by name, sorted."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(QUERIES.glob("*.sql"))}
    return {name: NamedQuery(name, text.split("\n", 1)[0].removeprefix("--").strip(), text) for name, text in texts.items()}


def connect(database: Path) -> duckdb.DuckDBPyConnection:
    """A read-only connection; close it soon. Waits a moment for a process that holds the file.

    Raises FileNotFoundError where there is no warehouse, BadWarehouse if it is held for longer or is not one.
    """
    if not database.exists():
        raise FileNotFoundError(f"no warehouse at {database}; run `tokentape load` first")
    give_up = time.monotonic() + _WAIT_S
    while True:
        try:
            return duckdb.connect(str(database), read_only=True, config=_READ_ONLY)
        except duckdb.Error as error:
            if "Could not set lock" not in str(error):
                raise BadWarehouse(f"{database}: {one_line(error)}; run `tokentape load` to build it again") from error
            if time.monotonic() > give_up:
                holder = re.search(r"PID (\d+)", str(error))
                who = f"process {holder[1]}" if holder else "another process"
                raise HeldWarehouse(f"{database} is held by {who}; close that program, or use --database with a copy") from error
            time.sleep(0.1)


def query(database: Path, sql: str) -> pl.DataFrame:
    """The answer to one SELECT (or FROM, WITH, DESCRIBE, SHOW, SUMMARIZE, EXPLAIN) statement. Nothing can be written.

    Decimals, which DuckDB makes of integer sums, come back as Int64 or Float64. Raises BadQuery, BadWarehouse, FileNotFoundError.
    """
    with closing(connect(database)) as connection:
        try:
            statements = connection.extract_statements(sql)
            if len(statements) != 1 or statements[0].type not in _ANSWERS:
                raise BadQuery("give one SELECT statement; the warehouse is read-only: it is built by `tokentape load`")
            frame = pl.from_arrow(connection.sql(sql).to_arrow_table())
        except duckdb.Error as error:
            raise BadQuery(f"{one_line(error)}; `tokentape sql 'show tables'` lists what there is") from error
        except pl.exceptions.PolarsError as error:
            raise BadQuery(f"{one_line(error)}; cast the column to a plain type") from error
    assert isinstance(frame, pl.DataFrame)
    whole = {
        name: pl.Int64 if dtype.scale == 0 else pl.Float64
        for name, dtype in frame.schema.items()
        if isinstance(dtype, pl.Decimal)
    }
    return frame.cast(whole)  # type: ignore[arg-type]


def render(frame: pl.DataFrame, format: str, out: Path | None = None) -> None:
    """Prints the frame as a table, csv, json (a list of rows) or parquet; into the file `out`, else to standard output.

    Raises ValueError for an unknown format and for parquet on a terminal, OSError naming `out` where it cannot be written; a file
    that was there stays then.
    """
    if format not in FORMATS:
        raise ValueError(f"unknown format {format!r}; known: {', '.join(FORMATS)}")
    terminal = out is None and sys.stdout.isatty()
    if format == "parquet" and terminal:
        raise ValueError("parquet is not text; give --out FILE or redirect the output")
    buffer = io.BytesIO()
    _write(frame, format, buffer, width=shutil.get_terminal_size().columns if terminal else None)
    if out is not None:
        replace(out, buffer.getvalue())
    elif format == "parquet":
        sys.stdout.buffer.write(buffer.getvalue())
    else:
        sys.stdout.write(buffer.getvalue().decode())


def _write(frame: pl.DataFrame, format: str, handle: IO[bytes], width: int | None) -> None:
    if format == "parquet":
        frame.write_parquet(handle)
    elif format == "json":
        handle.write((json.dumps(json.loads(frame.write_json()), indent=1, ensure_ascii=False) + "\n").encode())
    elif format == "csv":
        _flat(frame).write_csv(handle)
    else:
        handle.write(_table(_flat(frame), width).encode())


def _flat(frame: pl.DataFrame) -> pl.DataFrame:
    """Lists and structs as JSON text."""
    nested = [name for name, dtype in frame.schema.items() if dtype.is_nested()]
    texts = [
        pl.Series(name, [None if v is None else json.dumps(v, default=str) for v in frame[name].to_list()], pl.String)
        for name in nested
    ]
    return frame.with_columns(texts)


def _table(frame: pl.DataFrame, width: int | None) -> str:
    """Text with one line per row; floats in six digits. width None: as wide as it needs."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, dtype in frame.schema.items():
        table.add_column(name, justify="right" if dtype.is_numeric() else "left", no_wrap=width is None)
    for row in frame.iter_rows():
        table.add_row(*(Text("" if v is None else f"{v:.6g}" if isinstance(v, float) else str(v)) for v in row))
    text = io.StringIO()
    Console(file=text, width=width or 100_000, force_terminal=False).print(table)
    rows = f"{len(frame)} row" + ("" if len(frame) == 1 else "s")
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + f"\n({rows})\n"
