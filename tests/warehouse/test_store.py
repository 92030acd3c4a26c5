"""Writing to a store: several writers of one file, an interrupted one, a full disk; and a store that cannot be reached."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any, ClassVar

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec import register_implementation
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import known_implementations
from refusing import full, raising, refuses

from tokentape.warehouse import atomic_files, sums
from tokentape.warehouse.at_rest import filled
from tokentape.warehouse.atomic_files import aside_of
from tokentape.warehouse.load import database_path, load
from tokentape.warehouse.tables import conform, schema
from tokentape.warehouse.tape import Store

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


@pytest.mark.parametrize(("place", "name", "number", "says"), [
    (os, "fsync", errno.ENOSPC, r"no space left while writing .*a\.parquet; free some, or give"),  # it took bytes into memory
    (pq, "write_table", errno.EFBIG, r"File too large while writing .*a\.parquet; give"),
])  # fmt: skip
def test_an_error_of_the_disk_names_the_file_and_leaves_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch, place: object, name: str, number: int, says: str
) -> None:
    Path(store.path("results")).mkdir(parents=True)
    monkeypatch.setattr(place, name, raising(OSError(number, os.strerror(number))))
    refuses(f"{says} --store elsewhere", store.write_parquet, store.path("results", "a.parquet"), ROWS, error=OSError)
    assert names(store) == []


@pytest.mark.parametrize(("number", "said"), [
    (errno.ENOSPC, r"no space left while writing \S+/b; free some, or give --store elsewhere"),
    (errno.EACCES, r"store \S+ cannot be written \(no\); give --store a folder that can"),
])  # fmt: skip
def test_an_error_of_a_file_within_another_is_told_once(store: Store, number: int, said: str) -> None:
    said = rf"^\[Errno \d+\] {said}$"
    with pytest.raises(OSError, match=said), store.replacing(store.path("a")), store.replacing(store.path("b")):
        raise OSError(number, "no")


def test_a_folder_that_goes_while_a_file_is_written_names_the_file(store: Store) -> None:
    said = r"No such file or directory while writing \S+/a; give --store elsewhere$"
    with pytest.raises(OSError, match=said), store.replacing(store.path("a")):
        shutil.rmtree(store.root)


@pytest.mark.parametrize("step", ["mkdir", "open"])
@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_read_only_store_is_named_with_the_remedy(
    store: Store, monkeypatch: pytest.MonkeyPatch, step: str, number: int
) -> None:
    monkeypatch.setattr(Path if step == "mkdir" else store.fs, step, raising(OSError(number, "no")))
    with pytest.raises(OSError, match=r"store .*/store cannot be written \(no\); give --store"):
        store.write_bytes(store.path("results", "a.bin"), b"a")


def test_what_a_killed_process_was_writing_is_removed_and_what_a_running_one_writes_stays(
    store: Store, dead_aside: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(store.root)
    names = ("traces/trace_id=t/routing/part-0.parquet", "README.md", "results/metrics/a.parquet", "quality/b.parquet")
    whole = [root / name for name in names]
    mine, dead = [Path(aside_of(str(path))) for path in whole], [dead_aside(path) for path in whole]
    with monkeypatch.context() as patch:
        patch.setattr(atomic_files, "_here", lambda: "0123abcd")  # another machine, or a container with numbers of its own
        others = [dead_aside(path) for path in whole]
    for path in (*whole, *mine, *dead, *others):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    store.remove_stale()
    assert not any(path.exists() for path in dead)
    assert all(path.exists() for path in (*whole, *mine, *others))


@pytest.mark.parametrize("write", ["bytes", "parquet", "replace", "load"])
def test_bytes_reach_the_disk_before_the_name_and_then_the_folder(
    store: Store, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    path = Path(store.path("results", "x"))
    path.parent.mkdir(parents=True)
    done = list[tuple[str, int]]()
    rename = os.replace

    def replace(source: Path, target: Path) -> None:
        if Path(target) == path:
            done.append(("renamed", Path(source).stat().st_ino))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", lambda handle: done.append(("synced", os.fstat(handle).st_ino)))
    monkeypatch.setattr(os, "replace", replace)
    if write == "bytes":
        store.write_bytes(str(path), b"x")
    elif write == "parquet":
        store.write_parquet(str(path), ROWS)
    elif write == "replace":
        atomic_files.replace(path, b"x")
    else:
        load(store, path)
    file, folder = path.stat().st_ino, path.parent.stat().st_ino
    assert done == [("synced", file), ("renamed", file), ("synced", folder)]


def test_new_folders_are_synced_in_the_one_that_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = list[Path]()
    monkeypatch.setattr(atomic_files, "sync", synced.append)
    atomic_files.make_folder(tmp_path / "a" / "b")
    atomic_files.make_folder(tmp_path / "a" / "b")
    assert synced == [tmp_path, tmp_path / "a"]
    assert (tmp_path / "a" / "b").is_dir()


def folder_of(path: Path, text: str) -> Path:
    path.mkdir()
    (path / "page").write_text(text)
    (path / "MARK").touch()
    return path


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_folder_is_replaced_and_nothing_stays_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
) -> None:
    site = folder_of(tmp_path / "site", "old")
    if not can_exchange:
        monkeypatch.setattr(atomic_files, "_renamed", lambda *told: False)
    atomic_files.settle_folder(folder_of(Path(aside_of(str(site))), "new"), site)
    assert (site / "page").read_text() == "new"
    assert list(tmp_path.iterdir()) == [site]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere two names are not exchanged at once")
def test_the_names_of_two_folders_are_exchanged_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, fresh = folder_of(tmp_path / "site", "old"), folder_of(tmp_path / "fresh", "new")
    monkeypatch.delattr(Path, "rename")
    monkeypatch.setattr(Path, "exists", lambda path: False)  # another process put it there since
    atomic_files.settle_folder(fresh, site)
    assert (site / "page").read_text() == "new"


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL there")
def test_a_folder_killed_between_its_two_names_is_put_back_whole(tmp_path: Path) -> None:
    code = """if True:
        import os, signal, sys
        from pathlib import Path
        from tokentape.warehouse import atomic_files
        site, rename = Path("site"), Path.rename
        fresh = Path(atomic_files.aside_of("site"))
        fresh.mkdir()
        (fresh / "page").write_text("new")
        (fresh / "MARK").touch()
        atomic_files._renamed = lambda *told: False
        Path.rename = lambda self, to: rename(self, to) if self == site else os.kill(os.getpid(), signal.SIGKILL)
        atomic_files.settle_folder(fresh, site)
    """
    site = folder_of(tmp_path / "site", "old")
    killed = subprocess.run([sys.executable, "-c", code], cwd=tmp_path)
    assert killed.returncode == -signal.SIGKILL
    assert not site.exists()
    unfinished = next(tmp_path.iterdir()).with_name(aside_of("other"))
    folder_of(unfinished, "someone's")
    atomic_files.put_back(site, "MARK")
    assert (site / "page").read_text() == "new"
    assert sorted(tmp_path.iterdir()) == sorted((site, unfinished))


class Buckets(MemoryFileSystem):
    """An object store that, as some drivers do, makes a bucket when a folder is made in it."""

    protocol = "buckets"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return f"/{path.removeprefix('buckets://').strip('/')}".rstrip("/")


def test_a_bucket_that_is_not_there_is_named_and_not_made() -> None:
    register_implementation("buckets", Buckets, clobber=True)
    nowhere = Store("buckets://nobucket/tape")
    with pytest.raises(FileNotFoundError, match=r"there is no nobucket; make it first, or check .*: 'buckets://nobucket/tape'"):
        nowhere.write_bytes(nowhere.path("results", "a.bin"), b"a")
    assert not nowhere.fs.exists("nobucket")
    with pytest.raises(FileNotFoundError, match=r"no store there; give --store .*: 'buckets://nobucket/tape'"):
        load(nowhere, Path("warehouse.duckdb"))
    nowhere.fs.mkdir("nobucket")
    nowhere.write_bytes(nowhere.path("results", "a.bin"), b"a")
    assert nowhere.fs.cat(nowhere.path("results", "a.bin")) == b"a"


def test_stores_that_are_mistyped_or_files_are_refused_and_nothing_is_made(tmp_path: Path) -> None:
    typo = Store(str(tmp_path / "tpae"))
    refuses(r"no store there; give --store the folder .*tpae", load, typo, database_path(typo), error=FileNotFoundError)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "store").write_text("no folder")
    refuses("store: a file, where the store is a folder", Store, str(tmp_path / "store"))


def test_a_tape_that_is_removed_loses_its_manifest_first(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut off in between, it reads as unfinished and not as a tape without some of its files."""
    store.write_bytes(store.trace_path("t", "manifest.json"), b"{}")
    store.write_bytes(store.trace_path("t", "routing", "part-00000.parquet"), b"x")
    remove, removed = store.fs.rm, list[str]()

    def note(path: str, recursive: bool = False) -> None:
        removed.append(path)
        if recursive:  # another process records it again meanwhile
            store.write_bytes(store.trace_path("t", "manifest.json"), b"{}")
        remove(path, recursive=recursive)

    monkeypatch.setattr(store.fs, "rm", note)
    store.remove("t")
    assert removed[0] == store.trace_path("t", "manifest.json")
    assert (store.trace_ids(), Path(removed[1]).exists()) == (["t"], False)


def test_ctrl_c_while_a_file_is_replaced_leaves_the_old_one_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path := tmp_path / "mine.toml").write_text("old")
    monkeypatch.setattr(os, "replace", raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        atomic_files.replace(path, b"new")
    assert [file.read_text() for file in tmp_path.iterdir()] == ["old"]


def test_what_cannot_be_removed_or_read_is_named(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system names no path of a file that it cannot read on, and of one inside a folder its last part."""
    store.write_bytes(path := store.trace_path("t", "a", "x"), b"x")
    monkeypatch.setattr(sums, "footer_sha256", full)
    for read, name in ((partial(sums.sums_of, store.fs), "open"), (store.parquet, "cat_file")):
        monkeypatch.setattr(store.fs, name, full)
        refuses(rf"No space left on device: '{path}'", read, path, error=OSError)
    monkeypatch.setattr(shutil, "rmtree", full)
    refuses(rf"No space left on device: '{store.trace_path('t')}'", store.remove, "t", error=OSError)


def test_a_store_whose_driver_is_missing_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {"class": "no_such_driver.FileSystem", "err": "Install no_such_driver to access Nowhere"}
    monkeypatch.setitem(known_implementations, "nowhere", missing)
    refuses(r"^nowhere://bucket needs a Python package that is not installed: Install no_", Store, "nowhere://bucket")


def test_threads_of_arrow_hold_no_bytes_of_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that drops the last of them while the interpreter ends is ended in it, and the process aborts."""
    store = Store(str(tmp_path))
    store.write_parquet(path := store.path("rows.parquet"), ROWS)
    data = store.fs.cat_file(path)
    monkeypatch.setattr(store.fs, "cat_file", lambda _: data)
    held = sys.getrefcount(data)
    file = store.parquet(path)
    assert sys.getrefcount(data) == held
    assert file.read().equals(ROWS)


def test_texts_by_places_and_numbers_that_rise_are_read_as_the_table_declares_them(tmp_path: Path) -> None:
    """steps at rest: what a replay hands over in a smaller form is the declared type in the file."""
    store, n = Store(str(tmp_path)), 20_000
    rows = {"run_id": ["a" * 32] * n, "pass_id": range(n), "kind": ["decode"] * n, "start_s": [0.0] * n, "step_s": [0.0] * n}
    plain = conform("steps", filled("steps", pl.DataFrame(rows).to_arrow()))
    coded = pl.DataFrame(rows, schema_overrides={"run_id": pl.Enum(["a" * 32]), "kind": pl.Enum(["decode"])}).to_arrow()
    store.write_parquet(path := store.path("steps.parquet"), conform("steps", filled("steps", coded)))
    file = store.parquet(path)
    assert file.schema_arrow.types == schema("steps").types
    assert file.read().equals(plain)
    columns = [file.metadata.row_group(0).column(i) for i in range(file.metadata.num_columns)]
    assert {of.path_in_schema: of.total_compressed_size for of in columns}["pass_id"] < 4 * n / 50
