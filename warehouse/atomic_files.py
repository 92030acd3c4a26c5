"""Files and folders written aside and put in place at once: a reader sees the old one or the new one, after a power cut too.

An aside carries its process and where that runs (machine and process namespace): there, one whose process is gone is nobody's and
is swept. What another machine or container writes is never touched.
"""

import ctypes
import errno
import glob
import hashlib
import os
import platform
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from uuid import uuid4

_ASIDE = re.compile(r"\.([0-9a-f]{8})\.(\d{1,9})\.part(\.wal)?$")  # .wal: DuckDB's, beside its database
_AT_FDCWD, _RENAME_NOREPLACE, _RENAME_EXCHANGE = -100, 1, 2  # of Linux


def aside_of(path: str) -> str:
    """Where to write before it takes the place of `path`: a name of this one write, with the process that does it."""
    return f"{path}.{uuid4().hex}.{_here()}.{os.getpid()}.part"


def settle(aside: Path, path: Path, once: bool = False) -> None:
    """Puts a file that was written aside in the place of `path`, for good: its bytes reach the disk before its name does.

    once: raises FileExistsError where a file is there; where the system cannot do so at once, as far as it is seen before.
    """
    sync(aside)
    if not once or not _renamed(aside, path, _RENAME_NOREPLACE):
        if once and path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        os.replace(aside, path)
    sync(path.parent)


def settle_folder(aside: Path, path: Path) -> None:
    """Puts a folder of files in the place of `path`: at once where the system can exchange two names, else see put_back."""
    for file in (*aside.iterdir(), aside):
        sync(file)
    if not (_renamed(aside, path, _RENAME_NOREPLACE) or _renamed(aside, path)):
        old = Path(aside_of(str(path)))
        with suppress(FileNotFoundError):
            path.rename(old)
        aside.rename(path)
        aside = old
    sync(path.parent)
    shutil.rmtree(aside, ignore_errors=True)


def put_back(path: Path, mark: str) -> None:
    """Sweeps the asides of a folder; if it is gone itself, killed between two names, the newest whole one takes its place.

    mark: the file that is written last into such a folder.
    """
    asides = list(path.parent.glob(f"{glob.escape(path.name)}.*.part"))
    whole = [aside for aside in asides if is_stale(aside) and (aside / mark).exists()]
    if whole and not path.exists():
        max(whole, key=lambda aside: (aside / mark).stat().st_mtime_ns).rename(path)
    remove_stale(asides)


def make_folder(path: Path) -> None:
    """Makes a folder and those above it, for good."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


def sync(path: Path) -> None:
    """Waits until a file's bytes, or a folder's names, are on the disk; where folders cannot be synced, they are not."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        if path.is_dir():
            return
        raise
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EROFS):
            raise
    finally:
        os.close(handle)


def remove_stale(asides: Iterable[Path]) -> None:
    """Removes what a process of this machine was writing aside when it was killed; that of a running one stays."""
    for path in asides:
        if is_stale(path):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                with suppress(OSError):
                    path.unlink()


def is_stale(path: Path) -> bool:
    """A process of this machine was writing it aside when it was killed."""
    writer = _ASIDE.search(path.name)
    return writer is not None and writer[1] == _here() and not _is_running(int(writer[2]))


@lru_cache(maxsize=1)
def _here() -> str:
    """Where process numbers mean the same: this machine, and on Linux this namespace of processes (a container has its own)."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return hashlib.sha256(f"{platform.node()}/{namespace}".encode()).hexdigest()[:8]


def _renamed(one: Path, other: Path, how: int = _RENAME_EXCHANGE) -> bool:
    """Exchanges two names at once, or gives one the other that none has; False where the system or the file system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    done: int = renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), how)
    return done == 0


def _is_running(pid: int) -> bool:
    """Of any user; a number that another process has got since counts as running."""
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


def replace(path: Path, content: bytes) -> None:
    """Writes aside, then renames; what is no file, such as /dev/stdout, is written as it is. Raises OSError naming `path`."""
    is_file = path.is_file() or not path.exists()
    aside = Path(aside_of(str(path.resolve()))) if is_file else path
    try:
        with naming(path):
            aside.write_bytes(content)
            if is_file:
                settle(aside, path.resolve())
    finally:  # after Ctrl-C too
        if is_file:
            with suppress(OSError):
                aside.unlink()


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors of the disk as OSError naming `path`, where the system names none (a full disk) or an aside."""
    try:
        yield
    except OSError as error:
        if not error.errno:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
