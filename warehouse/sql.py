"""Questions to the warehouse: read-only SQL, the named queries of queries/*.sql, and the forms an answer is printed in.

A connection made here can change nothing: the database is opened read-only, DuckDB may touch no other file and load no extension,
and these settings are locked.
"""

import io
import json
import re
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tokentape.warehouse.atomic_files import replace
from tokentape.warehouse.tables import TAPE_TABLES
from tokentape.warehouse.tape import Store

QUERIES = Path(__file__).parent / "queries"
FORMATS = ("table", "csv", "latex", "json", "parquet")
NO_EXTENSIONS: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}
_READ_ONLY = NO_EXTENSIONS | {"python_enable_replacements": "false"}
_SEALED = "set enable_external_access = false; set lock_configuration = true"
_WAIT_S = 3.0  # for another process to let go of the file
_PER_S = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # of the years 1 to 9999, from 1970-01-01
_OF_LATEX = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}  # other letters in LaTeX's own fonts
)
_DAMAGED = re.compile("Corrupt database file|Could not read enough bytes")  # a block is compared when it is first read
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


def connect(database: Path, tapes: Mapping[str, Sequence[str]] | None = None) -> duckdb.DuckDBPyConnection:
    """A read-only connection; close it soon. Waits a moment for a process that holds the file.

    tapes: files of a table of the tape, in whose place stands view tape.<table> with the trace id as a column. Raises
    FileNotFoundError where there is no warehouse, BadWarehouse if it is held for longer or is not one.
    """
    if not database.exists():
        raise FileNotFoundError(f"no warehouse at {database}; run `tokentape load` first")
    give_up = time.monotonic() + _WAIT_S
    while True:
        try:
            connection = duckdb.connect(str(database), read_only=True, config=_READ_ONLY)
            _attach(connection, tapes or {})
            return connection.execute(_SEALED)
        except duckdb.Error as error:
            if "Could not set lock" not in str(error):
                raise _to_be_built(database, error) from error
            if time.monotonic() > give_up:
                holder = re.search(r"PID (\d+)", str(error))
                who = f"process {holder[1]}" if holder else "another process"
                raise HeldWarehouse(f"{database} is held by {who}; close that program, or use --database with a copy") from error
            time.sleep(0.1)


@contextmanager
def reading(database: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """`connect` for questions of ours: what DuckDB refuses of them is BadWarehouse, damaged or of another version."""
    with closing(connect(database)) as connection:
        try:
            yield connection
        except duckdb.Error as error:
            raise _to_be_built(database, error) from error


def _to_be_built(database: Path, error: duckdb.Error) -> BadWarehouse:
    return BadWarehouse(f"{database}: {one_line(error)}; run `tokentape load` to build it again")


def _attach(connection: duckdb.DuckDBPyConnection, tapes: Mapping[str, Sequence[str]]) -> None:
    if not tapes:
        return
    paths = {table: ", ".join("'" + path.replace("'", "''") + "'" for path in files) for table, files in tapes.items()}
    connection.execute(f"attach ':memory:' as tape (read_write); set allowed_paths = [{', '.join(paths.values())}]")
    for table, of in paths.items():
        connection.execute(f"create view tape.{table} as from read_parquet([{of}], hive_partitioning = true)")


def tapes_named(store: Store, sql: str) -> dict[str, list[str]]:
    """Files of the tape's tables that a question names as tape.<table>, of all readable tapes, each compared with its sum.

    Raises BadQuery where no tape holds one of them, or the store is not a local folder; BadTape where a file has changed.
    """
    wanted = [table for table in TAPE_TABLES if re.search(rf"\btape\.{table}\b", sql, re.IGNORECASE)]
    if wanted and not store.is_local:
        raise BadQuery(f"tape.{wanted[0]} is read from a local store; copy its tapes with `tokentape pull --from {store.uri}`")
    tapes = list(store.readable()) if wanted else []
    found = {table: [path for tape in tapes if tape.has(table) for path in tape.files(table)] for table in wanted}
    for table in (table for table, files in found.items() if not files):
        raise BadQuery(f"no tape in {store.uri} holds {table}")
    return found


def query(database: Path, sql: str, store: Store | None = None) -> pl.DataFrame:
    """The answer to one SELECT (or FROM, WITH, DESCRIBE, SHOW, SUMMARIZE, EXPLAIN) statement. Nothing can be written.

    store: whose tapes the statement may name, as tape.routing, tape.passes, ..., read as far as the answer needs.
    Decimals, which DuckDB makes of integer sums, come back as Int64, or as Float64 where they have a fraction or more digits than
    that, within lists too. Raises BadQuery, also for bytes and for dates that are infinite or beyond the years 1 to 9999;
    BadWarehouse; FileNotFoundError; UnicodeEncodeError for what is no text.
    """
    sql.encode()  # or DuckDB says by a TypeError that it takes no text
    with closing(connect(database, tapes_named(store, sql) if store else None)) as connection:
        try:
            statements = connection.extract_statements(sql)
            if len(statements) != 1 or statements[0].type not in _ANSWERS:
                raise BadQuery("give one SELECT statement; the warehouse is read-only: it is built by `tokentape load`")
            answer = connection.sql(sql).to_arrow_table()
            for place, name in enumerate(answer.column_names):  # which may come twice
                _refuse_unprintable(name, answer.column(place))
            frame = pl.from_arrow(answer)
        except duckdb.Error as error:
            if _DAMAGED.search(str(error)):
                raise _to_be_built(database, error) from error
            of_tapes = f" beside {', '.join(f'tape.{table}' for table in TAPE_TABLES)}" if "tape." in sql.lower() else ""
            raise BadQuery(f"{one_line(error)}; `tokentape sql 'show tables'` lists what there is{of_tapes}") from error
        except pl.exceptions.PolarsError as error:
            raise BadQuery(f"{one_line(error)}; cast the column to a plain type, or call it by another name (as)") from error
    assert isinstance(frame, pl.DataFrame)
    return frame.with_columns(map(_plain, frame.iter_columns()))


def _plain(column: pl.Series) -> pl.Series:
    """Its decimals, also within lists, structs and maps, as Int64 where that holds every value as it is, else as Float64."""
    try:
        return column.cast(_without_decimals(column.dtype, pl.Int64))
    except pl.exceptions.InvalidOperationError:
        return column.cast(_without_decimals(column.dtype, pl.Float64))


def _without_decimals(dtype: Any, whole: Any) -> Any:
    """The type with others in place of decimals, `whole` of those without a fraction."""
    if isinstance(dtype, pl.Decimal):
        return pl.Float64 if dtype.scale else whole
    if isinstance(dtype, pl.Struct):
        return pl.Struct({field.name: _without_decimals(field.dtype, whole) for field in dtype.fields})
    if isinstance(dtype, pl.Array):
        return pl.Array(_without_decimals(dtype.inner, whole), dtype.size)
    if isinstance(dtype, pl.List):
        return pl.List(_without_decimals(dtype.inner, whole))
    is_map = hasattr(dtype, "key")  # of polars 2
    return type(dtype)(*(_without_decimals(of, whole) for of in (dtype.key, dtype.value))) if is_map else dtype


def _refuse_unprintable(name: str, column: pa.ChunkedArray) -> None:
    """Raises BadQuery for what Polars cannot turn into text, and would end the program over."""
    for leaf in (leaf for chunk in column.chunks for leaf in _leaves(chunk)):
        if pa.types.is_binary(leaf.type) or pa.types.is_large_binary(leaf.type) or pa.types.is_fixed_size_binary(leaf.type):
            raise BadQuery(f"column {name} holds bytes; ask for {name}::varchar instead")
        if pa.types.is_date32(leaf.type):
            low, high, ticks = _FIRST_DAY, _LAST_DAY, leaf.cast(pa.int32())
        elif pa.types.is_timestamp(leaf.type):
            per_day = 86_400 * _PER_S[leaf.type.unit]
            low, high, ticks = _FIRST_DAY * per_day, (_LAST_DAY + 1) * per_day - 1, leaf.cast(pa.int64())
        else:
            continue
        ends = pc.min_max(ticks).as_py()
        if ends["min"] is not None and not low <= ends["min"] <= ends["max"] <= high:
            raise BadQuery(f"column {name} has a date that is infinite or not of the years 1 to 9999; ask for {name}::varchar")


def _leaves(array: pa.Array) -> Iterator[pa.Array]:
    """The arrays of plain values inside lists, structs, maps and types that are made of others."""
    if isinstance(array, pa.ExtensionArray):
        yield from _leaves(array.storage)
    elif pa.types.is_struct(array.type):
        for i in range(array.type.num_fields):
            yield from _leaves(array.field(i))
    elif isinstance(array, pa.MapArray):
        yield from _leaves(array.keys)
        yield from _leaves(array.items)
    elif isinstance(array, (pa.ListArray, pa.LargeListArray, pa.FixedSizeListArray)):
        yield from _leaves(array.flatten())
    else:
        yield array


def render(frame: pl.DataFrame, format: str, out: Path | None = None) -> None:
    """Prints the frame as a table, csv, latex (booktabs), json (a list of rows) or parquet; into the file `out`, else to standard
    output.

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
    elif format == "latex":
        handle.write(_latex(_flat(frame)).encode())
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
        table.add_row(*(Text(_shown(v)) for v in row))
    text = io.StringIO()
    Console(file=text, width=width or 100_000, force_terminal=False).print(table)
    rows = f"{len(frame)} row" + ("" if len(frame) == 1 else "s")
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + f"\n({rows})\n"


def _shown(value: object) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _latex(frame: pl.DataFrame) -> str:
    """What stands between two lines of a paper: numbers to the right, in six digits."""
    sides = "".join("r" if dtype.is_numeric() else "l" for dtype in frame.dtypes)
    head, *rows = (
        " & ".join(_shown(v).translate(_OF_LATEX) for v in row) + r" \\" for row in (frame.columns, *frame.iter_rows())
    )
    lines = (rf"\begin{{tabular}}{{{sides}}}", r"\toprule", head, r"\midrule", *rows, r"\bottomrule", r"\end{tabular}")
    return "% \\usepackage{booktabs}\n" + "\n".join(lines) + "\n"
