"""A machine is one TOML file in which every number has a source; this module loads and checks it.

A number is `{value, source}` with an optional range `low`, `high`. A source is a URL, a DOI, a paper with its table or section,
or the visible word "assumed". The loader refuses a number without one, unknown keys and impossible values, naming file and key.
"""

from __future__ import annotations

import difflib
import hashlib
import math
import tomllib
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

SPECS = Path(__file__).parent / "specs"


class BadSpec(ValueError):
    """A hardware file that cannot be trusted; the message names the file, the key and the remedy."""


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


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Compute. `ops_per_s`: dtype -> operations/s (a multiply-add is two); `efficiency_frac`: share of it that is reached."""

    ops_per_s: dict[str, Sourced]
    efficiency_frac: Sourced
    energy_pj_per_op: Sourced


@dataclass(frozen=True, kw_only=True)
class MemTier:
    """A memory. `efficiency_frac`: share of the peak that reading whole experts reaches."""

    kind: str  # sram | hbm | dram | flash
    capacity_bytes: Sourced
    peak_bytes_per_s: Sourced
    efficiency_frac: Sourced
    latency_s: Sourced
    read_pj_per_bit: Sourced
    write_pj_per_bit: Sourced


@dataclass(frozen=True, kw_only=True)
class Link:
    """What lies between the backing tier and the fast one."""

    peak_bytes_per_s: Sourced
    efficiency_frac: Sourced
    latency_s: Sourced
    energy_pj_per_bit: Sourced


@dataclass(frozen=True, kw_only=True)
class HardwareSpec:
    """A machine that runs a model from `tiers[fast]` and fetches missing experts from `tiers[backing]`."""

    name: str
    title: str
    dtype: str  # key of the engine's ops_per_s that experts are computed in
    fast: str
    backing: str
    engine: Engine
    tiers: dict[str, MemTier]
    link: Link | None
    static_w: Sourced
    max_w: Sourced
    sha256: str

    def numbers(self) -> list[tuple[str, Sourced]]:
        """Every sourced number with its dotted key, for tables of sources."""
        found: list[tuple[str, Sourced]] = []

        def walk(prefix: str, value: Any) -> None:
            if isinstance(value, Sourced):
                found.append((prefix, value))
            elif isinstance(value, dict):
                for key, inner in value.items():
                    walk(f"{prefix}.{key}", inner)
            elif hasattr(value, "__dataclass_fields__"):
                for field in fields(value):
                    walk(f"{prefix}.{field.name}".lstrip("."), getattr(value, field.name))

        walk("", self)
        return found

    @property
    def assumed(self) -> list[str]:
        """Keys of the numbers that rest on an assumption, in whole or at an end of their range."""
        return [key for key, number in self.numbers() if number.is_assumed]


def shipped() -> list[str]:
    """Names of the machines that come with the project."""
    return sorted(path.stem for path in SPECS.glob("*.toml"))


def load(name_or_path: str) -> HardwareSpec:
    """A shipped machine by name, or a user's own by the path of its TOML file. Raises BadSpec."""
    path = Path(name_or_path)
    if path.suffix != ".toml":
        if name_or_path not in shipped():
            near = difflib.get_close_matches(name_or_path, shipped(), 1, 0.3)
            hint = f"did you mean {near[0]}?" if near else "give a name or the path of a .toml file;"
            raise BadSpec(f"unknown hardware {name_or_path!r}; {hint} shipped: {', '.join(shipped())}")
        path = SPECS / f"{name_or_path}.toml"
    try:
        raw = path.read_bytes()
    except FileNotFoundError as error:
        raise BadSpec(f"{path}: no such hardware file; shipped machines: {', '.join(shipped())}") from error
    try:
        data = tomllib.loads(raw.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSpec(f"{path}: not TOML: {error}") from error
    return _spec(data, str(path), hashlib.sha256(raw).hexdigest())


def _spec(data: dict[str, Any], where: str, sha256: str) -> HardwareSpec:
    data = dict(data)
    engine = _build(Engine, _table(data, "engine", where), f"{where}: engine")
    tiers = {k: _build(MemTier, v, f"{where}: tiers.{k}") for k, v in _table(data, "tiers", where).items()}
    link = _build(Link, _table(data, "link", where), f"{where}: link") if "link" in data else None
    rest = {k: v for k, v in data.items() if k not in ("engine", "tiers", "link")}
    spec: HardwareSpec = _build(HardwareSpec, {**rest, "engine": engine, "tiers": tiers, "link": link, "sha256": sha256}, where)
    for role in ("fast", "backing"):
        if getattr(spec, role) not in tiers:
            raise BadSpec(f"{where}: {role} = {getattr(spec, role)!r} is not one of the tiers {', '.join(tiers)}")
    if spec.dtype not in engine.ops_per_s:
        raise BadSpec(f"{where}: dtype = {spec.dtype!r} is not in engine.ops_per_s ({', '.join(engine.ops_per_s)})")
    for key, number in spec.numbers():
        if key.endswith("efficiency_frac") and number.high > 1.0:
            raise BadSpec(f"{where}: {key} exceeds 1 ({number.high}); it is a share of the peak")
        if any(word in key for word in ("peak", "capacity", "ops_per_s", "efficiency")) and number.low <= 0.0:
            raise BadSpec(f"{where}: {key} must be above 0")
    return spec


def _table(data: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    if not isinstance(data.get(key), dict):
        raise BadSpec(f"{where}: table [{key}] is missing")
    return dict(data[key])


def _build(kind: Any, data: Any, where: str) -> Any:
    """A dataclass from a TOML table; Sourced fields are read as numbers with sources."""
    if not isinstance(data, dict):
        raise BadSpec(f"{where} must be a table, found {data!r}")
    declared = {field.name: field for field in fields(kind)}
    for key in data:
        if key not in declared:
            raise BadSpec(f"{where}: unknown key {key!r}; known: {', '.join(declared)}")
    values = {}
    for name, field in declared.items():
        if name not in data and field.default is MISSING:
            raise BadSpec(f"{where}: {name} is missing")
        value = data[name]
        if field.type == "Sourced":
            value = _sourced(value, f"{where}: {name}")
        elif field.type == "dict[str, Sourced]":
            if not isinstance(value, dict):
                raise BadSpec(f"{where}: {name} must be a table of numbers by dtype, found {value!r}")
            value = {k: _sourced(v, f"{where}: {name}.{k}") for k, v in value.items()}
        elif field.type == "str" and not isinstance(value, str):
            raise BadSpec(f"{where}: {name} must be text")
        values[name] = value
    return kind(**values)


def _sourced(value: Any, where: str) -> Sourced:
    if not isinstance(value, dict) or "value" not in value:
        raise BadSpec(f"{where} must be {{ value = ..., source = ... }}, found {value!r}")
    unknown = set(value) - {"value", "low", "high", "source"}
    if unknown:
        raise BadSpec(f"{where}: unknown key {sorted(unknown)[0]!r}; a number has value, source and optionally low, high")
    if not isinstance(value.get("source"), str) or not value["source"].strip():
        raise BadSpec(f'{where} has no source; give a URL, a DOI, a paper with its table, or the word "assumed"')
    numbers: dict[str, Any] = {key: value.get(key, value["value"]) for key in ("value", "low", "high")}
    if not all(type(n) in (int, float) and math.isfinite(n) and n >= 0 for n in numbers.values()):
        raise BadSpec(f"{where}: value, low and high must be finite numbers of at least 0, found {numbers}")
    if not numbers["low"] <= numbers["value"] <= numbers["high"]:
        raise BadSpec(f"{where}: low <= value <= high does not hold ({numbers})")
    return Sourced(source=value["source"], **{key: float(n) for key, n in numbers.items()})
