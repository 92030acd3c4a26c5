"""Results at rest: one replay = one Parquet file per result table, named by the hash of everything that decides its numbers.

    <store>/results/<table>/<replay_id>.parquet   and   <store>/<side table>/<hash of its rows>.parquet

What is written together is named alike, and its last file says in its footer which tables came before it: the one in
`results/replays` so marks a result complete. One that was interrupted, or has lost a file since, is made again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from tokentape.warehouse.tables import RESULT_TABLES, TABLES, BadTable, conform, schema
from tokentape.warehouse.tape import Store

ID_DIGITS = 20  # of the hash: 80 bits


def replay_id(parts: Mapping[str, Any]) -> str:
    """Hash of what decides a replay's numbers. `parts` holds JSON values; the order of its keys does not matter.

    Raises ValueError for a value that JSON cannot hold exactly, NaN included.
    """
    try:
        text = json.dumps(parts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except TypeError as error:
        raise ValueError(f"replay_id: {error}; give plain numbers, strings, lists and dicts") from error
    return hashlib.sha256(text.encode()).hexdigest()[:ID_DIGITS]


WITH = b"tokentape.with"  # in a footer: the tables whose files of the same name were written before this one


def result_path(store: Store, table: str, key: str) -> str:
    return store.path("results", table, f"{key}.parquet")


def has_result(store: Store, key: str) -> bool:
    """True once every table of the replay is written, while none is lost."""
    path = result_path(store, "replays", key)
    return bool(store.fs.exists(path)) and not lost_files(store, [path])


def has_rows(store: Store, name: str, of: str) -> bool:
    """True once the rows of one of SIDE_TABLES that are `of` something are written, and what write_together wrote with them."""
    path = side_path(store, name, of)
    return bool(store.fs.exists(path)) and not lost_files(store, [path])


def lost_files(store: Store, paths: Iterable[str]) -> dict[str, list[str]]:
    """Those of `paths`, each the last file of what was written together, that lost others: which; itself if it is damaged."""
    there: dict[str, set[str]] = {}
    lost: dict[str, list[str]] = {}
    for path in paths:
        root, folder, name = path.rsplit("/", 2)
        try:
            noted = (store.parquet(path).schema_arrow.metadata or {}).get(WITH)
        except BadTable:
            lost[path] = [path]
            continue
        tables = json.loads(noted) if noted else ["metrics"] if folder == "replays" else []  # older results say nothing
        for table in tables:
            if table not in there:
                there[table] = set(_stems(store, f"{root}/{table}"))
        gone = [f"{root}/{table}/{name}" for table in tables if name.removesuffix(".parquet") not in there[table]]
        if gone:
            lost[path] = gone
    return lost


def result_ids(store: Store) -> list[str]:
    """Results whose last file is written, sorted."""
    return _stems(store, store.path("results", "replays"))


def table_ids(store: Store, table: str) -> list[str]:
    """Replays that wrote the table, complete or not, sorted."""
    return _stems(store, store.path("results", table))


def write_result(store: Store, key: str, tables: Mapping[str, pa.Table]) -> None:
    """Writes one replay's tables; `replays` (one row) and `metrics` must be among them.

    Raises BadTable when a table does not fit its declaration or belongs to another replay; nothing is written then.
    """
    unknown = sorted(set(tables) - set(RESULT_TABLES))
    missing = [name for name in ("replays", "metrics") if name not in tables]
    if unknown:
        raise BadTable(f"result {key}: table {unknown[0]} is unknown; a result may hold {', '.join(RESULT_TABLES)}")
    if missing:
        raise BadTable(f"result {key}: table {missing[0]} is missing; every result holds replays and metrics")
    checked = {name: conform(name, rows) for name, rows in tables.items()}
    if checked["replays"].num_rows != 1:
        raise BadTable(f"result {key}: table replays has {checked['replays'].num_rows} rows; a result is one replay")
    for name, rows in checked.items():
        if set(rows.column("replay_id").unique().to_pylist()) - {key}:
            raise BadTable(f"result {key}: table {name} holds rows of another replay_id")
    _write_together(store, {result_path(store, name, key): checked[name] for name in checked}, "replays")


def _write_together(store: Store, tables: Mapping[str, pa.Table], last: str) -> None:
    """Files `<table>/<name>.parquet` by path, that of table `last` after the others, which it names."""
    by_table = {path.rsplit("/", 2)[1]: path for path in tables}
    others = sorted(set(by_table) - {last})
    for table in others:
        store.write_parquet(by_table[table], tables[by_table[table]])
    noted = {WITH: json.dumps(others).encode()} if others else None
    store.write_parquet(by_table[last], tables[by_table[last]].replace_schema_metadata(noted))


def write_rows(store: Store, name: str, rows: Sequence[Mapping[str, Any]], of: str = "") -> str:
    """Writes rows of one of SIDE_TABLES into a file; its path. Writing them again changes nothing.

    The file is named by its content, or by what the rows are `of`, a machine or a step: rows of the same then replace it whole.
    Raises ValueError for no rows, BadTable for rows that do not fit the declaration.
    """
    table = _declared(name, rows)
    path = side_path(store, name, of or json.dumps(table.to_pylist(), sort_keys=True))
    store.write_parquet(path, table)
    return path


def write_together(store: Store, tables: Mapping[str, Sequence[Mapping[str, Any]]], last: str, of: str) -> str:
    """Rows of several SIDE_TABLES that are `of` one thing; those of `last` after the others: its path. Empty others are left out.

    Raises as write_rows does; nothing is written then.
    """
    made = {side_path(store, name, of): _declared(name, rows) for name, rows in tables.items() if rows or name == last}
    _write_together(store, made, last)
    return side_path(store, last, of)


def _declared(name: str, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    if not rows:
        raise ValueError(f"{name}: no rows to write")
    undeclared = sorted({column for row in rows for column in row} - set(schema(name).names))
    if undeclared:
        raise BadTable(f"table {name}: column {undeclared[0]} is not declared in warehouse/columns.py; remove or declare it")
    try:
        return conform(name, pa.Table.from_pylist([dict(row) for row in rows], schema=schema(name)))
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise BadTable(f"table {name}: {str(error).splitlines()[0]}") from error


def side_path(store: Store, name: str, of: str) -> str:
    """File of the rows of one of SIDE_TABLES that are `of` something."""
    return store.path(name, f"{hashlib.sha256(of.encode()).hexdigest()[:ID_DIGITS]}.parquet")


def read_rows(store: Store, name: str) -> list[dict[str, Any]]:
    """Rows of one of SIDE_TABLES, the newest of each key. Files of an older version, which lack a column, are left out."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for path in side_paths(store, name):
        table = store.parquet(path).read()
        if set(schema(name).names) <= set(table.column_names):
            found |= {tuple(row[column] for column in TABLES[name].key): row for row in table.to_pylist()}
    return list(found.values())


def rows_of(store: Store, name: str, of: str) -> list[dict[str, Any]] | None:
    """Rows of one of SIDE_TABLES that were written as `of` something; None where they were not, or have lost a file since."""
    if not has_rows(store, name, of):
        return None
    rows: list[dict[str, Any]] = store.parquet(side_path(store, name, of)).read().to_pylist()
    return rows


def side_paths(store: Store, name: str) -> list[str]:
    """Files of one of SIDE_TABLES, oldest first."""
    return oldest_first(store, [store.path(name, f"{stem}.parquet") for stem in _stems(store, store.path(name))])


def oldest_first(store: Store, paths: list[str]) -> list[str]:
    """`paths` by the time they were written; those of one time, and where the store tells no times, as they are."""
    try:
        return sorted(paths, key=store.fs.modified)
    except NotImplementedError:
        return paths


def _stems(store: Store, path: str) -> list[str]:
    """Names without `.parquet` of the finished files of a folder; none if it does not exist."""
    if not store.fs.isdir(path):
        return []
    names = (entry.rsplit("/", 1)[-1] for entry in store.fs.ls(path, detail=False))
    return sorted(name.removesuffix(".parquet") for name in names if name.endswith(".parquet"))
