"""The loader: what is in the database, that it is the same every time, that it swaps in whole, and that bad files are named."""

import csv
import json
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import fsspec
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refusing import full, raising, refuses
from small_store import result_tables, row, write_tape

from tokentape.warehouse import results, tape
from tokentape.warehouse.at_rest import hash_of, metric_defs
from tokentape.warehouse.atomic_files import aside_of
from tokentape.warehouse.check import check
from tokentape.warehouse.load import ALL_CLAIMS, CLAIMS, KELLE_QUALITY, database_path, load
from tokentape.warehouse.results import (
    batch_path,
    has_rows,
    read_rows,
    rows_of,
    run_ids,
    write_replays,
    write_rows,
    write_together,
)
from tokentape.warehouse.sql import connect, query
from tokentape.warehouse.tables import RESULT_TABLES, VIEWS, WAREHOUSE_TABLES, BadTable, schema
from tokentape.warehouse.tape import Store

N_CLAIMS = sum(1 for path in ALL_CLAIMS for _ in csv.DictReader(path.open(encoding="utf-8")))
N_METRICS = metric_defs().height
WRITTEN = ("runs", "metrics", "steps", "request_metrics", "curves")  # by a replay
SHARED_CLAIMS = Path(__file__).resolve().parents[3] / "shared" / "papers" / "claims.csv"
QUALITY = {"model_id": "tiny", "policy": "none", "parameters": "{}", "dataset": "math", "seed": 0, "n_items": 10, "n_tokens": 100}
QUALITY |= {"perplexity": 3.5, "accuracy": 0.9} | dict.fromkeys(("bits_per_byte", "acceptance", "kl"))
ORDERING = row("orderings", study="slicemoe", model_id="tiny", dataset="code", assertion="a / b", margin="<= 1", holds=True)


def contents(database: Path) -> dict[str, pl.DataFrame]:
    with closing(connect(database)) as connection:
        return {name: connection.sql(f"from {name}").pl() for name in WAREHOUSE_TABLES}


def test_empty_store_has_all_tables_and_all_claims(store: Store) -> None:
    Path(store.root).mkdir()
    report = load(store, database_path(store))
    assert report.rows == dict.fromkeys(WAREHOUSE_TABLES, 0) | {"metric_defs": N_METRICS, "claims": N_CLAIMS}
    assert str(report) == f"{N_METRICS} metric_defs, {N_CLAIMS} claims"
    claims = query(report.database, "from claims")
    stated = [row for path in ALL_CLAIMS for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines())]
    expected = [{**row, "value": float(row["value"]) if row["value"] else None} for row in stated]
    assert claims.to_dicts() == expected


@pytest.mark.skipif(not SHARED_CLAIMS.exists(), reason="the papers' numbers are not beside this checkout")
def test_claims_are_the_papers() -> None:
    """Every row and word of them; a role may differ where the model reads the number or cannot miss it."""
    ours, theirs = (list(csv.DictReader(path.read_text(encoding="utf-8").splitlines())) for path in (CLAIMS, SHARED_CLAIMS))
    assert [row | {"role": ""} for row in ours] == [row | {"role": ""} for row in theirs]
    moved = {row["role"] for row, paper in zip(ours, theirs, strict=True) if row["role"] != paper["role"]}
    assert moved == {"derived", "input"}


@pytest.mark.skipif(not SHARED_CLAIMS.exists(), reason="the papers' numbers are not beside this checkout")
def test_kelles_quality_is_the_papers() -> None:
    """Every value of its Tables 2 to 6, in the order printed there."""
    columns = {2: "value", 3: "accuracy_pct", 4: "accuracy_pct", 5: "value", 6: "value"}
    printed = []
    for table, column in columns.items():
        (path,) = SHARED_CLAIMS.parent.glob(f"kelle_table{table}_*.csv")
        rows = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
        printed += [(f"Table {table}", row[column]) for row in rows if row[column]]
    ours = csv.DictReader(KELLE_QUALITY.read_text(encoding="utf-8").splitlines())
    assert [(row["location"], row["value"]) for row in ours] == printed


def test_summaries(small: Store) -> None:
    database = load(small, database_path(small)).database
    popularity = query(database, "select phase, expert, n_selected from popularity order by all")
    counts = {"decode": (1, 1, 1, 1), "prefill": (1, 3, 1, 1)}
    assert popularity.rows() == [(phase, expert, n) for phase, of in counts.items() for expert, n in enumerate(of)]
    locality = query(database, "select phase, overlap_frac, chance_frac from locality order by phase")
    assert locality.rows() == [("decode", 0.5, 0.5), ("prefill", 0.5, 0.5)]
    cosine = query(database, "select cosine from similarity").item()
    assert cosine == pytest.approx(6 / (4 * 12) ** 0.5)


def test_the_catalogue_lists_the_tape(small: Store) -> None:
    row = query(load(small, database_path(small)).database, "from traces").to_dicts()[0]
    assert (row["trace_id"], row["n_requests"], row["n_tokens"], row["n_moe_layers"], row["top_k"]) == ("hand-made", 1, 5, 1, 2)
    assert row["tables"] == "requests,tokens,passes,routing"
    assert json.loads(row["flags"]) == {}


def test_columns_are_typed_and_described(small: Store) -> None:
    database = load(small, database_path(small)).database
    columns = query(database, "select table_name, column_name, data_type, comment from duckdb_columns() where not internal")
    tables = columns.filter(pl.col("table_name").is_in([*WAREHOUSE_TABLES, *VIEWS]))
    assert tables["comment"].null_count() == 0
    types = {(t, c): kind for t, c, kind in tables.select("table_name", "column_name", "data_type").iter_rows()}
    assert types["steps", "pass_id"] == "UINTEGER"
    assert types["popularity", "layer"] == "USMALLINT"
    assert types["replays", "is_bound"] == "BOOLEAN"
    with connect(database) as connection:
        for name in (*WAREHOUSE_TABLES, *VIEWS):
            assert connection.sql(f"from {name}").pl().columns == schema(name).names


def test_dropped_and_loaded_again_is_equal(small: Store) -> None:
    write_tape(small, "second")
    write_rows(small, "quality", [QUALITY])
    database = database_path(small)
    load(small, database)
    first = contents(database)
    database.unlink()
    load(small, database)
    second = contents(database)
    for name in WAREHOUSE_TABLES:
        assert first[name].equals(second[name]), name
    assert first["runs"].rows(named=True) == sorted(first["runs"].rows(named=True), key=lambda r: (r["view_name"], r["run_id"]))
    assert len(first["runs"]) == 7
    assert len(first["curves"]) == 36


def test_a_reader_keeps_the_old_database(small: Store) -> None:
    database = database_path(small)
    load(small, database)
    with closing(duckdb.connect(str(database), read_only=True)) as reader:
        before = reader.execute("select count(*) from replays").fetchone()
        write_replays(small, result_tables("r9", "fifo", 2, 0.3, 1.0, 1.0))
        load(small, database)
        assert reader.execute("select count(*) from replays").fetchone() == before == (6,)
    assert query(database, "select count(*) as n from replays").item() == 7
    assert sorted(p.name for p in database.parent.iterdir()) == sorted(["README.md", *WRITTEN, "traces", "warehouse.duckdb"])


def test_damaged_results_keep_the_old_database_and_are_named(small: Store) -> None:
    database, path = database_path(small), Path(batch_path(small, "metrics", "replays-r0"))
    load(small, database)
    before, whole = database.read_bytes(), path.read_bytes()
    for damaged in (b"PAR1 cut", whole[:60] + bytes([whole[60] ^ 1]) + whole[61:]):
        path.write_bytes(damaged)
        said = refuses(r"metrics/replays-r0\.parquet: changed since it was written; ", load, small, database, error=BadTable)
        assert "`tokentape check --repair` drops it" in said
        assert database.read_bytes() == before
        assert not list(database.parent.glob("*.part*"))


def test_a_killed_load_is_swept_by_the_next(small: Store, tmp_path: Path, dead_aside: Callable[[Path], Path]) -> None:
    database = database_path(small)
    running, dead = Path(aside_of(str(database))), dead_aside(database)
    for path in (dead, Path(f"{dead}.wal"), running):
        path.touch()
    (link := tmp_path / "link.duckdb").symlink_to(database)
    assert load(small, link).database.is_symlink()  # it stays, and the file that it names is built
    assert database.is_file()
    assert not dead.exists()
    assert not Path(f"{dead}.wal").exists()
    assert running.exists()


def test_a_read_only_folder_is_named(small: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duckdb, "connect", raising(duckdb.IOException('IO Error: Cannot open file "x": Permission denied')))
    with pytest.raises(PermissionError, match=r"folder .*/store cannot be written; give --database in one that can"):
        load(small, database_path(small))


def test_a_disk_that_is_full_when_the_database_is_put_in_place_is_named(small: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", full)
    database = database_path(small)
    refuses(f"no space left while building {database}; free some, or give --database", load, small, database, error=OSError)
    assert not database.exists()


def test_a_file_that_may_not_grow_to_its_end_is_no_warehouse_without_rows(small: Store) -> None:
    """DuckDB puts the rows into the database last, as it is closed, and is silent where that fails."""
    resource = pytest.importorskip("resource")  # not on Windows
    load(small, database := database_path(small))
    before, limits = database.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) - 1, limits[1]))
    try:
        refuses("building .* failed: .* File too large; the old one, if any, is untouched", load, small, database)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert database.read_bytes() == before


def test_a_file_of_somebody_elses_is_not_built_over(small: Store, tmp_path: Path) -> None:
    notes, theirs, views, ours = (tmp_path / name for name in ("notes.csv", "theirs.duckdb", "views.duckdb", "ours.duckdb"))
    notes.write_text("a,b\n1,2\n")
    for path, what in ((theirs, "table runs"), (views, "view experiments")):
        with duckdb.connect(str(path)) as connection:
            connection.execute(f"create {what} as select 1 as x")
    for path in (notes, theirs, views):
        before = path.read_bytes()
        for of in (load, lambda store, database: list(check(store, database))):
            refuses("is no warehouse of tokentape's, and stays as it is; give --database another name", of, small, path)
        assert path.read_bytes() == before
    ours.write_bytes(b"damaged from its first byte on")
    assert load(small, ours).rows["runs"]


def test_foreign_and_older_results_are_named(small: Store) -> None:
    path = batch_path(small, "metrics", "replays-r0")
    good = pq.read_table(path)
    small.write_parquet(path, pa.table({"a": [1]}))
    with pytest.raises(BadTable, match=r"r0\.parquet: not a metrics table of schema 2: column run_id is missing"):
        load(small, database_path(small))
    small.write_parquet(path, good.set_column(2, "value", good["value"].cast(pa.float32())))
    refuses(r"r0\.parquet: column value is float, schema 2 says double", load, small, database_path(small), error=BadTable)


def test_a_damaged_tape_is_named_and_does_not_hide_the_others(small: Store) -> None:
    for trace_id in ("cut", "gone", "mad"):
        write_tape(small, trace_id)
    cut, gone = (Path(small.trace_path(name, "routing", "part-00000.parquet")) for name in ("cut", "gone"))
    cut.write_bytes(cut.read_bytes()[:200])
    gone.unlink()
    Path(small.trace_path("mad", "manifest.json")).write_text("{")
    report = load(small, database_path(small))
    assert {name: reason.splitlines() for name, reason in report.damaged_tapes.items()} == {
        name: [report.damaged_tapes[name]] for name in ("mad", "cut", "gone")
    }
    for part in ("cut/routing/part-00000.parquet: changed since", "gone/routing/part-00000.parquet is missing", "not a manifest"):
        assert part in str(report)
    assert query(report.database, "select trace_id from traces")["trace_id"].to_list() == ["hand-made"]
    assert report.rows["popularity"] > 0


def test_unfinished_tapes_incomplete_results_and_results_without_a_tape_are_left_out(small: Store) -> None:
    write_tape(small, "second")
    small.fs.rm(small.trace_path("second", "manifest.json"))
    small.fs.rm(batch_path(small, "runs", "replays-r5"))
    write_replays(small, result_tables("r9", "lru", 2, 0.3, 1.0, 1.0, trace_id="gone"))
    assert run_ids(small) == ["r0", "r1", "r2", "r3", "r4", "r9"]
    report = load(small, database_path(small))
    assert (report.unfinished_tapes, report.n_incomplete, report.n_without_tape) == (("second",), 1, 1)
    assert "left out: 1 unfinished tapes (second)" in str(report)
    for name in WRITTEN:
        found = query(report.database, f"select distinct run_id from {name} order by 1")
        assert found["run_id"].to_list() == ["r0", "r1", "r2", "r3", "r4"], name


@pytest.mark.parametrize("table", WRITTEN[1:])
def test_a_result_that_lost_a_file_is_named_and_left_out(small: Store, table: str) -> None:
    small.fs.rm(batch_path(small, table, "replays-r2"))
    assert run_ids(small) == ["r0", "r1", "r3", "r4", "r5"]
    report = load(small, database_path(small))
    assert report.lost_files == (batch_path(small, table, "replays-r2"),)
    assert f"left out: what lost a file: {report.lost_files[0]} is gone (run its study again)" in str(report)
    assert (report.n_incomplete, report.n_without_tape, report.n_superseded) == (0, 0, 0)
    for name in WRITTEN:
        assert "r2" not in query(report.database, f"from {name}")["run_id"].to_list()


def test_rows_written_together_are_there_only_together(store: Store) -> None:
    tables = {"orderings": [ORDERING], "quality": [QUALITY], "fidelity": []}
    path = write_together(store, tables, "quality", "this")
    assert has_rows(store, "quality", "this")
    assert load(store, database_path(store)).lost_files == ()
    values = batch_path(store, "metrics", Path(path).stem)
    store.fs.rm(values)
    assert not has_rows(store, "quality", "this")
    assert rows_of(store, "quality", "this") is None
    report = load(store, database_path(store))
    assert report.lost_files == (values,)
    assert report.rows["runs"] == 0


def test_remote_store(small: Store, tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(small.root, "/bucket", recursive=True)
    try:
        remote = Store("memory://bucket")
        assert database_path(remote) == Path("warehouse.duckdb")
        here, there = tmp_path / "here.duckdb", tmp_path / "there.duckdb"
        load(small, here)
        load(remote, there)
        far = contents(there)
        for name, frame in contents(here).items():
            assert frame.equals(far[name]), name
    finally:
        memory.rm("/bucket", recursive=True)


def test_an_older_files_missing_column_is_null_and_a_newer_result_replaces_it(small: Store) -> None:
    measured = Path(write_rows(small, "quality", [QUALITY]))
    for path, column in ((measured, "origin"), (Path(batch_path(small, "steps", "replays-r1")), "n_decodes")):
        small.write_parquet(str(path), pq.read_table(path).drop_columns(column))
    report = load(small, database_path(small))
    assert report.n_without_tape == 0
    assert query(report.database, "select origin from runs where view_name = 'quality'").rows() == [(None,)]
    assert query(report.database, "select count(*) from steps where run_id = 'r1'").item() == 2
    before = load(small, database_path(small)).rows["runs"]
    write_replays(small, result_tables("r9", "lru", 1, 0.0, 4.0, 4.0))
    for name in RESULT_TABLES:
        newer = Path(batch_path(small, name, "replays-r9"))
        if newer.exists():
            os.utime(newer, (newer.stat().st_mtime + 10,) * 2)
    report = load(small, database_path(small))
    assert (report.rows["runs"], report.n_superseded) == (before, 1)
    for name in WRITTEN:
        found = query(report.database, f"select distinct run_id from {name}")["run_id"].to_list()
        assert "r0" not in found
        assert "r9" in found


def test_replay_ids_are_hashes_and_equal_results_equal_bytes(store: Store) -> None:
    key = hash_of({"trace": "t", "seed": 0})
    assert key == hash_of({"seed": 0, "trace": "t"})
    assert key != hash_of({"seed": 1, "trace": "t"})
    assert len(key) == 20
    refuses("plain numbers", hash_of, {"trace": object()})
    tables = result_tables("r0", "lru", 1, 0.1, 1.0, 1.0)
    write_replays(store, tables)
    before = Path(batch_path(store, "steps", "replays-r0")).read_bytes()
    write_replays(store, tables)
    assert Path(batch_path(store, "steps", "replays-r0")).read_bytes() == before


def test_write_result_rejects_what_does_not_fit(store: Store) -> None:
    tables = result_tables("r0", "lru", 1, 0.1, 1.0, 1.0)
    wrong = tables | {"metrics": tables["metrics"].drop_columns("value")}
    refuses("column value is missing", write_replays, store, wrong, error=BadTable)
    assert not Path(store.root).exists()


def test_rows_of_something_are_read_back_and_their_marking_table_is_written_last(store, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(store, "quality", [QUALITY], of="this")
    assert rows_of(store, "quality", "this") == read_rows(store, "quality")
    assert rows_of(store, "quality", "that") is None
    written, settle = list[str](), tape.settle
    monkeypatch.setattr(tape, "settle", lambda *told: written.append(told[1].parent.name) or settle(*told))
    write_together(store, {"quality": [QUALITY], "orderings": [ORDERING]}, "quality", "this")
    assert written == ["metrics", "runs"]
    with pytest.raises(BadTable, match="column surprise is not declared"):
        write_together(store, {"quality": [QUALITY], "orderings": [ORDERING | {"surprise": 1}]}, "quality", "this")
    assert written == ["metrics", "runs"]


@pytest.mark.parametrize(("place", "n_done"), [(results, 0), (results, 1), (tape, 0), (tape, 1)])
def test_a_batch_that_is_replaced_is_the_old_one_or_none_where_the_disk_is_full(
    store: Store, monkeypatch: pytest.MonkeyPatch, place: Any, n_done: int
) -> None:
    write_rows(store, "quality", [QUALITY], of="this")
    before, name = read_rows(store, "quality"), "packed" if place is results else "settle"
    turns = iter([getattr(place, name)] * n_done)
    monkeypatch.setattr(place, name, lambda *told: next(turns, full)(*told))
    refuses("no space left while writing", write_rows, store, "quality", [QUALITY | {"dataset": "recall"}], "this", error=OSError)
    assert read_rows(store, "quality") == (before if place is results else [])


def test_quality(store: Store) -> None:
    path = write_rows(store, "quality", [QUALITY])
    assert write_rows(store, "quality", [QUALITY]) == path
    write_rows(store, "quality", [QUALITY | {"n_items": 1000, "accuracy": 0.85}, QUALITY | {"dataset": "recall"}])
    database = load(store, database_path(store)).database
    rows = query(database, "select dataset, n_items, accuracy from quality order by dataset").rows()
    assert rows == [("math", 1000, 0.85), ("recall", 10, 0.9)]
    told = [QUALITY | {"dtype": of, "n_items": 3} for of in ("bfloat16", "float32")]  # of an older version math says none
    write_rows(store, "quality", told)
    rows = query(load(store, database).database, "select dataset, dtype from quality order by all").rows()
    assert rows == [("math", "bfloat16"), ("math", "float32"), ("recall", None)]
    refuses("column surprise is not declared", write_rows, store, "quality", [QUALITY | {"surprise": 1}], error=BadTable)
    with pytest.raises(BadTable, match="column n_items has 1 nulls"):
        write_rows(store, "quality", [{k: v for k, v in QUALITY.items() if k != "n_items"}])
    refuses("table quality", write_rows, store, "quality", [QUALITY | {"accuracy": "high"}], error=BadTable)
    refuses("no rows", write_rows, store, "quality", [])


def kept(store: Store, paths: list[Path], newest: int, columns: str) -> tuple[object, ...]:
    """What is loaded of measurements of one thing, of which one is the newest."""
    for i, path in enumerate(paths):
        os.utime(path, (1000 + (i == newest),) * 2)
    return query(load(store, database_path(store)).database, f"select {columns} from quality").row(0)


def test_the_measurement_of_most_items_is_kept_then_of_most_tokens_then_the_newest(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = [{"n_items": 10, "n_tokens": 300}, {"n_items": 11, "n_tokens": 90}, {"n_items": 11, "n_tokens": 100}]
    paths = [Path(write_rows(store, "quality", [QUALITY | sizes])) for sizes in of]
    assert [kept(store, paths, newest, "n_items, n_tokens") for newest in range(3)] == [(11, 100)] * 3
    paths = [Path(write_rows(store, "quality", [QUALITY | {"seed": 1, "accuracy": of}])) for of in (0.5, 0.6, 0.7)]
    assert [kept(store, paths, newest, "max(accuracy) filter (seed = 1)") for newest in range(3)] == [(0.5,), (0.6,), (0.7,)]
    monkeypatch.setattr("tokentape.warehouse.results._TIMES", ())  # a store that tells none
    last = max(range(3), key=lambda i: paths[i].name)
    assert kept(store, paths, 0, "max(accuracy) filter (seed = 1)") == ((0.5, 0.6, 0.7)[last],)
