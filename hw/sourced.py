"""Numbers with sources: what a hardware file is made of, and how tables of files become frozen dataclasses.

A number is `{value, source}` with an optional range `low`, `high`, or a bare value that inherits the `source` of its file. A
source is a URL, a DOI, a paper with its table or section, or the visible word "assumed".
"""

import difflib
import hashlib
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints


class BadSpec(ValueError):
    """A hardware file that cannot be trusted; the message names the file, the key and the remedy."""


def unknown(kind: str, name: str, shipped: Sequence[str], installed: Sequence[str] = ()) -> BadSpec:
    """The error for a name that is none of those shipped or installed, with the nearest of them."""
    near = difflib.get_close_matches(name, [*shipped, *installed], 1, 0.3)
    hint = f"did you mean {near[0]}?" if near else "give a name or the path of a .toml file;"
    there = f"; installed: {', '.join(installed)}" if installed else ""
    return BadSpec(f"unknown {kind} {name!r}; {hint} shipped: {', '.join(shipped)}{there}")


def parsed(path: Path, what: str, shipped: Iterable[str]) -> tuple[dict[str, Any], str]:
    """A TOML file and its SHA-256. what: it holds. Raises BadSpec where there is none, or it is no TOML."""
    try:
        raw = path.read_bytes()
        return tomllib.loads(raw.decode("utf-8-sig")), hashlib.sha256(raw).hexdigest()
    except FileNotFoundError:
        raise BadSpec(f"{path}: no such {what}; shipped: {', '.join(shipped)}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSpec(f"{path}: not TOML: {error}") from error


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


def build(kind: Any, data: Any, where: str, inherited: str = "", besides: Sequence[str] = (), **computed: object) -> Any:
    """A dataclass from a TOML table; raises BadSpec naming `where` and the key.

    `inherited`: the source of the file, for sourced numbers that are written without their own. `besides`: keys that it may have
    and another reads. `computed`: fields no file may hold.
    """
    if not isinstance(data, dict):
        raise BadSpec(f"{where} must be a table, found {data!r}")
    hints = _hints(kind)
    declared = {field.name: field for field in fields(kind) if field.name not in computed}
    for key in data:
        if key not in declared:
            raise BadSpec(f"{where}: unknown key {key!r}; known: {', '.join([*declared, *besides])}")
    for name, field in declared.items():
        if name not in data and field.default is MISSING and field.default_factory is MISSING:
            raise BadSpec(f"{where}: {name} is missing")
    return kind(**{name: _value(hints[name], value, f"{where}: {name}", inherited) for name, value in data.items()}, **computed)


_hints = lru_cache(get_type_hints)
_WORDS = {float: "a number", str: "text", bool: "true or false", int: "a whole number of at least 1"}


def _value(kind: Any, value: Any, where: str, inherited: str) -> Any:
    """A value of a file as the type that a field has; what is already built stays as it is."""
    of = [inner for inner in get_args(kind) if inner is not NoneType]
    if isinstance(kind, UnionType):
        return _value(of[0], value, where, inherited) if len(of) == 1 else value
    if kind is Sourced:
        return read_number(value, where, inherited)
    if isinstance(kind, type) and is_dataclass(kind):
        return value if isinstance(value, kind) else build(kind, value, where, inherited)
    if get_origin(kind) is dict:
        if not isinstance(value, dict) or (of[1] is Sourced and "value" in value):
            raise BadSpec(f"{where} must be a table by name, found {value!r}")
        return {key: _value(of[1], inner, f"{where}.{key}", inherited) for key, inner in value.items()}
    if get_origin(kind) is tuple and not isinstance(value, tuple):
        if not isinstance(value, list) or (... not in of and len(value) != len(of)):
            raise BadSpec(f"{where} must be a list{'' if ... in of else f' of {len(of)}'}, found {value!r}")
        return tuple(_value(of[0], inner, where, inherited) for inner in value)
    is_good = type(value) in (int, float) if kind is float else type(value) is kind and (kind is not int or value >= 1)
    if kind in _WORDS and not is_good:
        raise BadSpec(f"{where} must be {_WORDS[kind]}, found {value!r}")
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
