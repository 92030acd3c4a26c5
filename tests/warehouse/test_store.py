"""Writing to a store: several writers of one file, an interrupted one, a full disk; and a store that cannot be reached."""

from __future__ import annotations

import errno
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.registry import known_implementations

from warehouse.asides import aside_of
from warehouse.tape import Store

ROWS = pa.table({"x": range(1000)})
N_WRITERS = 8


def names(store: Store) -> list[str]:
    return sorted(path.name for path in Path(store.path("results")).iterdir())


def test_writers_of_equal_results_all_succeed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    write_table, together = pq.write_table, Barrier(N_WRITERS, timeout=20)

    def write(rows: pa.Table, handle: Any, **options: Any) -> None:
        together.wait()  # every aside is open before the first is renamed
        write_table(rows, handle, **options)

    monkeypatch.setattr(pq, "write_table", write)
    path = store.path("results", "a.parquet")
    with ThreadPoolExecutor(N_WRITERS) as pool:
        for done in [pool.submit(store.write_parquet, path, ROWS) for _ in range(N_WRITERS)]:
            done.result()
    assert names(store) == ["a.parquet"]
    assert pq.read_table(path).equals(ROWS)


def test_an_interrupted_write_leaves_the_old_file_alone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    path = store.path("results", "a.parquet")
    store.write_parquet(path, ROWS)

    def interrupted(rows: pa.Table, handle: Any, **options: Any) -> None:
        handle.write(b"PAR1")
        handle.flush()
        (aside,) = set(names(store)) - {"a.parquet"}
        assert aside.startswith("a.parquet.")
        assert aside.endswith(".part")
        raise KeyboardInterrupt

    monkeypatch.setattr(pq, "write_table", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.write_parquet(path, ROWS)
    assert names(store) == ["a.parquet"]
    assert pq.read_table(path).equals(ROWS)


def test_a_full_disk_is_said_and_leaves_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store.fs, "mv", full)
    with pytest.raises(OSError, match=r"no space left while writing .*a\.bin; free some, or give --store elsewhere"):
        store.write_bytes(store.path("results", "a.bin"), b"a")
    assert names(store) == []


def test_an_error_of_the_file_system_names_the_file(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(*args: object, **options: object) -> None:
        raise OSError(errno.EFBIG, "File too large")

    monkeypatch.setattr(pq, "write_table", too_large)
    with pytest.raises(OSError, match=r"File too large while writing .*a\.parquet; give --store elsewhere"):
        store.write_parquet(store.path("results", "a.parquet"), ROWS)
    assert names(store) == []


@pytest.mark.parametrize("step", ["makedirs", "open"])
@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_read_only_store_is_named_with_the_remedy(
    store: Store, monkeypatch: pytest.MonkeyPatch, step: str, number: int
) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr(store.fs, step, refuse)
    with pytest.raises(OSError, match=r"store .*/store cannot be written \(no\); give --store"):
        store.write_bytes(store.path("results", "a.bin"), b"a")


def test_what_a_killed_process_was_writing_is_removed_and_what_a_running_one_writes_stays(store: Store) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    folder = Path(store.trace_path("t", "routing"))
    folder.mkdir(parents=True)
    whole, mine, dead = folder / "part-00000.parquet", Path(aside_of(str(folder / "a"))), folder / f"a.0f.{gone.pid}.part"
    for path in (whole, mine, dead):
        path.touch()
    store.writer("t").remove_stale()
    assert sorted(folder.iterdir()) == sorted((whole, mine))


def test_a_store_whose_driver_is_missing_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {"class": "no_such_driver.FileSystem", "err": "Install no_such_driver to access Nowhere"}
    monkeypatch.setitem(known_implementations, "nowhere", missing)
    with pytest.raises(ValueError, match=r"^store nowhere://bucket needs a Python package that is not installed: Install no_"):
        Store("nowhere://bucket")
