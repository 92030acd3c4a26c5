"""What all operators share: their arguments (arrays by name, one entry per call) and how the parts of a time make the whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Formulas are written in functions that numpy has for arrays and a compiler for numbers; of a number this one is `a if c else b`.
where = np.where
MAY_BE_0 = ("step", "window_size", "stores_kv", "is_warm", "kernel")

Shapes = Mapping[str, NDArray[Any]]
Floats = NDArray[np.float64]


class Terms(NamedTuple):
    """Parts of a time, each (n,) f64 seconds."""

    launch_s: Floats
    compute_s: Floats
    memory_s: Floats


def release(version: str) -> tuple[int, int]:
    """Major and minor number of a framework's version. Raises ValueError if the text is not one."""
    parts = version.split(".")
    if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
        raise ValueError(f"version {version!r} is not a version such as 0.19.0")
    return int(parts[0]), int(parts[1])


def columns(shapes: Shapes, names: Iterable[str], defaults: Mapping[str, int] | None = None) -> list[Floats]:
    """The named arguments as (n,) f64, the default where one is absent. The first name must be given: it says how long they are.

    Raises ValueError naming the first one that is missing, or below 1 where it may not be.
    """
    names, defaults = list(names), defaults or {}
    absent = [name for name in names if name not in shapes and name not in defaults]
    if absent:
        raise ValueError(f"shapes have no {absent[0]!r}; give {', '.join(names)}")
    made = []
    for name in names:
        values = np.asarray(shapes[name] if name in shapes else defaults[name], dtype=np.float64)
        if not np.all(values >= 1) and name not in MAY_BE_0:
            raise ValueError(f"shapes[{name!r}] row {int(np.argmin(values >= 1))}: must be at least 1")
        made.append(np.broadcast_to(values, np.shape(shapes[names[0]])))
    return made


def overlap(a: Floats, b: Floats, sharpness: float) -> Floats:
    """Time of two parts that run side by side: a smooth maximum, (n,). sharpness 1 adds them, infinity takes the larger."""
    return (a**sharpness + b**sharpness) ** (1.0 / sharpness)


def largest_part(terms: NamedTuple) -> NDArray[np.str_]:
    """Name of the largest part of each time, (n,): the fields of terms, each (n,) seconds, without their "_s"."""
    names = np.array([name.removesuffix("_s") for name in terms._fields])
    return np.asarray(names[np.argmax(np.stack(terms), axis=0)])
