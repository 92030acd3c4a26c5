"""What is wrong in a store: tapes, results and warehouse, every byte read; what can be mended from what is there.

A tape cannot be mended here: it is restored, recorded or imported again. A damaged result is dropped, so that its study makes it
again, and so is a damaged warehouse, which is built from the rest.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tokentape.warehouse.atomic_files import is_stale
from tokentape.warehouse.load import refuse_foreign
from tokentape.warehouse.results import batch_path, batches, lost_files
from tokentape.warehouse.sql import BadWarehouse, HeldWarehouse, reading
from tokentape.warehouse.tables import BY_RUN, OWN_TABLES, RESULT_TABLES
from tokentape.warehouse.tape import Store, Tape

# What a finding can be. TOLD is no damage: a capture may go on, a tape come back.
WRONG = ("damaged", "missing", "incomplete", "unknown", "litter")
TOLD = ("unfinished", "orphaned")
_BATCH_ROWS = 65_536


@dataclass(frozen=True)
class Finding:
    """One thing found. kind: one of WRONG or TOLD. files: those that a repair removes; of a tape, none."""

    kind: str
    path: str
    what: str
    files: tuple[str, ...] = ()
    is_repaired: bool = False

    @property
    def is_wrong(self) -> bool:
        return self.kind in WRONG and not self.is_repaired


def check(store: Store, database: Path) -> Iterator[Finding]:
    """Everything that is damaged, missing, left over or orphaned, tapes first. Reads every byte; changes nothing."""
    tapes, damaged = store.tapes()
    for trace_id, reason in damaged.items():
        yield Finding("damaged", store.trace_path(trace_id, "manifest.json"), reason)
    for tape in tapes:
        yield from _of_tape(tape)
    for trace_id in store.unfinished_ids():
        yield Finding("unfinished", store.trace_path(trace_id), "has no manifest; go on with capture --resume, or rm")
    yield from _results(store, {*(tape.trace_id for tape in tapes), *damaged})
    yield from _warehouse(database)
    yield from _litter(store, database)


def repair(store: Store, finding: Finding) -> Finding:
    """Removes what a finding says may go; the finding as it is then."""
    for path in filter(store.fs.exists, finding.files):
        store.fs.rm(path)
    return replace(finding, is_repaired=bool(finding.files))


def _of_tape(tape: Tape) -> Iterator[Finding]:
    store, named = tape.store, {tape.path}
    for table in tape.manifest.tables:
        is_whole = True
        for path in tape.shard_paths(table):
            named.add(path)
            try:
                tape.compare(path)
            except (ValueError, OSError) as error:
                is_whole = False
                yield Finding("damaged" if store.fs.exists(path) else "missing", path, str(error))
        try:
            for _ in tape.batches(table, _BATCH_ROWS) if table == "attention" else tape.shards(table):
                pass
        except (ValueError, OSError) as error:
            if is_whole:
                yield Finding("damaged", store.trace_path(tape.trace_id, table), str(error))
    for path in store.fs.find(store.trace_path(tape.trace_id)):
        if path not in named and not path.endswith(".part"):
            yield Finding("unknown", path, "is no file of this tape: its manifest does not name it; move it away")


def _results(store: Store, traces: set[str]) -> Iterator[Finding]:
    complete = batches(store)
    lost = lost_files(store, complete)
    for batch in complete:
        there = {name: path for name in RESULT_TABLES if store.fs.exists(path := batch_path(store, name, batch))}
        every = tuple(there.values())  # `runs`, the mark of a complete batch, first to go
        of_tapes, of_runs = set[str](), dict[str, set[str]]()
        for name, path in there.items():
            try:
                rows = store.parquet(path).read()
                of_runs[path] = set(rows["run_id"].to_pylist())
                if name == "runs":
                    named = rows.filter(pc.is_in(rows["view_name"], pa.array(BY_RUN)))
                    of_tapes = set(named["trace_id"].to_pylist())
            except (ValueError, OSError, KeyError, pa.ArrowException) as error:  # what cannot be read now may be whole
                yield Finding("damaged", path, str(error), () if isinstance(error, OSError) else every)
        for path in (path for path, ids in of_runs.items() if not ids <= of_runs.get(there["runs"], ids)):
            yield Finding(
                "damaged", path, "is of other runs than its batch, which two wrote at once; its study makes it again", every
            )
        for path in lost.get(batch, ()):
            if path != there["runs"]:
                yield Finding("missing", path, "is a file that its batch lost; its study makes it again", every)
        for trace_id in sorted(of_tapes - traces):
            yield Finding("orphaned", there["runs"], f"is of tape {trace_id}, which is gone; load leaves it out")
    for name in RESULT_TABLES[1:]:
        for batch in sorted(set(batches(store, name)) - set(complete)):
            path = batch_path(store, name, batch)
            yield Finding("incomplete", path, "belongs to a batch that was never finished; its study makes it again", (path,))
    for name in OWN_TABLES:
        for batch in batches(store, name):
            path = batch_path(store, name, batch)
            try:
                store.parquet(path).read()
            except (ValueError, OSError, pa.ArrowException) as error:
                yield Finding("damaged", path, str(error), () if isinstance(error, OSError) else (path,))


def _warehouse(database: Path) -> Iterator[Finding]:
    """DuckDB has a checksum per block, which it compares as it reads."""
    if not database.exists():
        return
    refuse_foreign(database)
    try:
        with reading(database) as connection:
            for (name,) in connection.execute("select table_name from duckdb_tables()").fetchall():
                connection.execute(f'select bit_xor(hash(t)) from "{name}" t').fetchall()
    except HeldWarehouse:
        raise
    except BadWarehouse as error:
        yield Finding("damaged", str(database), str(error), (str(database.resolve()),))


def _litter(store: Store, database: Path) -> Iterator[Finding]:
    """Only of this machine's own disk: elsewhere no one can say whether its writer still runs."""
    folders = {database.resolve().parent: False}
    if store.is_local:
        folders[Path(store.root).resolve()] = True
    seen = set[Path]()
    for folder, is_deep in folders.items():
        with suppress(FileNotFoundError):
            seen |= {path for path in (folder.rglob if is_deep else folder.glob)("*.part*") if is_stale(path)}
    for path in sorted(seen):
        yield Finding("litter", str(path), "was being written by a process that is gone", (str(path),))
