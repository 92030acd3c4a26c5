"""Files that changed after they were written are noticed before anything is made of them."""

import os
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refusing import refuses
from small_store import write_tape

from tokentape.warehouse import sums
from tokentape.warehouse.results import batch_path, read_rows, rows_of, write_rows
from tokentape.warehouse.tables import BadTable
from tokentape.warehouse.tape import BadTape, Store

STEP = {
    "step_id": "a", "title": "a", "hardware": "phone", "place": 0, "operation": "x", "resource": "link", "op_layer": 0,
    "start_s": 0.0, "seconds": 1.0, "bytes": 1.0, "ops": 1.0,
}  # fmt: skip


def flip(path: Path, at: int, bit: int = 0) -> None:
    """One bit of a file, its times as they were: as a disk rots."""
    data, found = bytearray(path.read_bytes()), path.stat()
    data[at] ^= 1 << bit
    with path.open("r+b") as handle:  # the same inode
        handle.write(data)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


@pytest.mark.parametrize("table", ["requests", "tokens", "passes", "routing"])
def test_a_flipped_bit_anywhere_in_a_shard_is_refused(small: Store, table: str) -> None:
    path = Path(small.trace_path("hand-made", table, "part-00000.parquet"))
    whole = path.read_bytes()
    for at in (4, len(whole) // 3, len(whole) // 2, len(whole) - 200, len(whole) - 6, len(whole) - 1):
        flip(path, at, at % 8)
        with pytest.raises(BadTape, match=rf"hand-made/{table}/part-00000\.parquet: changed since it was written"):
            small.open("hand-made").files(table)
        path.write_bytes(whole)
    small.open("hand-made").read(table)


def test_what_the_shards_hold_decides_results(small: Store) -> None:
    other = [[1, 0], [1, 2], [3, 1], [1, 3], [0, 2]]
    at = lambda tables: tables["routing"].column_names.index("expert_ids")  # noqa: E731
    swap = lambda tables: tables.update(routing=tables["routing"].set_column(at(tables), "expert_ids", pa.array(other)))  # noqa: E731
    before = small.open("hand-made").content_sha256
    small.remove("hand-made")
    write_tape(small)
    assert small.open("hand-made").content_sha256 == before
    small.remove("hand-made")
    write_tape(small, change=swap)
    assert small.open("hand-made").content_sha256 != before


def test_a_shard_that_changed_within_the_process_is_noticed_and_is_hashed_once(
    small: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_read, read = [], sums._read
    monkeypatch.setattr(sums, "_read", lambda fs, path: (n_read.append(path), read(fs, path))[1])
    small.open("hand-made").read("routing")
    small.open("hand-made").read("routing")
    assert len(n_read) == len(set(n_read))
    path = Path(small.trace_path("hand-made", "routing", "part-00000.parquet"))
    flip(path, 30)
    refuses("changed since it was written", small.open("hand-made").read, "routing", error=BadTape)


def test_the_footer_is_compared_at_every_open(small: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "_stamp", lambda fs, path: (0,))  # rot leaves no trace in the times
    tape = small.open("hand-made")
    tape.read("routing")
    path = Path(small.trace_path("hand-made", "routing", "part-00000.parquet"))
    flip(path, -30 + path.stat().st_size)
    refuses("its footer changed since it was written", tape.read, "routing", error=BadTape)
    flip(path, -30 + path.stat().st_size)
    column = pq.read_metadata(path).row_group(0).column(0)
    flip(path, column.data_page_offset + column.total_compressed_size - 1)  # within a page: its own checksum tells
    refuses("not a readable Parquet file", tape.read, "routing", error=BadTape)


def test_a_remote_store_is_compared_too(small: Store) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(small.root, "/rot", recursive=True)
    try:
        remote = Store("memory://rot")
        remote.open("hand-made").read("routing")
        path = remote.trace_path("hand-made", "routing", "part-00000.parquet")
        data = bytearray(memory.cat_file(path))
        data[40] ^= 1
        memory.pipe_file(path, bytes(data))
        refuses("changed since it was written", remote.open("hand-made").read, "routing", error=BadTape)
    finally:
        memory.rm("/rot", recursive=True)


def test_a_flipped_bit_anywhere_in_a_result_is_refused(store: Store) -> None:
    runs = Path(write_rows(store, "operations", [STEP], of="a"))
    for path in (runs, Path(batch_path(store, "busy", runs.stem))):
        whole = path.read_bytes()
        for at in range(0, len(whole), 23):
            flip(path, at, at % 8)
            refuses("changed since it was written", read_rows, store, "operations", error=BadTable)
            path.write_bytes(whole)
    flip(runs, 40, 1)
    assert rows_of(store, "operations", "a") is None  # to be made again
