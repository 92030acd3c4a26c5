"""A tape in memory once for all processes of this machine: its arrays as files that each of them maps.

What gives out the work writes them; a worker on another machine does not find them and reads the tape from the store.
"""

import dataclasses
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tokentape.warehouse.atomic_files import aside_of, remove_stale

Arrays = TypeVar("Arrays")
PREFIX = "tokentape-tape"


@contextmanager
def shared(arrays: Mapping[str, Any]) -> Iterator[str]:
    """A folder with the arrays of dataclasses, by name, while it is open; empty text for none, and where no room is left."""
    if not arrays:
        yield ""
        return
    here = Path(tempfile.gettempdir())
    remove_stale(here.glob(f"{PREFIX}.*.part"))
    folder = Path(aside_of(str(here / PREFIX)))
    try:
        try:
            _save(folder, arrays)
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
        del arrays  # which this process needs no more
        yield str(folder) if folder.is_dir() else ""
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _save(folder: Path, arrays: Mapping[str, Any]) -> None:
    folder.mkdir(mode=0o700)
    for name, of in arrays.items():
        for field, value in vars(of).items():
            if isinstance(value, np.ndarray):
                np.save(folder / f"{name}.{field}.npy", value)


def mapped(folder: str, name: str, kind: type[Arrays], **others: Any) -> Arrays | None:
    """One of them, its other fields given; None where it is not there. What is written into its arrays stays in this process."""
    fields = [field.name for field in dataclasses.fields(kind) if field.name not in others]  # type: ignore[arg-type]
    paths = {field: Path(folder, f"{name}.{field}.npy") for field in fields}
    if not (folder and all(path.is_file() for path in paths.values())):
        return None
    return kind(**others, **{field: np.asarray(np.load(path, mmap_mode="c")) for field, path in paths.items()})
