"""Tapes by name, and a writer from its first shard to its manifest: what is there, what is said of what is not."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from refusing import refuses
from small_store import write_tape

from tokentape.warehouse.tables import BadTable
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


def test_an_empty_store_says_what_to_run(store: Store) -> None:
    assert store.trace_ids() == store.unfinished_ids() == []
    refuses("the store is empty: run `tokentape capture` or `tokentape import`", store.resolve, "any", error=BadTape)


def test_a_store_is_the_same_from_everywhere(store: Store) -> None:
    assert store.absolute == f"file://{store.root}"
    assert Store(store.absolute).root == store.root
    assert not store.exists
    assert not Store(store.absolute + "/").path("a", "b").startswith(f"{store.root}//")


def test_a_tape_that_cannot_be_opened_is_told_and_hides_no_other(small: Store, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_a_result_file_that_is_no_parquet_is_named(store: Store) -> None:
    path = store.path("results", "metrics", "a.parquet")
    for data in (b"PAR1 cut", b"", b"PAR1" * 40):
        store.write_bytes(path, data)
        refuses(r"metrics/a\.parquet: changed since it was written", store.parquet, path, error=BadTable)


def test_the_size_of_a_tape_is_that_of_its_files_wherever_it_lies(small: Store) -> None:
    folder = Path(small.trace_path("hand-made"))
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    remote = Store("memory://sizes")
    for name, data in files.items():
        remote.fs.pipe_file(remote.trace_path("hand-made", name), data)
    assert small.size_bytes("hand-made") == remote.size_bytes("hand-made") == sum(map(len, files.values())) > 0
