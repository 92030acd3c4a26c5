"""Numbers with sources: what a hardware file is made of, and how its tables become frozen dataclasses.

A number is `{value, source}` with an optional range `low`, `high`, or a bare value that inherits the `source` of its file. A
source is a URL, a DOI, a paper with its table or section, or the visible word "assumed".
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any


class BadSpec(ValueError):
    """A hardware file that cannot be trusted; the message names the file, the key and the remedy."""


def unknown(kind: str, name: str, shipped: Sequence[str], installed: Sequence[str] = ()) -> BadSpec:
    """The error for a name that is none of those shipped or installed, with the nearest of them."""
    near = difflib.get_close_matches(name, [*shipped, *installed], 1, 0.3)
    hint = f"did you mean {near[0]}?" if near else "give a name or the path of a .toml file;"
    there = f"; installed: {', '.join(installed)}" if installed else ""
    return BadSpec(f"unknown {kind} {name!r}; {hint} shipped: {', '.join(shipped)}{there}")


@dataclass(frozen=True, kw_only=True)
class Sourced:
    """A number, the range it may lie in, and where it comes from."""

    value: float
    low: float
    high: float
    source: str

    @property
    def is_assumed(self) -> bool:
        """The value or an end of its range rests on no measured or cited source."""
        return "assumed" in self.source


def exact(value: float, source: str) -> Sourced:
    """A number without a range."""
    return Sourced(value=value, low=value, high=value, source=source)


def leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Sourced | str | int]]:
    """Every sourced number, count and text but empty ones below `value` (a dataclass, a dict or one of them), by dotted key."""
    if isinstance(value, dict):
        inner = list(value.items())
    elif hasattr(value, "__dataclass_fields__") and not isinstance(value, Sourced):
        inner = [(field.name, getattr(value, field.name)) for field in fields(value)]
    else:
        inner = []
        if value not in (None, ""):
            yield prefix, value
    for key, part in inner:
        yield from leaves(part, f"{prefix}.{key}".lstrip("."))


def numbers(value: Any) -> Iterator[tuple[str, Sourced]]:
    """Every sourced number below `value` (a dataclass, a dict or a number) with its dotted key."""
    return ((key, leaf) for key, leaf in leaves(value) if isinstance(leaf, Sourced))


def build(kind: Any, data: Any, where: str, inherited: str = "", **computed: object) -> Any:
    """A dataclass of numbers, texts and flags from a TOML table; raises BadSpec naming `where` and the key.

    `inherited`: the source of the file, for numbers that are written without their own. `computed`: fields no file may hold.
    """
    if not isinstance(data, dict):
        raise BadSpec(f"{where} must be a table, found {data!r}")
    declared = {field.name: field for field in fields(kind) if field.name not in computed}
    for key in data:
        if key not in declared:
            raise BadSpec(f"{where}: unknown key {key!r}; known: {', '.join(declared)}")
    values = {}
    for name, field in declared.items():
        if name in data:
            values[name] = _value(field.type, data[name], f"{where}: {name}", inherited)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise BadSpec(f"{where}: {name} is missing")
    return kind(**values, **computed)


def _value(kind: Any, value: Any, where: str, inherited: str) -> Any:
    """One field, by its annotation: a number, a table of numbers, a text, a count, or what is already built."""
    if kind in ("Sourced", "Sourced | None"):
        return read_number(value, where, inherited)
    if kind == "dict[str, Sourced]":
        if not isinstance(value, dict) or "value" in value:
            raise BadSpec(f"{where} must be a table of numbers by name, found {value!r}")
        return {key: read_number(inner, f"{where}.{key}", inherited) for key, inner in value.items()}
    if kind == "str" and not isinstance(value, str):
        raise BadSpec(f"{where} must be text, found {value!r}")
    if kind == "int" and (type(value) is not int or value < 1):
        raise BadSpec(f"{where} must be a whole number of at least 1, found {value!r}")
    return value


def read_number(value: Any, where: str, inherited: str = "") -> Sourced:
    """A number as the file writes it. Raises BadSpec without a source, on unknown keys, and unless 0 <= low <= value <= high."""
    if isinstance(value, Sourced):
        return value
    if type(value) in (int, float):
        value = {"value": value}
    if not isinstance(value, dict) or "value" not in value:
        raise BadSpec(f"{where} must be a number or {{ value = ..., source = ... }}, found {value!r}")
    unknown = set(value) - {"value", "low", "high", "source"}
    if unknown:
        raise BadSpec(f"{where}: unknown key {sorted(unknown)[0]!r}; a number has value, source and optionally low, high")
    source = value.get("source", inherited)
    if not isinstance(source, str) or not source.strip():
        raise BadSpec(
            f'{where} has no source; give a URL, a DOI, a paper with its table, or the word "assumed", here or for the whole file'
        )
    ends: dict[str, Any] = {key: value.get(key, value["value"]) for key in ("value", "low", "high")}
    if not all(type(n) in (int, float) and 0 <= n <= sys.float_info.max for n in ends.values()):
        raise BadSpec(f"{where}: value, low and high must be finite numbers of at least 0, found {ends}")
    if not ends["low"] <= ends["value"] <= ends["high"]:
        raise BadSpec(f"{where}: low <= value <= high does not hold ({ends})")
    return Sourced(source=source.strip(), **{key: float(n) for key, n in ends.items()})
