"""Files written aside and renamed, so that a reader sees the old one or the new one; and what killed writers left of them.

An aside carries the number of its process: on the machine where it ran, one whose process is gone is nobody's. Write to a folder
that several machines share from one of them at a time.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

_ASIDE = re.compile(r"\.(\d{1,9})\.part(\.wal)?$")  # .wal: DuckDB's, beside its database


def aside_of(path: str) -> str:
    """Where to write before renaming to `path`: a name of this one write, with the process that does it."""
    return f"{path}.{uuid4().hex}.{os.getpid()}.part"


def remove_stale(asides: Iterable[Path]) -> None:
    """Removes files that a process of this machine was writing aside when it was killed; those of a running one stay."""
    for path in asides:
        writer = _ASIDE.search(path.name)
        if writer and not _is_running(int(writer[1])):
            with suppress(OSError):
                path.unlink()


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
        aside.write_bytes(content)
        if is_file:
            os.replace(aside, path.resolve())
    except BaseException as error:  # Ctrl-C too
        if is_file:
            with suppress(OSError):
                aside.unlink()
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
