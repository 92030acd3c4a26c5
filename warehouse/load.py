"""Tapes, results and claims -> `warehouse.duckdb`. Only the loader writes it, and never in place.

The database is built in a file beside the old one and renamed over it: readers see the old one or the new one, whole, and a crash
loses nothing. It holds nothing of its own: dropped and loaded again, it has the same tables row for row. Tapes stay in Parquet;
what the pages need of them are the summary tables (summaries.sql). Every column carries its meaning and unit as a comment.
"""

from __future__ import annotations

import errno
import glob
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import duckdb
import pyarrow as pa
from pyarrow import csv

from tokentape.warehouse.atomic_files import aside_of, make_folder, remove_stale, settle
from tokentape.warehouse.claim_errors import create_view
from tokentape.warehouse.columns import COLUMNS
from tokentape.warehouse.results import lost_files, oldest_first, result_ids, result_path, side_paths, table_ids
from tokentape.warehouse.sql import NO_EXTENSIONS, BadWarehouse, one_line
from tokentape.warehouse.tables import (
    RESULT_TABLES,
    SIDE_TABLES,
    TABLES,
    WAREHOUSE_TABLES,
    BadTable,
    check_schema,
    conform,
    schema,
)
from tokentape.warehouse.tape import BadTape, Store, Tape

_HERE = Path(__file__).parent
CLAIMS = _HERE / "claims" / "claims.csv"
OWN_CLAIMS = _HERE / "claims" / "own.csv"  # questions of ours that no paper answers
KELLE_QUALITY = _HERE / "claims" / "kelle_quality.csv"  # its Tables 2 to 6: what models of billions of weights answered
ALL_CLAIMS = (CLAIMS, KELLE_QUALITY, OWN_CLAIMS)
Rows = Mapping[str, Sequence[Mapping[str, object]]]  # by table
_READ_ONLY = ("Permission denied", "Read-only file system")  # as DuckDB reports it
_FILES_PER_READ = 1000  # result files handed to DuckDB at once


@dataclass(frozen=True)
class LoadReport:
    """What a load found: rows per table; tapes without a manifest; files that results have lost; results without their last
    file, of an older schema, or whose tape is gone; damaged tapes."""

    database: Path
    rows: dict[str, int]
    unfinished_tapes: tuple[str, ...]
    lost_files: tuple[str, ...]
    n_incomplete: int
    n_older: int
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
            f"{self.n_older} results of an older version that lack a column (make them again)": self.n_older,
            f"{self.n_superseded} results that newer ones under the same conditions replace": self.n_superseded,
            f"{self.n_without_tape} results whose tape is gone or damaged": self.n_without_tape,
            f"{len(self.damaged_tapes)} damaged tapes ({'; '.join(self.damaged_tapes.values())})": len(self.damaged_tapes),
        }
        omitted = "; ".join(text for text, n in left_out.items() if n)
        return f"{counts}; left out: {omitted}" if omitted else counts


def database_path(store: Store) -> Path:
    """`<store>/warehouse.duckdb`; for a remote store, ./warehouse.duckdb: DuckDB needs a local file."""
    return Path(store.path("warehouse.duckdb")) if store.is_local else Path("warehouse.duckdb")


def load(store: Store, database: Path, shipped: Rows | None = None) -> LoadReport:
    """Builds the warehouse of `store` and swaps it in at `database`.

    shipped: rows of SIDE_TABLES that come with the project (its machines); the store's rows of the same key replace them.
    Raises BadTable naming the result that is truncated, foreign, changed or of another schema; OSError where the disk is full.
    The old database stays then. Damaged tapes are left out and named: one does not hide the others. What was killed on this
    machine while it wrote is removed first. FileNotFoundError for no store.
    """
    if not store.exists:
        raise FileNotFoundError(errno.ENOENT, "no store there; give --store the folder of the tapes and results", store.uri)
    store.remove_stale()
    make_folder(database.parent)
    remove_stale(database.parent.glob(f"{glob.escape(database.name)}.*.part*"))
    part = Path(aside_of(str(database)))
    try:
        with _clear_errors(database):
            with closing(duckdb.connect(str(part), config=NO_EXTENSIONS)) as connection:
                connection.begin()  # one write to the disk instead of one per statement
                report = _build(connection, store, database, shipped or {})
                connection.commit()
                # Counted once committed: within the transaction DuckDB 1.5 counts no rows of a table of several row groups.
                rows = {name: _scalar(connection, f"select count(*) from {name}") for name in WAREHOUSE_TABLES}
            settle(part, database)
    finally:
        part.unlink(missing_ok=True)
        part.with_name(part.name + ".wal").unlink(missing_ok=True)
    return replace(report, rows=rows)


def _build(connection: duckdb.DuckDBPyConnection, store: Store, database: Path, shipped: Rows) -> LoadReport:
    if not store.is_local:
        connection.register_filesystem(store.fs)
    for name in WAREHOUSE_TABLES:
        _create(connection, name)
    tapes, damaged = _whole_tapes(store)
    _insert(connection, "traces", pa.Table.from_pylist([_catalogue_row(tape) for tape in tapes], schema=schema("traces")))
    for tape in tapes:
        if tape.has("routing"):
            _summarise(connection, tape)
        if tape.has("losses"):
            losses = pa.concat_tables(tape.shards("losses"))
            named = losses.append_column("trace_id", pa.array([tape.trace_id] * losses.num_rows, pa.string()))
            _insert(connection, "expert_losses", named)
    complete = result_ids(store)
    n_incomplete = len({key for name in RESULT_TABLES for key in table_ids(store, name)} - set(complete))
    paths = [result_path(store, "replays", key) for key in complete]
    lost = _lost(store, paths)
    paths = [path for path in paths if path not in lost]
    older = _read_files(connection, store, "replays", oldest_first(store, paths))
    n_superseded = _keep_newest_replays(connection)
    n_read = len(paths) - len(older) - n_superseded
    connection.execute("delete from replays where trace_id not in (select trace_id from traces)")
    loaded = {row[0] for row in connection.execute("select replay_id from replays").fetchall()}
    for name in RESULT_TABLES[1:]:
        mine = [result_path(store, name, key) for key in table_ids(store, name) if key in loaded]
        older |= _read_files(connection, store, name, mine)
    for name in RESULT_TABLES:
        connection.execute(f"delete from {name} where list_contains(?, replay_id)", [sorted(older & loaded)])
    for name in SIDE_TABLES:
        own, paths = shipped.get(name, ()), side_paths(store, name)
        if not own and not paths:  # of most of them a store holds nothing
            continue
        _insert(connection, name, pa.Table.from_pylist([dict(row) for row in own], schema=schema(name)))
        lost |= _lost(store, paths)
        older |= _read_files(connection, store, name, [path for path in paths if path not in lost])
        _keep_one_per_key(connection, name)
    _insert(connection, "claims", claims())
    create_view(connection)
    connection.execute((_HERE / "views.sql").read_text(encoding="utf-8"))
    gone = tuple(dict.fromkeys(file for files in lost.values() for file in files))
    left = n_read - len(loaded)
    return LoadReport(database, {}, tuple(store.unfinished_ids()), gone, n_incomplete, len(older), n_superseded, left, damaged)


def _lost(store: Store, paths: Sequence[str]) -> dict[str, list[str]]:
    """What lost a file; a file that is damaged itself is for its reader to name."""
    return {path: files for path, files in lost_files(store, paths).items() if path not in files}


def _whole_tapes(store: Store) -> tuple[list[Tape], dict[str, str]]:
    """The tapes of which the tables read here are as they were written, and what is wrong with the others, by id."""
    whole = []
    opened, damaged = store.tapes()
    for tape in opened:
        try:
            if tape.has("routing"):
                tape.files("passes")  # its rows are read with those of the routing, which refers to them
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


def _create(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    """An empty table of the declared columns, described."""
    empty = schema(name).empty_table()
    connection.register("declared", empty)
    connection.execute(f"create table {name} as from declared")
    connection.unregister("declared")
    connection.execute(f"comment on table {name} is {_quoted('a row is ' + TABLES[name].meaning)}")
    for column in TABLES[name].columns:
        text = COLUMNS[column].meaning + (f" [{COLUMNS[column].unit}]" if COLUMNS[column].unit else "")
        connection.execute(f'comment on column {name}."{column}" is {_quoted(text)}')


def _insert(connection: duckdb.DuckDBPyConnection, name: str, rows: pa.Table) -> None:
    connection.register("incoming", conform(name, rows))
    connection.execute(f"insert into {name} from incoming")
    connection.unregister("incoming")


def _catalogue_row(tape: Tape) -> dict[str, object]:
    m, geometry = tape.manifest, tape.geometry
    return {
        "trace_id": m.trace_id,
        "model_id": m.model_id,
        "model_revision": m.model_revision,
        "dataset": m.dataset,
        "origin": m.origin,
        "n_requests": m.rows.get("requests", 0),
        "n_tokens": m.rows.get("tokens", 0),
        "n_layers": geometry.n_layers,
        "n_moe_layers": len(geometry.moe_layers),
        "n_experts": geometry.n_experts,
        "top_k": geometry.top_k,
        "tables": ",".join(m.tables),
        "flags": json.dumps(m.flags, sort_keys=True),
        "created_utc": m.created_utc,
    }


def _summarise(connection: duckdb.DuckDBPyConnection, tape: Tape) -> None:
    """Adds a tape's rows to the summary tables."""
    for table in ("routing", "passes"):
        files = tape.files(table)
        columns = ", ".join(schema(table).names)
        with _naming(files, f"record or import tape {tape.trace_id} again"):
            listed = ", ".join(_quoted(_uri(tape.store, path)) for path in files)
            connection.execute(f"create or replace temp view tape_{table} as select {columns} from read_parquet([{listed}])")
    connection.execute(
        "create or replace temp table tape as select ?::varchar as trace_id, ?::double as n_experts, ?::bigint as top_k",
        [tape.trace_id, tape.geometry.n_experts, tape.geometry.top_k],
    )
    with _naming([tape.store.trace_path(tape.trace_id)], f"record or import tape {tape.trace_id} again"):
        connection.execute((_HERE / "summaries.sql").read_text(encoding="utf-8"))


def _read_files(connection: duckdb.DuckDBPyConnection, store: Store, name: str, paths: Sequence[str]) -> set[str]:
    """Appends files of one table, in the order given and in each file's own order.

    Files of an older version, which lack a column declared since, are left out; their names (without `.parquet`) are returned.
    """
    columns = ", ".join(f'"{column}"' for column in TABLES[name].columns)
    older = set()
    for start in range(0, len(paths), _FILES_PER_READ):
        batch = list(paths[start : start + _FILES_PER_READ])
        with _naming(batch, "remove that file and run the study again"):
            outdated = set(_outdated(store, name, batch))
            files = [_uri(store, path) for path in batch if path not in outdated]
            if files:
                connection.execute(f"insert into {name} select {columns} from read_parquet(?)", [files])
        older |= {Path(path).stem for path in outdated}
    return older


def _outdated(store: Store, name: str, paths: Sequence[str]) -> list[str]:
    """The files that hold part of the table's key and lack a column. Raises BadTable for the first that is not ours at all."""
    outdated = []
    for path in paths:
        found = store.parquet(path).schema_arrow
        if set(TABLES[name].key) & set(found.names) and not set(TABLES[name].columns) <= set(found.names):
            outdated.append(path)
        else:
            check_schema(name, found, path)
    return outdated


def _keep_newest_replays(connection: duckdb.DuckDBPyConnection) -> int:
    """One row per set of conditions: the newest, since the files were read oldest first. Returns how many others there were.

    A change of the code gives a replay a new id, and its old result stays in the store.
    """
    found = _scalar(connection, "select count(*) from replays")
    made = ("replay_id", "assumed", "is_extrapolated", "outside_envelope")
    conditions = ", ".join(column for column in TABLES["replays"].columns if column not in made)
    connection.execute(f"""
        create or replace temp table chosen as from replays
        qualify row_number() over (partition by {conditions} order by rowid desc) = 1;
        delete from replays; insert into replays from chosen order by replay_id; drop table chosen""")
    return found - _scalar(connection, "select count(*) from replays")


def _keep_one_per_key(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    """One row per key: the newest; of quality, measured more than once, the one with the most items before that.

    The files were read oldest first, so that the row that came last is the newest.
    """
    key = ", ".join(f'"{column}"' for column in TABLES[name].key)
    best = "n_items desc, n_tokens desc, " if name == "quality" else ""
    connection.execute(f"""
        create or replace temp table chosen as from {name}
        qualify row_number() over (partition by {key} order by {best}rowid desc) = 1;
        delete from {name}; insert into {name} from chosen order by {key}; drop table chosen""")


def _scalar(connection: duckdb.DuckDBPyConnection, sql: str) -> int:
    row = connection.execute(sql).fetchone()
    assert row is not None
    return int(row[0])


def _uri(store: Store, path: str) -> str:
    """The path as DuckDB takes it."""
    return path if store.is_local else str(store.fs.unstrip_protocol(path))


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
    """DuckDB's own errors as one line: a full disk or a read-only folder as OSError, the rest as BadWarehouse."""
    try:
        yield
    except duckdb.Error as error:
        if "No space left" in str(error):
            raise OSError(
                errno.ENOSPC, f"no space left while building {database}; free some, or give --database on another disk"
            ) from error
        if any(reason in str(error) for reason in _READ_ONLY):
            raise PermissionError(
                errno.EACCES, f"folder {database.parent} cannot be written; give --database in one that can, or another --store"
            ) from error
        raise BadWarehouse(f"building {database} failed: {one_line(error)}; the old one, if any, is untouched") from error
