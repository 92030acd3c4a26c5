"""Results that a version before runs left, one file per replay and table and one folder per question, taken over as runs.

    <store>/results/<table>/<replay_id>.parquet   and   <store>/<view>/<hash>.parquet

Tapes stay as they are. A column that an old file lacks is null. Old files go once what they held is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import pyarrow as pa

from tokentape.warehouse.at_rest import at_rest, filled, run_id_of
from tokentape.warehouse.results import batch_path, batches, oldest_first, write_batch
from tokentape.warehouse.tables import TABLES, VIEWS, BadTable, conform
from tokentape.warehouse.tape import Store

_FOLDER = "results"
REPLAYS = "replays"
_RENAMED = {"metrics": "metrics", "timeline": "steps", "request_metrics": "request_metrics"}
_REPLAYS_PER_BATCH = 256
Tables = dict[str, pa.Table]


def older(store: Store) -> list[str]:
    """Files of older versions' results, oldest first."""
    found = (path for folder in _folders(store) for path in store.fs.ls(folder, detail=False))
    return oldest_first(store, sorted(path for path in found if path.endswith(".parquet")))


def _folders(store: Store) -> list[str]:
    """Folders of older versions that are there, `results` itself last."""
    names = [f"{_FOLDER}/{name}" for name in (REPLAYS, "curves", *_RENAMED)]
    return [path for name in (*names, *VIEWS, _FOLDER) if store.fs.isdir(path := store.path(name))]


def migrate(store: Store) -> Iterator[tuple[int, int]]:
    """Takes over what `older` finds; after each batch (files done, files in all). Interrupted, it goes on where it stopped.

    Raises BadTable naming the file that is damaged; what was taken over before stays.
    """
    paths = older(store)
    total, n_done = len(paths), 0
    for batch, tables, done in chain(_replays(store), _views(store)):
        write_batch(store, batch, tables)
        _remove(store, done)
        n_done += len(done)
        yield n_done, total
    _remove(store, older(store))  # of replays that were never finished
    for folder in _folders(store):
        if not store.fs.find(folder):
            store.fs.rm(folder, recursive=True)
    yield total, total


def _remove(store: Store, paths: Iterable[str]) -> None:
    for path in paths:
        store.fs.rm(path)


def _replays(store: Store) -> Iterator[tuple[str, Tables, list[str]]]:
    """Batches of replays with their old files."""
    stems = batches(store, f"{_FOLDER}/replays")
    for first in range(0, len(stems), _REPLAYS_PER_BATCH):
        chosen = stems[first : first + _REPLAYS_PER_BATCH]
        parts = [_replay(store, stem) for stem in chosen]
        names = list(dict.fromkeys(name for part, _ in parts for name in part))
        joined = {name: pa.concat_tables(part[name] for part, _ in parts if name in part) for name in names}
        yield f"replays-{chosen[0]}", joined, [path for _, done in parts for path in done]


def _replay(store: Store, stem: str) -> tuple[Tables, list[str]]:
    paths = {name: batch_path(store, f"{_FOLDER}/{name}", stem) for name in (*_RENAMED, "curves", REPLAYS)}
    there = {name: _read(store, path) for name, path in paths.items() if store.fs.exists(path)}
    tables = at_rest(REPLAYS, there[REPLAYS].to_pylist(), is_older=True)
    for name, now in _RENAMED.items():
        if name in there:
            rows = there[name].rename_columns(["run_id" if c == "replay_id" else c for c in there[name].column_names])
            kept = [column for column in rows.column_names if column in TABLES[now].columns]
            tables[now] = conform(now, filled(now, rows.select(kept)))
    if "curves" in there:
        tables |= at_rest("lru_curves", there["curves"].to_pylist(), is_older=True)
    return tables, [paths[name] for name in there]


def _views(store: Store) -> Iterator[tuple[str, Tables, list[str]]]:
    """A batch per old file of a view, with the rows of views that are of its runs."""
    for name, view in VIEWS.items():
        if view.of or name == REPLAYS:
            continue
        others = {other: _rows_by_run(store, other) for other, its in VIEWS.items() if its.of == name}
        for stem in batches(store, name):
            path = batch_path(store, name, stem)
            rows = _read(store, path).to_pylist()
            ids = list(dict.fromkeys(run_id_of(name, _complete(name, row)) for row in rows))
            parts = [at_rest(name, rows, is_older=True)]
            parts += [
                at_rest(o, mine, is_older=True) for o, of in others.items() if (mine := [r for i in ids for r in of.get(i, ())])
            ]
            found = list(dict.fromkeys(table for part in parts for table in part))
            yield f"{name}-{stem}", {t: pa.concat_tables(part[t] for part in parts if t in part) for t in found}, [path]
        for other in others:
            _remove(store, [batch_path(store, other, stem) for stem in batches(store, other)])


def _rows_by_run(store: Store, name: str) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for stem in batches(store, name):
        for row in _read(store, batch_path(store, name, stem)).to_pylist():
            found.setdefault(run_id_of(name, _complete(name, row)), []).append(row)
    return found


def _complete(name: str, row: Mapping[str, Any]) -> dict[str, Any]:
    return dict.fromkeys(VIEWS[name].columns) | dict(row)


def _read(store: Store, path: str) -> pa.Table:
    rows = store.parquet(path).read()
    if not rows.num_rows:
        raise BadTable(f"{path}: holds no rows; remove it")
    return rows
