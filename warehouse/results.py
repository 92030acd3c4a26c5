"""Results at rest: what is computed together is a batch, one Parquet file per stored table.

    <store>/<table>/<batch>.parquet      tables: RESULT_TABLES, and OWN_TABLES, which stand outside any run

The files of a batch are named alike, and `runs`, which is written last, says in its footer which tables came before it: so it
marks the batch complete. One that was interrupted, or has lost a file since, is made again.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from tokentape.warehouse.at_rest import SHIPPED, Maker, at_rest, declared, filled, hash_of, hash_of_text, metric_defs, selected
from tokentape.warehouse.in_memory import in_memory
from tokentape.warehouse.tables import OWN_TABLES, RESULT_TABLES, TABLES, VIEWS, BadTable, check_schema, conform, schema
from tokentape.warehouse.tape import Store, packed

WITH = b"tokentape.with"  # in a footer: the tables whose files of the same name were written before this one
Rows = Sequence[Mapping[str, Any]]
_TIMES = ("mtime", "LastModified", "created")  # as stores name it


def batch_path(store: Store, table: str, batch: str) -> str:
    return store.path(table, f"{batch}.parquet")


def batches(store: Store, table: str = "runs") -> list[str]:
    """Batches that wrote the table, oldest first; those of one time, and where the store tells no times, by name."""
    path = store.path(table)
    entries = store.fs.ls(path, detail=True) if store.fs.isdir(path) else []
    found = {Path(entry["name"]).stem: entry for entry in entries if entry["name"].endswith(".parquet")}
    times = {stem: next((entry[name] for name in _TIMES if entry.get(name)), 0) for stem, entry in found.items()}
    return sorted(sorted(times), key=times.__getitem__)


# ------------------------------------------------------------------------------------------------ writing


def write_replays(store: Store, tables: Mapping[str, pa.Table]) -> None:
    """One batch of replays, named by their ids.

    Raises BadTable where a table does not fit its declaration; nothing is written then.
    """
    checked = {name: conform(name, rows) for name, rows in tables.items()}
    ids = checked["runs"]["run_id"].to_pylist()
    view = checked["runs"]["view_name"][0].as_py()
    write_batch(store, f"{view}-{ids[0] if len(ids) == 1 else hash_of(sorted(ids))}", checked)


def write_rows(store: Store, name: str, rows: Rows, of: str = "", maker: Maker = SHIPPED) -> str:
    """Writes rows of a view as one batch, or of one of OWN_TABLES into a file; the path of its last file.

    The batch is named by its content, or by what the rows are `of`, a machine or a step: rows of the same then replace it whole.
    Raises ValueError for no rows, BadTable for rows that do not fit the declaration.
    """
    if name in VIEWS:
        return write_together(store, {name: rows}, name, of or _content(rows), maker)
    table = declared(name, rows)
    path = batch_path(store, name, hash_of_text(of or _content(table.to_pylist())))
    store.write_parquet(path, table)
    return path


def replace_rows(store: Store, name: str, rows: Rows, of: str, maker: Maker = SHIPPED) -> None:
    """All rows of a view that are `of` something; of none, the earlier ones are removed."""
    if rows:
        write_rows(store, name, rows, of, maker)
    else:
        _remove(store, _batch(name, of))


def write_together(store: Store, rows: Mapping[str, Rows], last: str, of: str, maker: Maker = SHIPPED) -> str:
    """Rows of several views that are `of` one thing, as one batch; has_rows finds it by `last`. Empty others are left out.

    Raises as write_rows does; nothing is written then.
    """
    parts = [at_rest(name, of_view, maker) for name, of_view in rows.items() if of_view or name == last]
    names = [name for name in RESULT_TABLES if any(name in part for part in parts)]
    if "runs" not in names:
        raise BadTable(f"view {last} is of the runs of {VIEWS[last].of}; write them together")
    batch = _batch(last, of)
    write_batch(store, batch, {name: pa.concat_tables(part[name] for part in parts if name in part) for name in names})
    return batch_path(store, "runs", batch)


def write_batch(store: Store, batch: str, tables: Mapping[str, pa.Table]) -> None:
    """The files of a batch, all written before any is put in place, that of `runs` last, which names the others.

    An earlier one of other runs is gone before: with new files beside it, it would pass for a whole batch of runs without values.
    """
    others, mark = sorted(set(tables) - {"runs"}), batch_path(store, "runs", batch)
    noted = tables["runs"].replace_schema_metadata({WITH: json.dumps(others).encode()})
    with ExitStack() as files:  # which are put in place from the last to the first
        for path, rows in ((mark, noted), *((batch_path(store, name, batch), tables[name]) for name in reversed(others))):
            handle = files.enter_context(store.replacing(path))
            handle.write(packed(rows))
            handle.flush()
        if store.fs.exists(mark) and store.fs.cat_file(mark) != packed(noted):
            files.callback(store.fs.rm, mark)


def _batch(name: str, of: str) -> str:
    return f"{name}-{hash_of_text(of)}"


def _content(rows: Rows) -> str:
    return json.dumps([dict(row) for row in rows], sort_keys=True)


# ------------------------------------------------------------------------------------------------ what is there


def run_ids(store: Store, of: str = "replays") -> list[str]:
    """Runs of a view of whole batches, sorted."""
    return sorted(key for view, key in all_ids(store) if view == of)


def all_ids(store: Store) -> set[tuple[str, str]]:
    """Views and ids of all runs of whole batches."""
    found, there = set[tuple[str, str]](), dict[str, set[str]]()
    for batch in batches(store):
        with suppress(BadTable):
            file = store.parquet(batch_path(store, "runs", batch))
            if not _lost(store, batch, file, there):
                runs = file.read(["run_id", "view_name"])
                found.update(zip(runs["view_name"].to_pylist(), runs["run_id"].to_pylist(), strict=True))
    return found


def stored_run(store: Store, of: str, run_id: str) -> tuple[dict[str, Any], pl.DataFrame] | None:
    """The facts and the metrics of a run that is a batch of its own; None where it is not there whole."""
    if not is_whole(store, batch := f"{of}-{run_id}"):
        return None
    row = stored(store, "runs", [batch]).row(0, named=True)
    return row | json.loads(row["facts"]), stored(store, "metrics", [batch])


def is_whole(store: Store, batch: str) -> bool:
    """Whether a batch is there with all of its files; no other is opened."""
    return bool(store.fs.exists(batch_path(store, "runs", batch))) and not lost_files(store, [batch])


def broken(store: Store) -> list[str]:
    """Batches that lost files, or whose file of `runs` is damaged: every one of the store is read."""
    return [*lost_files(store, batches(store))]


def remove_broken(store: Store, of: Iterable[str], made_again: set[str]) -> None:
    """Removes what is left of those batches that still lack a file, where all their runs are among those `made_again`."""
    for batch in lost_files(store, of):
        with suppress(BadTable, FileNotFoundError):  # a damaged file does not say, `check --repair` removes it; or it is gone
            runs = store.parquet(batch_path(store, "runs", batch)).read(["run_id"])
            if set(runs["run_id"].to_pylist()) <= made_again:
                _remove(store, batch)


def remove_others(store: Store, name: str, study: str, of: Iterable[str], is_spared: Callable[[dict[str, Any]], bool]) -> None:
    """Removes the batches of a study's view that are `of` nothing given and whose first run, with its facts, is not spared."""
    kept = {_batch(name, one) for one in of}
    for batch in batches(store):
        if batch.startswith(f"{name}-") and batch not in kept:
            with suppress(BadTable):  # a damaged file does not say whose it is; its reader names it
                run = stored(store, "runs", [batch]).row(0, named=True)
                if run["study"] == study and not is_spared(run | json.loads(run["facts"])):
                    _remove(store, batch)


def _remove(store: Store, batch: str) -> None:
    """Removes its files, that of `runs` last, by which what is left would be found."""
    for path in filter(store.fs.exists, (batch_path(store, name, batch) for name in reversed(RESULT_TABLES))):
        store.fs.rm(path)


def has_rows(store: Store, name: str, of: str) -> bool:
    """True once the rows of a view that are `of` something are written, and all that was written with them is there."""
    return is_whole(store, _batch(name, of))


def lost_files(store: Store, of: Iterable[str]) -> dict[str, list[str]]:
    """Those of some batches that lost files: which; that of `runs` if it is damaged or cannot be read."""
    there: dict[str, set[str]] = {}
    lost: dict[str, list[str]] = {}
    for batch in (of := [*of]):
        path = batch_path(store, "runs", batch)
        try:
            if found := _lost(store, batch, store.parquet(path), there if len(of) > 1 else None):
                lost[batch] = found
        except (BadTable, OSError):
            lost[batch] = [path]
    return lost


def _lost(store: Store, batch: str, file: pq.ParquetFile, there: dict[str, set[str]] | None) -> list[str]:
    """Files of a batch that its file of `runs` names and that are gone. there: what tables hold, listed where it is not given;
    None for one batch alone, whose files are asked for by name: a listing is as long as all that the store has."""
    tables = json.loads((file.schema_arrow.metadata or {}).get(WITH, b"[]"))
    if there is None:
        return [path for table in tables if not store.fs.exists(path := batch_path(store, table, batch))]
    for table in set(tables) - set(there):
        there[table] = set(batches(store, table))
    return [batch_path(store, table, batch) for table in tables if batch not in there[table]]


# ------------------------------------------------------------------------------------------------ reading


def stored(store: Store, table: str, of: Sequence[str]) -> pl.DataFrame:
    """Rows of a stored table of some batches, in their order, with the `stem` of their files; what a file lacks is null.

    Raises BadTable for a file that is truncated, foreign or changed.
    """
    found = [pl.DataFrame(schema(table).empty_table()).with_columns(stem=pl.lit("", pl.String))]
    for batch in of:
        path = batch_path(store, table, batch)
        rows = filled(table, store.parquet(path).read())
        check_schema(table, rows.schema, path)
        found.append(pl.DataFrame(conform(table, rows.select(schema(table).names))).with_columns(stem=pl.lit(batch)))
    return pl.concat(found)


def newest(runs: pl.DataFrame) -> pl.DataFrame:
    """One run per set of conditions: of `stored` ones the last; of quality, measured more than once, the one of most items.

    A change of the code gives a replay a new id, and its old result stays in the store. Quality that an older version measured
    says no dtype: it gives way to what does.
    """
    dtype, *of = (pl.col("facts").str.json_path_match(f"$.{name}") for name in ("dtype", "policy", "parameters", "dataset"))
    copy = pl.when(pl.col("copy_of").is_not_null()).then("study").alias("copy")
    is_older = dtype.is_null() & (dtype.count().over("model_id", "seed", copy, *of) > 0)
    older = runs.filter(pl.col("view_name") == "quality").filter(is_older)
    runs = runs.filter(~pl.col("run_id").is_in(older["run_id"].implode()))
    items = (pl.col("facts").str.json_path_match(f"$.{name}").cast(pl.Int64) for name in ("n_items", "n_tokens"))
    effort = [pl.when(pl.col("view_name") == "quality").then(item).otherwise(0).alias(f"_{i}") for i, item in enumerate(items)]
    ranked = runs.with_columns(*effort).sort("_0", "_1", maintain_order=True)
    return ranked.unique(["view_name", "conditions"], keep="last").drop("_0", "_1").sort("view_name", "run_id")


def measured_of(store: Store, table: str, runs: pl.DataFrame) -> pl.DataFrame:
    """Rows of a stored table that are of `runs`, sorted by its key."""
    wanted = set(runs["stem"])
    rows = stored(store, table, [batch for batch in batches(store, table) if batch in wanted])
    return rows.join(runs.select("run_id", "stem"), on=["run_id", "stem"], how="semi").drop("stem").sort(TABLES[table].key)


def read_rows(store: Store, name: str, study: str = "") -> list[dict[str, Any]]:
    """Rows of a view, or of one of OWN_TABLES, the newest of each key; of a study that is a copy, or of all that ship."""
    if name in OWN_TABLES:
        found: dict[tuple[Any, ...], dict[str, Any]] = {}
        for batch in batches(store, name):
            rows = store.parquet(batch_path(store, name, batch)).read().to_pylist()
            found |= {tuple(row[column] for column in TABLES[name].key): row for row in rows}
        return list(found.values())
    runs = newest(_runs_of(store, name, batches(store)))
    copied = runs.filter((pl.col("study") == study) & pl.col("copy_of").is_not_null())
    return _shown(store, name, runs.filter(pl.col("copy_of").is_null()) if copied.is_empty() else copied)


def rows_of(store: Store, name: str, of: str) -> list[dict[str, Any]] | None:
    """Rows of a view that were written as `of` something; None where they were not, or have lost a file since."""
    if not has_rows(store, name, of):
        return None
    return _shown(store, name, _runs_of(store, name, [_batch(name, of)]))


def rows_of_run(store: Store, name: str, run_id: str) -> list[dict[str, Any]]:
    """Rows of a view that are of one run. Raises BadTable naming the file if it is damaged or missing."""
    return _shown(store, name, newest(_runs_of(store, name, batches(store)).filter(pl.col("run_id") == run_id)))


def _runs_of(store: Store, name: str, of: Sequence[str]) -> pl.DataFrame:
    return stored(store, "runs", of).filter(pl.col("view_name") == (VIEWS[name].of or name))


def _shown(store: Store, name: str, runs: pl.DataFrame) -> list[dict[str, Any]]:
    """Rows of a view, in the order of its key, of some runs."""
    tables = {"runs": runs.drop("stem").with_columns(copy_of=pl.lit(None, pl.String)), "metric_defs": metric_defs()}
    if VIEWS[name].values:
        tables[VIEWS[name].values] = measured_of(store, VIEWS[name].values, runs)
    with in_memory() as connection:
        for table, frame in tables.items():
            connection.register(table, frame.to_arrow())
        rows: list[dict[str, Any]] = connection.sql(selected(name)).to_arrow_table().to_pylist()
    return rows
