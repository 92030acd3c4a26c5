"""Results that an older version left, taken over: of before runs, and runs under names that are others now.

    <store>/results/<table>/<replay_id>.parquet   and   <store>/<view>/<hash>.parquet        before runs

Tapes stay as they are. A column that an old file lacks is null. Old files go once what they held is written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import polars as pl
import pyarrow as pa

from tokentape.warehouse.at_rest import OWN_COLUMNS, Maker, at_rest, filled, hash_of, run_id_of
from tokentape.warehouse.results import batch_path, batches, lost_files, oldest_first, read_rows, stored, write_batch, write_rows
from tokentape.warehouse.tables import RESULT_TABLES, TABLES, VIEWS, BadTable, conform, schema
from tokentape.warehouse.tape import Store

_FOLDER = "results"
REPLAYS = "replays"
_RENAMED = {"metrics": "metrics", "timeline": "steps", "request_metrics": "request_metrics"}
_REPLAYS_PER_BATCH = 256
_STUDIES = {"cxl-ndp": "cxl_ndp", "layered-prefill": "layered_prefill"}  # by names that an older version gave them
_POLICIES = {"ndp": "cxl_ndp"}  # inside a live model
_BEGINNINGS = {"cxl_ndp_": "ndp_", "elmoe3d_": "elastic_", "slicemoe_points": "sliced_points"}  # of views, now and before
_BEFORE = {name: old + name.removeprefix(now) for now, old in _BEGINNINGS.items() for name in VIEWS if name.startswith(now)}
_VIEWS = {old: name for name, old in _BEFORE.items()}
Tables = dict[str, pa.Table]


def older(store: Store) -> list[str]:
    """Files of results of before runs, oldest first."""
    found = (path for folder in _folders(store) for path in store.fs.ls(folder, detail=False))
    return oldest_first(store, sorted(path for path in found if path.endswith(".parquet")))


def older_names(runs: pl.DataFrame) -> list[str]:
    """Batches, of `stored` runs, whose names an older version gave."""
    is_older = pl.any_horizontal(pl.col("study", "copy_of").is_in([*_STUDIES]))
    is_older |= pl.col("view_name").is_in([*_VIEWS])
    is_older |= pl.col("facts").str.json_path_match("$.policy").is_in([*_POLICIES])
    return runs.filter(is_older)["stem"].unique(maintain_order=True).to_list()


def _folders(store: Store) -> list[str]:
    """Folders of older versions that are there, `results` itself last."""
    names = [f"{_FOLDER}/{name}" for name in (REPLAYS, "curves", *_RENAMED)]
    return [
        path
        for name in (*names, *(_BEFORE.get(name, name) for name in VIEWS), _FOLDER)
        if store.fs.isdir(path := store.path(name))
    ]


def migrate(store: Store) -> Iterator[tuple[int, int]]:
    """Takes over what `older` finds; after each batch (files done, files in all). Interrupted, it goes on where it stopped.

    Raises BadTable naming the file that is damaged; what was taken over before stays.
    """
    total, n_done = len(older(store)), 0
    for batch, tables, done in chain(_replays(store), _views(store), _renamed(store)):
        if tables["runs"].num_rows:
            write_batch(store, batch, tables)
        _remove(store, done)
        n_done += len(done)
        total = max(total, n_done)
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
        folder = _BEFORE.get(name, name)
        for stem in batches(store, folder):
            path = batch_path(store, folder, stem)
            rows = _read(store, path).to_pylist()
            ids = list(dict.fromkeys(run_id_of(name, _complete(name, row)) for row in rows))
            parts = [at_rest(name, rows, is_older=True)]
            parts += [
                at_rest(o, mine, is_older=True) for o, of in others.items() if (mine := [r for i in ids for r in of.get(i, ())])
            ]
            found = list(dict.fromkeys(table for part in parts for table in part))
            yield f"{name}-{stem}", {t: pa.concat_tables(part[t] for part in parts if t in part) for t in found}, [path]
        for other in others:
            folder = _BEFORE.get(other, other)
            _remove(store, [batch_path(store, folder, stem) for stem in batches(store, folder)])


def _renamed(store: Store) -> Iterator[tuple[str, Tables, list[str]]]:
    """Batches again, under today's names, whose runs or answers have names of an older version; newer ones of the same stay."""
    whole = [batch for batch in batches(store) if not lost_files(store, [batch_path(store, "runs", batch)])]
    found = stored(store, "runs", whole)
    for batch in older_names(found):
        there = [name for name in RESULT_TABLES if store.fs.exists(batch_path(store, name, batch))]
        rows = {name: stored(store, name, [batch]).drop("stem").to_dicts() for name in there}
        now = {run["run_id"]: _under_todays_names(run) for run in rows["runs"]}
        known = set(found.filter(~pl.col("stem").is_in([batch, f"renamed-{batch}"]))["run_id"])
        ids = {old: run["run_id"] for old, run in now.items() if run["run_id"] not in known}
        rows["runs"] = [now[old] for old in ids]
        for name in there[1:]:
            rows[name] = [row | {"run_id": ids[row["run_id"]]} for row in rows[name] if row["run_id"] in ids]
        tables = {name: pa.Table.from_pylist(of, schema=schema(name)) for name, of in rows.items()}
        yield f"renamed-{batch}", tables, [batch_path(store, name, batch) for name in there]
    for stem in batches(store, "answers"):
        path = batch_path(store, "answers", stem)
        answers = store.parquet(path).read().to_pylist()
        for study in {row["study"] for row in answers} & {*_STUDIES}:
            renamed = [row | {"study": _STUDIES[study]} for row in answers if row["study"] == study]
            if not any(row["study"] == _STUDIES[study] for row in read_rows(store, "answers")):
                write_rows(store, "answers", renamed, _STUDIES[study])
            _remove(store, [path])


def _under_todays_names(run: dict[str, Any]) -> dict[str, Any]:
    """A row of `runs` with the id and the conditions that follow from its names."""
    study, copy_of = (_STUDIES.get(run[name], run[name]) for name in ("study", "copy_of"))
    facts = json.loads(run["facts"])
    if facts.get("policy") in _POLICIES:
        facts["policy"] = _POLICIES[facts["policy"]]
    run = run | {
        "view_name": _VIEWS.get(run["view_name"], run["view_name"]),
        "study": study,
        "copy_of": copy_of,
        "facts": json.dumps(facts, sort_keys=True, ensure_ascii=False),
    }
    own = {column: run[column] for column in OWN_COLUMNS}
    if run["view_name"]:
        told = own | json.loads(run["semantics"] or "{}") | facts
        run_id = run["run_id"] if run["view_name"] == REPLAYS else run_id_of(run["view_name"], told, Maker(study, copy_of))
    else:
        given = {column: value for column, value in own.items() if value is not None and column != "study"}
        run_id = hash_of([run["engine"], study, given | facts, json.loads(run["system"])])
    return run | {"run_id": run_id, "conditions": run["conditions"] if run["view_name"] == REPLAYS else run_id}


def _rows_by_run(store: Store, name: str) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    folder = _BEFORE.get(name, name)
    for stem in batches(store, folder):
        for row in _read(store, batch_path(store, folder, stem)).to_pylist():
            found.setdefault(run_id_of(name, _complete(name, row)), []).append(row)
    return found


def _complete(name: str, row: Mapping[str, Any]) -> dict[str, Any]:
    return dict.fromkeys(VIEWS[name].columns) | dict(row)


def _read(store: Store, path: str) -> pa.Table:
    rows = store.parquet(path).read()
    if not rows.num_rows:
        raise BadTable(f"{path}: holds no rows; remove it")
    return rows
