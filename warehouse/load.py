"""Tapes, results and claims -> `warehouse.duckdb`. Only the loader writes it, and never in place.

The database is built in a file beside the old one and renamed over it: readers see the old one or the new one, whole, and a crash
loses nothing. It holds nothing of its own: dropped and loaded again, it has the same tables row for row. Tapes stay in Parquet;
what the pages need of them are the summary tables (summaries.sql). Every column carries its meaning and unit as a comment.
"""

import errno
import glob
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
from pyarrow import csv

from tokentape.warehouse.at_rest import metric_defs, view_sql
from tokentape.warehouse.atomic_files import aside_of, make_folder, naming, remove_stale, settle
from tokentape.warehouse.claim_errors import COMPARED
from tokentape.warehouse.results import batch_path, batches, lost_files, measured_of, newest, read_rows, stored
from tokentape.warehouse.schema.table import COLUMNS
from tokentape.warehouse.sql import NO_EXTENSIONS, BadWarehouse, one_line
from tokentape.warehouse.tables import (
    BY_RUN,
    OWN_TABLES,
    RESULT_TABLES,
    TABLES,
    VIEWS,
    WAREHOUSE_TABLES,
    BadTable,
    conform,
    schema,
)
from tokentape.warehouse.tape import BadTape, Store, Tape

_HERE = Path(__file__).parent
CLAIMS = _HERE / "claims" / "claims.csv"
OWN_CLAIMS = _HERE / "claims" / "own.csv"  # questions of ours that no paper answers
KELLE_QUALITY = _HERE / "claims" / "kelle_quality.csv"  # its Tables 2 to 6: what models of billions of weights answered
OFFLOADERS = _HERE / "claims" / "offloaders.csv"  # what authors of offloading systems measured, in their repositories
ALL_CLAIMS = (CLAIMS, KELLE_QUALITY, OFFLOADERS, OWN_CLAIMS)
Rows = Mapping[str, Sequence[Mapping[str, object]]]  # by table
_SUMMED = ("routing", "attention", "acceptance")  # tables of a tape that summaries are made of
_declared: list[bytes] = []  # see _declare
_READ_ONLY = ("Permission denied", "Read-only file system")  # as DuckDB reports it


@dataclass(frozen=True)
class LoadReport:
    """What a load found: rows per table; tapes without a manifest; files that results have lost; results without their last
    file; runs that newer ones replace, or whose tape is gone; damaged tapes."""

    database: Path
    rows: dict[str, int]
    unfinished_tapes: tuple[str, ...]
    lost_files: tuple[str, ...]
    n_incomplete: int
    n_superseded: int
    n_without_tape: int
    damaged_tapes: Mapping[str, str]  # what is wrong with them, by id

    def __str__(self) -> str:
        counts = ", ".join(f"{n} {name}" for name, n in self.rows.items() if n)
        left_out = {
            f"{len(self.unfinished_tapes)} unfinished tapes ({', '.join(self.unfinished_tapes)})": len(self.unfinished_tapes),
            f"what lost a file: {', '.join(self.lost_files[:3])}{', ...' * (len(self.lost_files) > 3)} is gone (run its study "
            "again)": len(self.lost_files),
            f"{self.n_incomplete} incomplete results": self.n_incomplete,
            f"{self.n_superseded} runs that newer ones under the same conditions replace": self.n_superseded,
            f"{self.n_without_tape} replays whose tape is gone or damaged": self.n_without_tape,
            f"{len(self.damaged_tapes)} damaged tapes ({'; '.join(self.damaged_tapes.values())})": len(self.damaged_tapes),
        }
        omitted = "; ".join(text for text, n in left_out.items() if n)
        return f"{counts}; left out: {omitted}" if omitted else counts


def database_path(store: Store) -> Path:
    """`<store>/warehouse.duckdb`; for a remote store, ./warehouse.duckdb: DuckDB needs a local file."""
    return Path(store.path("warehouse.duckdb")) if store.is_local else Path("warehouse.duckdb")


def refuse_foreign(database: Path) -> None:
    """Raises BadWarehouse for a file of somebody else's, in whose place a warehouse would stand; a damaged one of tokentape's is
    known by its name, *.duckdb."""
    if not database.is_file() or not database.stat().st_size:
        return
    try:
        with closing(duckdb.connect(str(database), read_only=True, config=NO_EXTENSIONS)) as connection:
            names = {name for (name,) in connection.execute("select table_name from information_schema.tables").fetchall()}
        is_foreign = bool(names) and not names >= {"claims", "traces"}  # which every version has
    except duckdb.Error as error:
        is_foreign = database.suffix != ".duckdb" and "Could not set lock" not in str(error)
    if is_foreign:
        raise BadWarehouse(f"{database} is no warehouse of tokentape's, and stays as it is; give --database another name")


def load(store: Store, database: Path, shipped: Rows | None = None) -> LoadReport:
    """Builds the warehouse of `store` and swaps it in at `database`.

    shipped: rows of OWN_TABLES that come with the project (its machines); the store's rows of the same key replace them.
    Raises BadTable naming the result that is truncated, foreign, changed or of another schema; OSError where the disk is full.
    The old database stays then. Damaged tapes are left out and named: one does not hide the others. What was killed on this
    machine while it wrote is removed first. FileNotFoundError for no store, BadWarehouse for a database of somebody else's.
    """
    if not store.exists:
        raise FileNotFoundError(errno.ENOENT, "no store there; give --store the folder of the tapes and results", store.uri)
    if database.is_dir():
        raise IsADirectoryError(errno.EISDIR, "a folder; give --database a file", str(database))
    refuse_foreign(database)
    store.remove_stale()
    place = database.resolve()  # of a link the file that it names
    make_folder(place.parent)
    remove_stale(place.parent.glob(f"{glob.escape(place.name)}.*.part*"))
    part = Path(aside_of(str(place)))
    try:
        with _clear_errors(database):
            _declare(part)
            with closing(duckdb.connect(str(part), config=NO_EXTENSIONS)) as connection:
                connection.begin()  # one write to the disk instead of one per statement
                report = _build(connection, store, database, shipped or {})
                connection.commit()
                connection.execute("checkpoint")  # which closing does too, but in silence where it fails
                # Counted once committed: within the transaction DuckDB 1.5 counts no rows of a table of several row groups.
                rows = {name: connection.execute(f"select count(*) from {name}").fetchall()[0][0] for name in WAREHOUSE_TABLES}
            with naming(database):
                settle(part, place)
    finally:
        part.unlink(missing_ok=True)
        part.with_name(part.name + ".wal").unlink(missing_ok=True)
    return replace(report, rows=rows)


def _declare(part: Path) -> None:
    """Makes a database of all tables and views, described, without a row; a process copies the first that it made."""
    if _declared:
        part.write_bytes(_declared[0])
        return
    with closing(duckdb.connect(str(part), config=NO_EXTENSIONS)) as connection:
        connection.begin()
        for name in WAREHOUSE_TABLES:
            connection.register("declared", schema(name).empty_table())
            connection.execute(f"create table {name} as from declared")
            connection.unregister("declared")
        connection.execute(f"create view claim_answers as {COMPARED}")
        connection.execute(";".join([*map(view_sql, VIEWS), *map(_described, (*WAREHOUSE_TABLES, *VIEWS))]))
        connection.execute((_HERE / "views.sql").read_text(encoding="utf-8"))
        connection.commit()
        connection.execute("checkpoint")
    _declared.append(part.read_bytes())


def _described(name: str) -> str:
    """SQL that gives a table or view, and its columns, their comments."""
    of, kind = TABLES[name], "view" if name in VIEWS else "table"
    lines = [f"comment on {kind} {name} is {_quoted('a row is ' + of.meaning)}"]
    for column, declared in ((column, of.column(column)) for column in of.columns):
        text = declared.meaning + (f" [{declared.unit}]" if declared.unit else "")
        lines.append(f'comment on column {name}."{column}" is {_quoted(text)}')
    return ";".join(lines)


def _build(connection: duckdb.DuckDBPyConnection, store: Store, database: Path, shipped: Rows) -> LoadReport:
    if not store.is_local:
        connection.register_filesystem(store.fs)
    tapes, damaged = _whole_tapes(store)
    _insert(connection, "traces", pa.Table.from_pylist([_catalogue_row(tape) for tape in tapes], schema=schema("traces")))
    for tape in tapes:
        if any(map(tape.has, _SUMMED)):
            _summarise(connection, tape)
        if tape.has("losses"):
            _insert(connection, "expert_losses", tape.read("losses").with_columns(trace_id=pl.lit(tape.trace_id)).to_arrow())
    complete = batches(store)
    n_incomplete = len({batch for name in RESULT_TABLES for batch in batches(store, name)} - set(complete))
    # A file that is damaged itself is for its reader to name.
    of_batches = lost_files(store, complete).items()
    lost = {batch: files for batch, files in of_batches if batch_path(store, "runs", batch) not in files}
    found = stored(store, "runs", [batch for batch in complete if batch not in lost])
    chosen = newest(found.with_columns(written=pl.int_range(pl.len(), dtype=pl.Int64)))
    known = ~pl.col("view_name").is_in(list(BY_RUN)) | pl.col("trace_id").is_in([tape.trace_id for tape in tapes])
    runs = chosen.filter(known)
    _insert(connection, "runs", runs.drop("stem").to_arrow())
    for name in RESULT_TABLES[1:]:
        _insert(connection, name, measured_of(store, name, runs).to_arrow())
    _insert(connection, "metric_defs", metric_defs().to_arrow())
    for name in OWN_TABLES:
        key = itemgetter(*TABLES[name].key)
        rows = {key(row): row for row in (*shipped.get(name, ()), *read_rows(store, name))}
        _insert(connection, name, pa.Table.from_pylist([dict(rows[of]) for of in sorted(rows)], schema=schema(name)))
    _insert(connection, "claims", claims())
    gone = tuple(dict.fromkeys(file for files in lost.values() for file in files))
    left_out = found.height - chosen.height, chosen.height - runs.height
    return LoadReport(database, {}, tuple(store.unfinished_ids()), gone, n_incomplete, *left_out, damaged)


def _whole_tapes(store: Store) -> tuple[list[Tape], dict[str, str]]:
    """The tapes of which the tables read here are as they were written, and what is wrong with the others, by id."""
    whole = []
    opened, damaged = store.tapes()
    for tape in opened:
        try:
            for name in filter(tape.has, ("passes", *_SUMMED)):
                tape.files(name)  # rows of passes are read with those of the routing, which refers to them
            for name in filter(tape.has, ("routing", "losses")):
                for _ in tape.shards(name):
                    pass
            whole.append(tape)
        except (BadTape, BadTable) as error:
            damaged[tape.trace_id] = str(error)
    return whole, damaged


def claims() -> pa.Table:
    """The papers' numbers and our own questions, as table `claims`."""
    kinds = csv.ConvertOptions(column_types={name: COLUMNS[name].type for name in TABLES["claims"].columns})
    return pa.concat_tables(conform("claims", csv.read_csv(path, convert_options=kinds)) for path in ALL_CLAIMS)


def _insert(connection: duckdb.DuckDBPyConnection, name: str, rows: pa.Table) -> None:
    connection.register("incoming", conform(name, rows))
    connection.execute(f"insert into {name} from incoming")
    connection.unregister("incoming")


def _catalogue_row(tape: Tape) -> dict[str, object]:
    m, geometry = tape.manifest, tape.geometry
    row = {name: getattr(m, name) for name in ("trace_id", "model_id", "model_revision", "dataset", "origin", "created_utc")}
    row |= {name: getattr(geometry, name) for name in ("n_layers", "n_experts", "top_k")}
    row |= {f"n_{name}": m.rows.get(name, 0) for name in ("requests", "tokens")} | {"n_moe_layers": len(geometry.moe_layers)}
    return row | {"tables": ",".join(m.tables), "flags": json.dumps(m.flags, sort_keys=True)}


def _summarise(connection: duckdb.DuckDBPyConnection, tape: Tape) -> None:
    """Adds a tape's rows to the summary tables."""
    for table in (*_SUMMED, "passes"):
        files, columns = tape.files(table) if tape.has(table) else [], ", ".join(schema(table).names)
        with _naming(files, f"record or import tape {tape.trace_id} again"):
            store = tape.store
            listed = ", ".join(_quoted(path if store.is_local else str(store.fs.unstrip_protocol(path))) for path in files)
            rows = f"read_parquet([{listed}])" if files else f"no_{table}"
            connection.register(f"no_{table}", schema(table).empty_table())
            connection.execute(f"create or replace temp view tape_{table} as select {columns} from {rows}")
    connection.execute(
        "create or replace temp table tape as select ?::varchar as trace_id, ?::double as n_experts, ?::bigint as top_k",
        [tape.trace_id, tape.geometry.n_experts, tape.geometry.top_k],
    )
    with _naming([tape.store.trace_path(tape.trace_id)], f"record or import tape {tape.trace_id} again"):
        connection.execute((_HERE / "summaries.sql").read_text(encoding="utf-8"))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@contextmanager
def _naming(paths: Sequence[str], remedy: str) -> Iterator[None]:
    """DuckDB's errors while reading these files, as BadTable with the remedy."""
    try:
        yield
    except (duckdb.InvalidInputException, duckdb.ConversionException, duckdb.InternalException) as error:
        where = paths[0] if len(paths) == 1 else f"{len(paths)} files of {os.path.dirname(paths[0])}"
        raise BadTable(f"{where}: {one_line(error)}; {remedy}") from error


@contextmanager
def _clear_errors(database: Path) -> Iterator[None]:
    """A full disk as OSError; DuckDB's own errors as one line: a read-only folder as OSError too, the rest as BadWarehouse."""
    try:
        yield
    except (duckdb.Error, OSError) as error:
        if "No space left" in str(error):
            raise OSError(
                errno.ENOSPC, f"no space left while building {database}; free some, or give --database on another disk"
            ) from error
        if isinstance(error, OSError):
            raise
        if any(reason in str(error) for reason in _READ_ONLY):
            raise PermissionError(
                errno.EACCES, f"folder {database.parent} cannot be written; give --database in one that can, or another --store"
            ) from error
        raise BadWarehouse(f"building {database} failed: {one_line(error)}; the old one, if any, is untouched") from error
