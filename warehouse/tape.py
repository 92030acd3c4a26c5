"""Tapes on disk: one trace = one directory of Parquet shards with a `manifest.json` written last.

    <store>/traces/trace_id=<trace_id>/<table>/part-00000.parquet ...   and, last, its manifest.json
    <store>/README.md                                           the dataset card (card.py)

A shard is the same group of requests in every table; its `requests` part is written last and so marks it complete. A directory
without a manifest is an unfinished capture: readers refuse it by name. The manifest carries the SHA-256 of every shard and of
itself: a tape that has changed since is refused, and one whose rows contradict each other too (contradictions.py). The store is
any fsspec URI. Files are written aside and renamed (atomic_files.py), on S3 put in one request, of a tape only where none is,
so that two who record one end with one. Needs nothing of the warehouse that replays or queries.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from tempfile import gettempdir
from typing import IO, Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from tokentape.warehouse import seals
from tokentape.warehouse.atomic_files import aside_of, make_folder, naming, remove_stale, settle
from tokentape.warehouse.card import card
from tokentape.warehouse.recorded import BadTape, Manifest, Tape
from tokentape.warehouse.sums import sums_of
from tokentape.warehouse.tables import TABLES, BadTable, as_shard, is_coded

__all__ = ["BadTape", "Manifest", "Store", "Tape", "TapeWriter", "default_store", "is_disk_full"]

FOLDER = "trace_id="  # as Hive names partitions: whoever reads many tapes at once has it as a column
ROW_GROUP_ROWS = 131_072
PARQUET: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 3,
    "row_group_size": ROW_GROUP_ROWS,
    "write_page_checksum": True,
}
_COUNTED = {"pass_id"}  # rises from row to row: by differences a hundredth of the bytes
_S3 = {"s3", "s3a"}  # shows a file once all of it is there, and puts one where none is: If-None-Match
_LOGIN = re.compile(r"^[^/]*//[^/]*:[^/]*@")


def default_store() -> str:
    """`TOKENTAPE_STORE`, else ./tape."""
    return os.environ.get("TOKENTAPE_STORE", "./tape")


def is_disk_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def _bytes_in(folder: str) -> int:
    """Of the files below a local folder: several times faster than fsspec tells it."""
    with os.scandir(folder) as entries:
        return sum(_bytes_in(entry.path) if entry.is_dir() else entry.stat().st_size for entry in entries)


def packed(rows: pa.Table) -> bytes:
    """What write_parquet writes."""
    buffer, names = io.BytesIO(), rows.column_names
    repeated = [f.name for f in rows.schema if f.name not in _COUNTED and not pa.types.is_floating(f.type)]
    how: dict[str, Any] = {
        "use_dictionary": repeated,
        "column_encoding": {name: "DELTA_BINARY_PACKED" for name in names if name in _COUNTED} or None,
        "write_statistics": [name for name in names if name.endswith("_id")],  # by which rows are found
        "store_schema": not any(map(is_coded, rows.schema.types)),  # without it texts by places are read as texts
    }
    pq.write_table(rows, buffer, **PARQUET, **how)
    return seals.sealed_parquet(buffer.getvalue())


def located(uri: str) -> tuple[Any, str]:
    """A URI's file system and its path there. Raises ValueError for an unknown kind, a driver that is missing, a password."""
    if _LOGIN.match(uri):
        where = "its environment or files (S3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws)"
        raise ValueError(f"a URI is kept beside results: give name and password by {where}, not in the URI")
    try:
        fs, root = fsspec.core.url_to_fs(uri, use_listings_cache=False)  # others write here too
    except ImportError as error:
        # fsspec's message names the package: Install s3fs to access S3
        reason = str(error).splitlines()[0]
        raise ValueError(f"{uri} needs a Python package that is not installed: {reason}") from error
    return fs, root


class Store:
    """A directory of traces at a path or fsspec URI. Creating a Store touches nothing.

    Raises ValueError for a URI of an unknown kind, of one whose driver is not installed, or with a password in it; for a file.
    """

    def __init__(self, uri: str | None = None) -> None:
        self.uri = uri or default_store()
        self.fs, self.root = located(self.uri)
        if self.is_local and os.path.isfile(self.root):
            raise ValueError(f"{self.uri}: a file, where the store is a folder; give another --store")

    @property
    def is_local(self) -> bool:
        return isinstance(self.fs, LocalFileSystem)

    @property
    def is_s3(self) -> bool:
        return not _S3.isdisjoint((self.fs.protocol,) if isinstance(self.fs.protocol, str) else self.fs.protocol)

    @property
    def exists(self) -> bool:
        return bool(self.fs.isdir(self.root))

    @cached_property
    def absolute(self) -> str:
        """The store's URI, the same from every working directory and process."""
        return str(self.fs.unstrip_protocol(self.root))

    def path(self, *parts: str) -> str:
        return "/".join((self.root.rstrip("/"), *parts))

    def trace_path(self, trace_id: str, *parts: str) -> str:
        return self.path("traces", FOLDER + trace_id, *parts)

    def trace_ids(self) -> list[str]:
        """Finished tapes, sorted."""
        return sorted(i for i in self._all_ids() if self.fs.exists(self.trace_path(i, "manifest.json")))

    def unfinished_ids(self) -> list[str]:
        """Directories of captures that were stopped before their manifest."""
        return sorted(i for i in self._all_ids() if not self.fs.exists(self.trace_path(i, "manifest.json")))

    def _all_ids(self) -> list[str]:
        folder = self.path("traces")
        if not self.fs.isdir(folder):
            return []
        names = [entry.rstrip("/").rsplit("/", 1)[-1] for entry in self.fs.ls(folder, detail=False)]
        return [name.removeprefix(FOLDER) for name in names if name.startswith(FOLDER)]

    def remove(self, *trace_ids: str) -> None:
        """Deletes tapes, finished or not; none where one is not there; manifests first: half-deleted ones read as unfinished."""
        if missing := set(trace_ids).difference(self._all_ids()):
            raise BadTape(self._unknown(min(missing)))
        for trace_id in dict.fromkeys(trace_ids):
            if self.fs.exists(self.trace_path(trace_id, "manifest.json")):
                self.fs.rm(self.trace_path(trace_id, "manifest.json"))
            with naming(Path(folder := self.trace_path(trace_id))):
                if self.is_local:  # out of the way at once: what is recorded under its name meanwhile keeps its files
                    os.rename(folder, folder := aside_of(self.path(FOLDER + trace_id)))
                self.fs.rm(folder, recursive=True)

    def size_bytes(self, trace_id: str) -> int:
        folder = self.trace_path(trace_id)
        return _bytes_in(folder) if self.is_local else int(self.fs.du(folder))

    def _unknown(self, trace_id: str) -> str:
        known = self.trace_ids()
        return f"no tape {trace_id!r} in {self.uri}; " + (
            f"there are {', '.join(known)}" if known else "the store is empty: run `tokentape capture` or `tokentape import`"
        )

    def resolve(self, prefix: str) -> str:
        """The one trace id that equals or starts with `prefix`. Raises BadTape naming what there is."""
        ids = self.trace_ids()
        hits = [i for i in ids if i == prefix] or [i for i in ids if i.startswith(prefix)]
        if len(hits) == 1:
            return hits[0]
        if hits:
            raise BadTape(f"{prefix!r} fits several tapes: {', '.join(hits)}; give more of the name")
        if prefix in self.unfinished_ids():
            raise BadTape(f"tape {prefix} has no manifest.json: it is unfinished; run its command again (capture: with --resume)")
        raise BadTape(self._unknown(prefix))

    def open(self, prefix: str) -> Tape:
        return Tape(self, self.resolve(prefix))

    def tapes(self) -> tuple[list[Tape], dict[str, str]]:
        """Finished tapes, sorted, and why those cannot be opened that cannot, by id: one of them does not hide the others."""
        found, damaged = list[Tape](), dict[str, str]()
        for trace_id in self.trace_ids():
            try:
                found.append(Tape(self, trace_id))
            except (BadTape, OSError) as error:
                damaged[trace_id] = str(error)
        return found, damaged

    def readable(self) -> Iterator[Tape]:
        """The tapes that can be opened; a line on stderr for each of the others."""
        found, damaged = self.tapes()
        for reason in damaged.values():
            print(f"left out: {reason}", file=sys.stderr)
        yield from found

    def writer(self, trace_id: str) -> TapeWriter:
        return TapeWriter(self, trace_id)

    # ------------------------------------------------------------------------------------------------ files, atomically

    def write_bytes(self, path: str, data: bytes, once: bool = False) -> None:
        """One file, all of it or none; see replacing."""
        with self.replacing(path, once) as handle:
            handle.write(data)

    def write_parquet(self, path: str, rows: pa.Table) -> None:
        """One Parquet file, zstd, that carries a sum of itself. No timestamps inside: equal rows give equal bytes."""
        with self.replacing(path) as handle:
            handle.write(packed(rows))

    def write_shard(self, path: str, rows: pa.Table) -> None:
        """The same for rows that may be many: the sum is left to the manifest. Floats hardly repeat: those of their bytes that
        weigh most lie together, which packs router scores and gate weights 14 to 43 % smaller than a dictionary of them."""
        leaves = {f.name: f.type.value_type if pa.types.is_list(f.type) else f.type for f in rows.schema}
        paths = {name: f"{name}.list.element" if pa.types.is_list(rows.schema.field(name).type) else name for name in leaves}
        split = [path for name, path in paths.items() if pa.types.is_floating(leaves[name])]
        with self.replacing(path, once=True) as handle:
            others = [path for path in paths.values() if path not in split]
            pq.write_table(rows, handle, **PARQUET, use_dictionary=others, use_byte_stream_split=split)

    def write_card(self) -> None:
        """The store's README.md, where it is not the one of this version."""
        path, text = self.path("README.md"), card().encode()
        if not self.fs.exists(path) or self.fs.cat_file(path) != text:
            self.write_bytes(path, text)

    def parquet(self, path: str) -> pq.ParquetFile:
        """A file of write_parquet, whole. Raises BadTable if it is truncated, foreign, or has changed since it was written."""
        with naming(Path(path)):
            data = self.fs.cat_file(path)
        if not seals.is_whole(data):
            raise BadTable(f"{path}: changed since it was written; `tokentape check --repair` drops it, then make it again")
        held = pa.BufferOutputStream()  # Arrow's own memory: its threads abort on Python's while Python ends
        held.write(data)
        return pq.ParquetFile(pa.BufferReader(held.getvalue()))

    @contextmanager
    def replacing(self, path: str, once: bool = False) -> Iterator[IO[bytes]]:
        """A file to fill that then takes the place of `path`: a reader sees the old one or the new one, and nothing stays behind.

        Every writer has an aside of its own, so that two may write one path: the last one stands. once: the first one does;
        FileExistsError for another whose bytes are not the same.
        """
        aside = aside_of(os.path.join(gettempdir(), "tokentape") if self.is_s3 else path)
        try:
            self._make_folder(path.rsplit("/", 1)[0])
            with open(aside, "wb") if self.is_s3 else self.fs.open(aside, "wb") as handle:
                yield handle
            try:
                if self.is_local:
                    settle(Path(aside), Path(path), once)
                elif self.is_s3:
                    self.fs.put_file(aside, path, mode="create" if once else "overwrite")
                else:
                    self.fs.mv(aside, path)
            except FileExistsError as error:
                if sums_of(LocalFileSystem(), aside).file != sums_of(self.fs, path).file:
                    what = "another process writes this tape, or was killed; then `tokentape rm` it and run the command again"
                    raise FileExistsError(errno.EEXIST, f"is there already with other rows: {what}", path) from error
        except BaseException as error:  # Ctrl-C too
            if isinstance(error, OSError) and not isinstance(error.__cause__, OSError):  # or a file within this one has told it
                raise self._clear(error, path) from error
            raise
        finally:
            local = LocalFileSystem() if self.is_s3 else self.fs
            if local.exists(aside):
                local.rm(aside)

    def _make_folder(self, folder: str) -> None:
        """The folder a file is to lie in; a bucket is not made by writing into it, as some drivers would."""
        if self.is_local:
            make_folder(Path(folder))
            return
        if self._is_bucket_there and not self.is_s3:
            self.fs.makedirs(folder, exist_ok=True)

    @cached_property
    def _is_bucket_there(self) -> bool:
        """Looked for once. Raises FileNotFoundError for one that is not there."""
        bucket = next((part for part in self.root.split("/") if part), "")
        if "memory" not in self.fs.protocol and not self.fs.exists(bucket):
            raise FileNotFoundError(errno.ENOENT, f"there is no {bucket}; make it first, or check the name", self.uri)
        return True

    def remove_stale(self) -> None:
        """Removes what killed processes of this machine were writing here when they died."""
        if self.is_local:
            remove_stale(Path(self.root).rglob("*.part*"))
        elif self.is_s3:
            remove_stale(Path(gettempdir()).glob("tokentape.*.part"))

    def _clear(self, error: OSError, path: str) -> OSError:
        """The same error with a message that says what to do, where the disk is full or the store read-only."""
        if is_disk_full(error):
            return OSError(error.errno, f"no space left while writing {path}; free some, or give --store elsewhere")
        if isinstance(error, PermissionError) or error.errno == errno.EROFS:
            reason = error.strerror or error
            return OSError(error.errno, f"store {self.root} cannot be written ({reason}); give --store a folder that can")
        if error.errno and str(error.filename or ".part").endswith(".part"):  # a limit on sizes of files, or a folder that went
            return OSError(error.errno, f"{error.strerror} while writing {path}; give --store elsewhere")
        return error


class TapeWriter:
    """Writes one trace shard by shard; `finish` writes the manifest and so makes the tape exist.

    A capture that is resumed skips the shards for which `has_shard` is true: they are complete.
    """

    def __init__(self, store: Store, trace_id: str) -> None:
        self.store, self.trace_id = store, trace_id

    @property
    def is_finished(self) -> bool:
        return bool(self.store.fs.exists(self.store.trace_path(self.trace_id, "manifest.json")))

    @property
    def is_started(self) -> bool:
        return bool(self.store.fs.isdir(self.store.trace_path(self.trace_id)))

    def remove_incomplete(self, tables: tuple[str, ...]) -> None:
        """Removes shards that lack one of the tables, whose rows may not come the same again; not of a finished tape."""
        there = set[str]() if self.is_finished else {*self.store.fs.find(self.store.trace_path(self.trace_id))}
        for path in there:
            name = path.rsplit("/", 1)[1]
            if name.endswith(".parquet") and not {self._part(table, int(name[5:10])) for table in tables} <= there:
                self.store.fs.rm(path)

    def _part(self, table: str, shard: int) -> str:
        return self.store.trace_path(self.trace_id, table, f"part-{shard:05d}.parquet")

    def has_shard(self, shard: int) -> bool:
        return bool(self.store.fs.exists(self._part("requests", shard)))

    def write_shard(self, shard: int, tables: dict[str, pa.Table]) -> None:
        """All tables of one shard. Raises BadTable if a column does not fit its declaration; nothing is written then."""
        checked = {name: as_shard(name, rows) for name, rows in tables.items()}
        for name in sorted(checked, key=lambda name: name == "requests"):  # requests last: it marks the shard complete
            self.store.write_shard(self._part(name, shard), checked[name])

    def count_rows(self, tables: tuple[str, ...], n_shards: int) -> dict[str, int]:
        """Rows per table over all shards."""
        return {name: sum(footer.num_rows for footer in self._footers(name, n_shards)) for name in tables}

    def _footers(self, table: str, n_shards: int) -> Iterator[pq.FileMetaData]:
        for shard in range(n_shards):
            with self.store.fs.open(self._part(table, shard), "rb") as handle:
                yield pq.ParquetFile(handle).metadata

    def finish(self, tables: Iterable[str], n_shards: int, **told: Any) -> None:
        """Writes the manifest with the rows and sums of the shards as they lie in the store, and before it the store's card.

        told: the manifest's other fields. One that another process wrote meanwhile stays; FileExistsError if its sums are not the
        same.
        """
        tables, shards = tuple(tables), range(n_shards)
        known = {"rows": self.count_rows(tables, n_shards), "created_utc": datetime.now(UTC).isoformat(timespec="microseconds")}
        manifest = Manifest(trace_id=self.trace_id, tables=tables, n_shards=n_shards, **(known | told))
        self.store.write_card()
        sums = {name: [sums_of(self.store.fs, self._part(name, shard)).file for shard in shards] for name in manifest.tables}
        recorded = {name: self._recorded(name, n_shards) for name in manifest.tables if TABLES[name].optional}
        fields = manifest.model_dump(mode="json") | {"sha256": sums, "recorded": recorded, "seal": seals.PLACE}
        text = json.dumps(fields, indent=1, sort_keys=True) + "\n"
        try:
            self.store.write_bytes(self.store.trace_path(self.trace_id, "manifest.json"), seals.sealed(text.encode()), once=True)
        except FileExistsError:
            if {name: [*of] for name, of in Tape(self.store, self.trace_id).manifest.sha256.items()} != sums:
                raise

    def _recorded(self, table: str, n_shards: int) -> list[str]:
        """The table's optional columns that hold anything."""
        found = set[str]()
        for file in self._footers(table, n_shards):
            for group in map(file.row_group, range(file.num_row_groups)):
                columns = map(group.column, range(group.num_columns))
                found |= {
                    column.path_in_schema.split(".")[0] for column in columns if (said := column.statistics) and said.num_values
                }
        return [name for name in TABLES[table].optional if name in found]

    @contextmanager
    def whole(self) -> Iterator[None]:
        """What is written within it appears whole or not at all, after Ctrl-C too; what killed processes left goes before."""
        self.store.remove_stale()
        try:
            yield
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Removes what an abandoned import or capture wrote."""
        if self.is_started and not self.is_finished:
            self.store.remove(self.trace_id)
