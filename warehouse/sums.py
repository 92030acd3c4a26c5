"""The SHA-256 of a file of the store: once per process for the whole file, at every open for a Parquet file's footer.

A file whose size, times and inode (on an object store: whose tag) are as they were is not read again: what is rewritten is
seen by them. What rots under the same times is seen by the footer's sum and by the checksums of the pages; nothing is kept on
disk, where it would outlive the rot that it should find.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from tokentape.warehouse.atomic_files import naming

_CHUNK_BYTES = 1 << 20
_TAIL_BYTES = 8  # the footer's length and PAR1
_TAGS = ("ETag", "etag", "md5", "md5Hash", "mtime", "LastModified", "last_modified", "updated", "created")


@dataclass(frozen=True)
class Sums:
    """Hexadecimal SHA-256 of a file and of the footer that it then had."""

    file: str
    footer: str


def sums_of(fs: AbstractFileSystem, path: str) -> Sums:
    """Sums of a file, read once as long as it looks unchanged."""
    stamp = _stamp(fs, path)
    return _read(fs, path) if stamp is None else _remembered(fs, path, stamp)


def footer_sha256(handle: IO[bytes]) -> str:
    """Of the footer of an open Parquet file; of its last bytes where the length in them cannot be right."""
    size = handle.seek(0, os.SEEK_END)
    handle.seek(max(0, size - _TAIL_BYTES))
    tail = handle.read(_TAIL_BYTES)
    length = int.from_bytes(tail[:4], "little") + _TAIL_BYTES
    if length <= size:
        handle.seek(size - length)
        tail = handle.read(length)
    handle.seek(0)
    return hashlib.sha256(tail).hexdigest()


def _stamp(fs: AbstractFileSystem, path: str) -> tuple[Any, ...] | None:
    """What changes with a file; None where the store tells nothing but its size."""
    if isinstance(fs, LocalFileSystem):
        found = os.stat(path)
        return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino
    info = fs.info(path)
    tags = tags_of(info)
    return (info["size"], *tags) if tags else None


def tags_of(info: Mapping[str, Any]) -> tuple[str, ...]:
    """What fsspec tells of a file that changes with its content, beside its size."""
    return tuple(str(info[name]) for name in _TAGS if info.get(name) is not None)


@lru_cache(maxsize=1 << 16)
def _remembered(fs: AbstractFileSystem, path: str, stamp: tuple[Any, ...]) -> Sums:
    return _read(fs, path)


def _read(fs: AbstractFileSystem, path: str) -> Sums:
    digest = hashlib.sha256()
    with naming(Path(path)), fs.open(path, "rb") as handle:
        footer = footer_sha256(handle)
        while chunk := handle.read(_CHUNK_BYTES):
            digest.update(chunk)
    return Sums(digest.hexdigest(), footer)
