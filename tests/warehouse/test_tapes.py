"""Tapes by name, and a writer from its first shard to its manifest: what is there, what is said of what is not, and what Polars,
DuckDB and `datasets` read of them without tokentape.
"""

from contextlib import closing
from pathlib import Path

import duckdb
import polars as pl
import pyarrow.parquet as pq
import pytest
from refusing import refuses
from small_store import IDS, TRACE, write_tape

from tokentape.warehouse.load import database_path, load
from tokentape.warehouse.schema.table import COLUMNS
from tokentape.warehouse.sql import BadQuery, query
from tokentape.warehouse.tables import TABLES, BadTable
from tokentape.warehouse.tape import BadTape, Store


def test_a_tape_is_found_by_its_name_or_the_one_start_of_it(small: Store) -> None:
    write_tape(small, "second")
    write_tape(small, "second-best")
    Path(small.trace_path("cut")).mkdir()
    assert small.resolve("hand") == "hand-made"
    assert small.resolve("second") == "second"
    assert small.open("second-").trace_id == "second-best"
    for prefix, said in {
        "sec": r"'sec' fits several tapes: second, second-best; give more of the name",
        "cut": r"tape cut has no manifest\.json: it is unfinished",
        "none": r"no tape 'none' in .*store; there are hand-made, second, second-best$",
    }.items():
        refuses(said, small.resolve, prefix, error=BadTape)
    refuses(r"no tape 'none' in .*; there are hand-made", small.remove, "none", error=BadTape)
    small.remove("cut")
    assert (small.trace_ids(), small.unfinished_ids()) == (["hand-made", "second", "second-best"], [])


def test_a_store_is_the_same_from_everywhere_and_an_empty_one_says_what_to_run(store: Store) -> None:
    assert store.absolute == f"file://{store.root}"
    assert Store(store.absolute).root == store.root
    assert not store.exists
    assert not Store(store.absolute + "/").path("a", "b").startswith(f"{store.root}//")
    assert store.trace_ids() == store.unfinished_ids() == []
    refuses("the store is empty: run `tokentape capture` or `tokentape import`", store.resolve, "any", error=BadTape)


def test_tapes_that_cannot_be_opened_are_told(small: Store, capsys: pytest.CaptureFixture[str]) -> None:
    write_tape(small, "second")
    Path(small.trace_path("second", "manifest.json")).write_text("{")
    assert [tape.trace_id for tape in small.readable()] == ["hand-made"]
    assert capsys.readouterr().err.startswith(f"left out: {small.trace_path('second', 'manifest.json')}: not a manifest")


def test_a_writer_marks_a_shard_by_its_last_part_and_counts_its_rows(small: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = {name: pq.ParquetFile(small.open("hand").files(name)[0]).read() for name in ("requests", "tokens", "routing")}
    writer, written = small.writer("new"), list[str]()
    write = small.write_shard
    monkeypatch.setattr(small, "write_shard", lambda path, rows: (written.append(path.split("/")[-2]), write(path, rows)))
    assert (writer.is_started, writer.is_finished, writer.has_shard(0)) == (False, False, False)
    writer.write_shard(0, tables)
    writer.write_shard(1, tables)
    assert written == ["tokens", "routing", "requests"] * 2
    assert (writer.is_started, writer.is_finished, writer.has_shard(1), writer.has_shard(2)) == (True, False, True, False)
    assert writer.count_rows(tuple(tables), 2) == {"requests": 2, "tokens": 10, "routing": 10}
    assert small.size_bytes("new") == sum(path.stat().st_size for path in Path(small.trace_path("new")).rglob("*.parquet"))
    with pytest.raises(BadTable, match="column token_id is missing"):
        writer.write_shard(2, tables | {"tokens": tables["tokens"].drop_columns("token_id")})
    assert not writer.has_shard(2)
    writer.discard()
    assert not writer.is_started
    small.writer("hand-made").discard()
    assert small.writer("hand-made").is_finished


def test_the_size_of_a_tape_is_that_of_its_files_wherever_it_lies(small: Store) -> None:
    folder = Path(small.trace_path("hand-made"))
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    remote = Store("memory://sizes")
    for name, data in files.items():
        remote.fs.pipe_file(remote.trace_path("hand-made", name), data)
    assert small.size_bytes("hand-made") == remote.size_bytes("hand-made") == sum(map(len, files.values())) > 0


TWO = (TRACE, "second")


@pytest.fixture
def two(small: Store) -> Store:
    write_tape(small, trace_id="second")
    return small


def test_every_column_is_there_and_says_what_it_holds(two: Store) -> None:
    for table in two.open(TRACE).manifest.tables:
        fields = pq.read_schema(two.trace_path(TRACE, table, "part-00000.parquet"))
        assert fields.names == [*TABLES[table].columns, *TABLES[table].optional]
        for field in fields:
            said = {key.decode(): value.decode() for key, value in field.metadata.items()}
            assert (said["meaning"], said["unit"]) == (COLUMNS[field.name].meaning, COLUMNS[field.name].unit)
    tape = two.open(TRACE)
    assert tape.manifest.recorded["routing"] == ()
    assert tape.read("routing").columns == [*TABLES["routing"].columns], "what was never recorded is not read"


def test_polars_and_duckdb_read_all_tapes_with_their_ids(two: Store) -> None:
    files = f"{two.root}/traces/*/routing/*.parquet"
    rows = pl.scan_parquet(files, hive_partitioning=True).collect()
    assert rows.group_by("trace_id").len().sort("trace_id").rows() == sorted((name, len(IDS)) for name in TWO)
    with closing(duckdb.connect()) as connection:
        asked = f"select trace_id, count(*) from read_parquet('{files}', hive_partitioning = true) group by all order by all"
        assert connection.sql(asked).fetchall() == sorted((name, len(IDS)) for name in TWO)


def test_datasets_loads_the_store_by_its_card(two: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    for config, n in ((None, 2 * len(IDS)), ("requests", 2)):  # routing is the default
        found = datasets.load_dataset(two.root, config, split="train", cache_dir=str(tmp_path / "cache"))
        assert found.num_rows == n
    assert found.features["prefix_blocks"].feature.dtype == "uint32"


def test_sql_sees_tapes_as_views_and_no_other_file(two: Store, tmp_path: Path) -> None:
    load(two, database_path(two))
    asked = "select trace_id, expert_ids[1] as first, dataset from tape.routing join traces using (trace_id) where position = 1"
    assert query(database_path(two), asked, two).sort("trace_id").rows() == [(name, 1, "hand") for name in sorted(TWO)]
    refuses("holds scores", query, database_path(two), "from tape.scores", two, error=BadQuery)
    refuses("lists what there is beside .*tape.routing", query, database_path(two), "from tape.rooting", two, error=BadQuery)
    file = two.trace_path("second", "routing", "part-00000.parquet")
    with pytest.raises(BadQuery, match="disabled by configuration"):
        query(database_path(two), f"from tape.passes, read_parquet('{file}')", two)
    Path(file).write_bytes(Path(file).read_bytes()[:-1])
    refuses("changed since it was written", query, database_path(two), "from tape.routing", two, error=BadTape)
    with pytest.raises(BadQuery, match="tokentape pull --from memory://far"):
        query(database_path(two), "from tape.routing", Store("memory://far"))
