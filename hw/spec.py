"""A machine is one TOML file: engines, memory tiers and links, every number with its source. This module loads and checks it.

A file may name a `base`, a shipped machine or another file, and then holds only what differs. Numbers are those of ONE device;
`n_devices` says how many share the work. static_w, idle_w, max_w and area_mm2 are those of the whole machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, lru_cache
from importlib.metadata import EntryPoint, entry_points
from math import inf, prod
from pathlib import Path
from typing import Any

from tokentape.hw import dram
from tokentape.hw.roles import ENGINE_ROLES, TIER_ROLES, Roles, roles_of
from tokentape.hw.sourced import BadSpec, Sourced, build, exact, numbers, parsed, unknown

SPECS = Path(__file__).parent / "specs"
KINDS = ("sram", "edram", "hbm", "dram", "flash")
HOST = ("layer_s", "step_s")
DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp6", "fp4", "int32", "int16", "int8", "int4", "int2", "int1")
LAUNCHES = ("gemm", "attention", "experts", "elementwise")
# In keys of numbers that something is divided by.
ABOVE_ZERO = ("bytes_per_s", "capacity", "ops_per_s", "efficiency", "interval", "values_per_s", "n_columns", "row_bytes")
BESIDES = ("roles", "base", "source")  # keys of a file
RATES = ("_per_s", "clock_hz")
SLOWEST = 1e6  # of these: what is less was meant in GB/s, TFLOP/s, GHz
MOST = 1e30  # of any number: products of larger ones leave the range of floats
TOGETHER = {"refresh_j": "refresh_interval_s", "refresh_interval_s": "refresh_j", "activate_nj": "row_bytes"}  # of a tier
ROUNDING = 1.01  # published peaks are rounded: 4.13 TOPS, 1.83 GHz


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Compute: a multiply-add is two operations; dtype is the wider operand's."""

    ops_per_s: dict[str, Sourced]  # by dtype
    efficiency_frac: Sourced  # share of it that is reached
    energy_pj_per_op: Sourced
    memory: str = ""  # tier it computes from; empty: the machine's fast tier
    memory_bytes_per_s: Sourced | None = None  # what it reads from there, where it is not the tier's own peak (in-memory compute)
    read_pj_per_bit: Sourced | None = None  # of those reads, where they do not cost what the tier's own do
    n_units: Sourced | None = None  # streaming multiprocessors, processing elements
    macs_per_unit: dict[str, Sourced] = field(default_factory=dict)  # per cycle, by dtype
    other_ops_per_cycle: Sourced | None = None  # counted by the source beside its multiply-adds
    clock_hz: Sourced | None = None
    feed_values_per_s: Sourced | None = None  # elements of keys and values that a systolic array takes in
    n_columns: Sourced | None = None  # of a systolic array: weights that an input meets each time it is read
    local_bytes_per_unit: Sourced | None = None  # shared memory, register-file class buffers
    compute_capability: Sourced | None = None  # CUDA's number of a GPU's generation: 8.0 A100, 8.9 Ada, 9.0 Hopper
    area_mm2: Sourced | None = None
    # To start kernels with nothing to do, by LAUNCHES.
    launch_s: dict[str, Sourced] = field(default_factory=dict)

    def bound_ops_per_s(self, dtype: str) -> float | None:
        """Of multiply-adds, plus the other operations; None where the file does not give all of them."""
        of_macs = self.mac_ops_per_s(dtype)
        if of_macs is None or self.clock_hz is None or self.other_ops_per_cycle is None:
            return of_macs
        return of_macs + self.other_ops_per_cycle.value * self.clock_hz.value

    def mac_ops_per_s(self, dtype: str, end: str = "value") -> float | None:
        """Units x multiply-adds x 2 x clock; None where the file does not give all of them."""
        if self.n_units is None or self.clock_hz is None or dtype not in self.macs_per_unit:
            return None
        each = (self.n_units, self.macs_per_unit[dtype], self.clock_hz)
        return 2.0 * prod(float(getattr(number, end)) for number in each)


@dataclass(frozen=True, kw_only=True)
class MemTier:
    """A memory. efficiency_frac: share of the peak that reading whole experts reaches; `timing` gives it by hw/dram.py."""

    kind: str  # one of KINDS
    capacity_bytes: Sourced
    peak_bytes_per_s: Sourced
    efficiency_frac: Sourced
    latency_s: Sourced
    read_pj_per_bit: Sourced
    write_pj_per_bit: Sourced
    timing: str = ""  # preset of hw/timings, e.g. lpddr5-6400
    address_map: str = "bank-group"  # or row
    n_channels: Sourced | None = None
    pins_per_channel: Sourced | None = None
    bit_per_s_per_pin: Sourced | None = None
    activate_nj: Sourced | None = None  # energy of opening one row, where it is not inside read_pj_per_bit
    row_bytes: Sourced | None = None
    leakage_w: Sourced | None = None
    refresh_j: Sourced | None = None  # one pass over the whole tier
    refresh_interval_s: Sourced | None = None  # time between passes
    area_mm2: Sourced | None = None

    def refresh_w(self, end: str = "value") -> float:
        """Of the full tier."""
        if not self.refresh_j or not self.refresh_interval_s:
            return 0.0
        opposite = {"low": "high", "high": "low"}.get(end, end)
        return float(getattr(self.refresh_j, end) / getattr(self.refresh_interval_s, opposite))


@dataclass(frozen=True, kw_only=True)
class Link:
    """What lies between two tiers, or between the devices of one (source = target: collectives)."""

    source_tier: str
    target_tier: str
    peak_bytes_per_s: Sourced  # one direction
    efficiency_frac: Sourced
    latency_s: Sourced
    energy_pj_per_bit: Sourced
    pins_per_channel: Sourced | None = None  # lanes, one direction
    bit_per_s_per_pin: Sourced | None = None


@dataclass(frozen=True, kw_only=True)
class HardwareSpec:
    """A machine that runs a model on `engine` from `tiers[fast]` and, where there is one, fetches from `tiers[backing]`."""

    name: str
    title: str
    engine: str  # the engine that experts run on
    dtype: str  # key of its ops_per_s
    fast: str
    engines: dict[str, Engine]
    tiers: dict[str, MemTier]
    sha256: str
    static_w: Sourced  # drawn all the time
    roles: Roles  # which tier and engine does what
    backing: str = ""
    links: dict[str, Link] = field(default_factory=dict)
    n_devices: int = 1
    # Replicas of attention and dense layers among the devices; the others share layers (tensor parallelism).
    data_parallel: int = 1
    expert_parallel: bool = False  # every device holds whole experts, its share of them; else a part of each
    idle_w: Sourced | None = None
    max_w: Sourced | None = None
    area_mm2: Sourced | None = None
    host: dict[str, Sourced] = field(default_factory=dict)  # seconds of the host that a device waits for, by HOST
    measured_as: str = ""  # the `device` of measured operator tables, e.g. NVIDIA A100-SXM4-80GB

    def numbers(self) -> list[tuple[str, Sourced]]:
        """Every sourced number with its dotted key, for tables of sources."""
        return list(numbers(self))

    @property
    def assumed(self) -> list[str]:
        """Keys of the numbers that rest on an assumption, in whole or at an end of their range."""
        return [key for key, number in self.numbers() if number.is_assumed]

    @property
    def tensor_parallel(self) -> int:
        """Devices that share a layer."""
        return self.n_devices // self.data_parallel

    @property
    def compute(self) -> Engine:
        """The engine experts run on."""
        return self.engines[self.engine]

    def link(self, source_tier: str, target_tier: str) -> tuple[str, Link] | None:
        """The link from one tier to another, with its name; None where they touch."""
        ends = (source_tier, target_tier)
        return next(((name, link) for name, link in self.links.items() if (link.source_tier, link.target_tier) == ends), None)


COUNTS = tuple(f.name for f in fields(HardwareSpec) if f.type == "int")


@lru_cache(maxsize=1)
def shipped() -> tuple[str, ...]:
    """Names of the machines that come with the project."""
    return tuple(sorted(path.stem for path in SPECS.glob("*.toml")))


def load(name_or_path: str) -> HardwareSpec:
    """A shipped or an installed machine by name, or a user's own by the path of its TOML file. Raises BadSpec."""
    path = find(name_or_path)
    spec = (_kept if path.parent == SPECS else _of_file)(path)
    if spec.name in shipped() and path.resolve().parent != SPECS.resolve():
        raise BadSpec(f"{path}: name = {spec.name!r} is that of a shipped machine; give it a name of its own")
    if name_or_path in installed() and spec.name != name_or_path:
        raise BadSpec(f"{path}: name = {spec.name!r}, but its entry point is called {name_or_path}; call both the same")
    return spec


def _of_file(path: Path) -> HardwareSpec:
    merged, sha256 = _read(path, [])
    return _spec(merged, str(path), sha256)


_kept = cache(_of_file)


def with_values(machine: HardwareSpec, values: Mapping[str, float]) -> HardwareSpec:
    """The machine with other numbers, without ranges, by the dotted keys of its file: {"tiers.kv.peak_bytes_per_s": 128e9}.

    Raises BadSpec for a key that is no number of this machine's, and for a number that no machine has, but for an endless one.
    """
    for key, value in values.items():
        _check_number(key, exact(float(value), "set for this run"), machine.name)
        machine = _changed(machine, key.split("."), float(value), f"{machine.name}: {key}")
    told = repr(sorted((key, float(value)) for key, value in values.items())) if values else ""
    return replace(machine, sha256=hashlib.sha256(f"{machine.sha256}{told}".encode()).hexdigest()) if told else machine


def _changed(of: Any, names: list[str], value: float, where: str) -> Any:
    if not names and isinstance(of, Sourced):
        return exact(value, "set for this run")
    inner = (of.get(names[0]) if isinstance(of, dict) else getattr(of, names[0], None)) if names else None
    if inner is None or isinstance(of, Sourced):
        raise BadSpec(f"{where} is no number of this machine; `tokentape hardware show` lists them")
    made = _changed(inner, names[1:], value, where)
    return {**of, names[0]: made} if isinstance(of, dict) else replace(of, **{names[0]: made})


@lru_cache(maxsize=1)
def installed() -> dict[str, EntryPoint]:
    """Machines of installed packages, by name: entry points of group `tokentape.machines`, each the path of a TOML file."""
    return {point.name: point for point in entry_points(group="tokentape.machines")}


def find(name_or_path: str) -> Path:
    """The file of a shipped or an installed machine, or of a path. Raises BadSpec naming the nearest one."""
    path = Path(name_or_path)
    if path.suffix == ".toml":
        if not path.is_file():
            raise BadSpec(f"{path}: no such hardware file; shipped machines: {', '.join(shipped())}")
        return path
    if name_or_path in shipped():
        return SPECS / f"{name_or_path}.toml"
    if name_or_path in installed():
        return _file_of(installed()[name_or_path])
    raise unknown("hardware", name_or_path, shipped(), tuple(installed()))


def _file_of(point: EntryPoint) -> Path:
    where = f"entry point {point.name} = {point.value}"
    try:
        path = Path(point.load())
    except Exception as error:
        raise BadSpec(f"{where}: not the path of a TOML file: {type(error).__name__}: {error}") from error
    if not path.is_file():
        raise BadSpec(f"{where}: no such hardware file {path}")
    return path


def _read(path: Path, above: list[Path]) -> tuple[dict[str, Any], str]:
    """The file merged onto its bases, sections built with the source of the file that holds them; and the hash of all of it."""
    if any(path.samefile(one) for one in above):
        circle = " -> ".join(one.name for one in [*above, path])
        raise BadSpec(f"{path}: base runs in a circle ({circle}); let one of them do without a base, or take a shipped one")
    data, sha256 = parsed(path, "hardware file", shipped())
    base, source = data.pop("base", None), data.pop("source", "")
    data = {key: value if key in COUNTS else _with_sources(value, source) for key, value in data.items()}
    if base is None:
        return data, sha256
    below, base_sha256 = _read(_base(path, base), [*above, path])
    return _merged(below, data), hashlib.sha256(f"{base_sha256}{sha256}".encode()).hexdigest()


def _base(path: Path, base: Any) -> Path:
    """The file that `base` of the file at `path` means: one beside it, one by its path, or a shipped machine's."""
    if not isinstance(base, str):
        raise BadSpec(f"{path}: base must be a shipped machine's name or the path of a .toml file, found {base!r}")
    beside = path.parent / base
    try:
        return beside if base.endswith(".toml") and beside.is_file() else find(base)
    except BadSpec as error:
        raise BadSpec(f"{path}: base: {error}") from error


def _with_sources(value: Any, source: str) -> Any:
    """Writes the file's source into every number that has none, so that it survives a merge."""
    if isinstance(value, dict):
        if "value" in value:
            return {"source": source, **value} if source else value
        return {key: _with_sources(inner, source) for key, inner in value.items()}
    return {"value": value, "source": source} if type(value) in (int, float) and source else value


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """`above` laid over `below`, table by table; a number replaces a number as a whole, a timing the share that was given."""
    merged = dict(below)
    if {"timing", "address_map"} & above.keys():  # of a tier: what says its share of the peak anew
        merged.pop("efficiency_frac", None)
    for key, value in above.items():
        is_table = isinstance(value, dict) and "value" not in value and isinstance(below.get(key), dict)
        merged[key] = _merged(below[key], value) if is_table else value
    return merged


def _spec(data: dict[str, Any], where: str, sha256: str) -> HardwareSpec:
    sections = {
        "engines": _table(data, "engines", where),
        "tiers": {k: _tier(v, f"{where}: tiers.{k}") for k, v in _table(data, "tiers", where).items()},
        "links": _table(data, "links", where, may_be_empty=True),
    }
    roles = data.pop("roles", {})
    spec: HardwareSpec = build(HardwareSpec, {**data, **sections}, where, besides=BESIDES, sha256=sha256, roles=None)
    _check_names(spec, where)
    places = roles_of(roles, spec.engine, spec.fast, spec.backing, list(spec.engines), list(spec.tiers), where)
    spec = replace(spec, roles=places)
    _check_values(spec, where)
    return spec


def _table(data: dict[str, Any], key: str, where: str, may_be_empty: bool = False) -> dict[str, Any]:
    table = data.get(key, {})
    if not isinstance(table, dict):
        raise BadSpec(f"{where}: {key} must be tables [{key}.<name>], found {table!r}")
    if not table and not may_be_empty:
        raise BadSpec(f"{where}: table [{key}.<name>] is missing")
    return table


def _tier(data: Any, where: str) -> MemTier:
    """A tier; with a timing preset and no efficiency of its own, the efficiency is that of streaming in closed form."""
    if isinstance(data, dict) and "timing" in data:
        data = {"efficiency_frac": _streaming(data, where), **data}
    tier: MemTier = build(MemTier, data, where)
    if tier.kind not in KINDS:
        raise BadSpec(f"{where}: kind = {tier.kind!r}; known: {', '.join(KINDS)}")
    return tier


def _streaming(tier: dict[str, Any], where: str) -> dict[str, Any]:
    """The share of its peak that a tier with a timing preset streams at; the band spans both address maps."""
    name, chosen = tier["timing"], tier.get("address_map", MemTier.address_map)
    if not isinstance(name, str):
        raise BadSpec(f"{where}: timing must be text, found {name!r}")
    if chosen not in dram.ADDRESS_MAPS:
        raise BadSpec(f"{where}: address_map = {chosen!r}; known: {', '.join(dram.ADDRESS_MAPS)}")
    try:
        by_map = {address_map: dram.stream_frac(dram.timing(name), address_map) for address_map in dram.ADDRESS_MAPS}
    except BadSpec as error:
        raise BadSpec(f"{where}: timing: {error}") from error
    ends = {"value": by_map[chosen], "low": min(by_map.values()), "high": max(by_map.values())}
    return {**ends, "source": f"closed form of hw/dram.py on {name}, both address maps"}


def _check_names(spec: HardwareSpec, where: str) -> None:
    """Raises BadSpec where a name points nowhere, and for a machine whose own is no word: '' is that of a run without one."""
    if not spec.name.strip() or not spec.name.isprintable():
        raise BadSpec(f"{where}: name = {spec.name!r} must be a word or more, in one line")
    tiers = ", ".join(spec.tiers)
    pointers = [("fast", spec.fast), *((f"links.{k}: source_tier", v.source_tier) for k, v in spec.links.items())]
    pointers += [(f"links.{k}: target_tier", v.target_tier) for k, v in spec.links.items()]
    pointers += [("backing", spec.backing)] if spec.backing else []
    pointers += [(f"engines.{k}: memory", v.memory) for k, v in spec.engines.items() if v.memory]
    for key, tier in pointers:
        if tier not in spec.tiers:
            raise BadSpec(f"{where}: {key} = {tier!r} is not one of the tiers {tiers}")
    if spec.engine not in spec.engines:
        raise BadSpec(f"{where}: engine = {spec.engine!r} is not one of the engines {', '.join(spec.engines)}")
    if spec.dtype not in spec.compute.ops_per_s:
        known = ", ".join(spec.compute.ops_per_s)
        raise BadSpec(f"{where}: dtype = {spec.dtype!r} is not in engines.{spec.engine}.ops_per_s ({known})")


def _check_number(key: str, number: Sourced, where: str) -> None:
    """Raises BadSpec on a number below 0, a share above 1 and where there is no rate or capacity."""
    if key.endswith("_frac") and number.high > 1.0:
        raise BadSpec(f"{where}: {key} exceeds 1 ({number.high}); it is a share of the peak")
    if not number.low >= 0.0:
        raise BadSpec(f"{where}: {key} = {number.low} must be a number from 0 on")
    if any(word in key for word in ABOVE_ZERO) and number.low == 0.0:
        raise BadSpec(f"{where}: {key} must be above 0")
    if MOST < number.high < inf:
        raise BadSpec(f"{where}: {key} = {number.high:g} is no machine's; {MOST:g} is the most")
    if any(word in key for word in RATES) and number.high < SLOWEST:
        raise BadSpec(f"{where}: {key} = {number.value:g} a second is no machine's; write 400 GB/s as 400e9, 1.8 GHz as 1.8e9")


def _check_values(spec: HardwareSpec, where: str) -> None:
    """Raises BadSpec on values that no machine can have."""
    for key, number in spec.numbers():
        _check_number(key, number, where)
    if spec.n_devices % spec.data_parallel:
        raise BadSpec(f"{where}: data_parallel = {spec.data_parallel} does not divide n_devices = {spec.n_devices}")
    tables = [("host", spec.host, HOST), *((f"engines.{k}.launch_s", v.launch_s, LAUNCHES) for k, v in spec.engines.items())]
    for name in ("ops_per_s", "macs_per_unit"):
        tables += [(f"engines.{k}.{name}", getattr(v, name), DTYPES) for k, v in spec.engines.items()]
    for key, table, known in tables:
        if unknown_keys := sorted(table.keys() - set(known)):
            raise BadSpec(f"{where}: {key}: unknown key {unknown_keys[0]!r}; known: {', '.join(known)}")
    _check_roles(spec, where)
    _check_links(spec, where)
    roles = spec.roles
    if roles.kv_cache and roles.kv_cache in (roles.expert_cache, roles.weights_home):
        raise BadSpec(
            f"{where}: roles.kv_cache = {roles.kv_cache!r} holds experts or weights too, and keys and values would have all "
            f"of it; give them a tier of their own, or roles.kv_home = {roles.kv_cache!r} in its place"
        )
    for name, engine in spec.engines.items():
        if spec.dtype not in engine.ops_per_s and len(engine.ops_per_s) != 1:
            has = ", ".join(engine.ops_per_s) or "nothing"
            raise BadSpec(f"{where}: engines.{name}.ops_per_s has {has} and not the machine's dtype, {spec.dtype}; add it")
        for dtype, rate in engine.ops_per_s.items():
            bound = engine.bound_ops_per_s(dtype)
            if bound is not None and rate.value > bound * ROUNDING:
                raise BadSpec(
                    f"{where}: engines.{name}.ops_per_s.{dtype} = {rate.value:g} is above units x MACs x 2 x clock = {bound:g}; "
                    "correct one of them"
                )
    for group, members in (("tiers", spec.tiers), ("links", spec.links)):
        for name, member in members.items():
            _check_pins(member, f"{where}: {group}.{name}")
    for name, tier in spec.tiers.items():
        for key, other in TOGETHER.items():
            if getattr(tier, key) and not getattr(tier, other):
                raise BadSpec(f"{where}: tiers.{name}: {key} counts for nothing without {other}; give both, or neither")
        if tier.address_map != MemTier.address_map and not tier.timing:
            raise BadSpec(
                f"{where}: tiers.{name}: address_map = {tier.address_map!r} is that of a timing; give one, or leave it out"
            )


def _check_roles(spec: HardwareSpec, where: str) -> None:
    """Raises BadSpec on an engine or tier at the top of a file that [roles], which stay as a base's are, leave without a role."""
    roles = {role: name for role in (*ENGINE_ROLES, *TIER_ROLES) if (name := spec.roles.of(role))}
    for key in ("engine", "fast", "backing"):
        if (name := getattr(spec, key)) and name not in roles.values():
            listed = ", ".join(f"{role} {at}" for role, at in roles.items())
            raise BadSpec(f"{where}: {key} = {name!r} has no role ({listed}); say in [roles] which of them it takes over")
    for role in ("weights_home", "kv_home", "draft_home"):
        if (name := spec.roles.of(role)) and name not in spec.roles.reads:
            remedy = f"name it there where {spec.roles.main} computes from it in place, since experts alone are fetched"
            raise BadSpec(f"{where}: roles.{role} = {name!r} is not one of roles.reads ({', '.join(spec.roles.reads)}); {remedy}")
    if (near := spec.roles.near_compute) and not spec.engines[near].memory and spec.fast != spec.roles.expert_home:
        raise BadSpec(f"{where}: engines.{near}.memory is not given, and so {spec.fast}; experts lie in {spec.roles.expert_home}")
    if spec.roles.expert_cache == spec.roles.expert_home:
        raise BadSpec(f"{where}: roles.expert_home and expert_cache are both {spec.roles.expert_home}: nothing would be fetched")


def _check_links(spec: HardwareSpec, where: str) -> None:
    """Raises BadSpec on a link that nothing would cross while experts are moved without one, and where none joins the devices."""
    home, cache, peer = spec.roles.expert_home, spec.roles.expert_cache, spec.roles.peer
    first = {(link.source_tier, link.target_tier): name for name, link in reversed(spec.links.items())}
    for name, link in spec.links.items():
        ends = (link.source_tier, link.target_tier)
        if first[ends] != name and (ends[0] != ends[1] or ends[0] == peer):
            raise BadSpec(f"{where}: links.{name} has the ends of links.{first[ends]}, which alone would count; leave one out")
        is_other = ends[0] != ends[1] and ends != (spec.roles.kv_home, spec.roles.kv_cache)
        if cache and (home, cache) not in first and is_other and {home, cache} & {*ends}:
            told = f"links.{name} goes from {ends[0]} to {ends[1]}; experts are moved from {home} to {cache}"
            raise BadSpec(f"{where}: {told}, which no link joins: give it those ends")
    if spec.n_devices > 1 and peer and (peer, peer) not in first:
        raise BadSpec(
            f"{where}: no link joins the {spec.n_devices} devices; give one from {peer} to {peer}, or roles.peer = '' for none"
        )


def _check_pins(member: MemTier | Link, where: str) -> None:
    if member.pins_per_channel is None or member.bit_per_s_per_pin is None:
        return
    n_channels = member.n_channels.value if isinstance(member, MemTier) and member.n_channels else 1.0
    bound = n_channels * member.pins_per_channel.value * member.bit_per_s_per_pin.value / 8.0
    if member.peak_bytes_per_s.value > bound * ROUNDING:
        raise BadSpec(
            f"{where}: peak_bytes_per_s = {member.peak_bytes_per_s.value:g} is above channels x pins x rate / 8 = {bound:g}; "
            "correct one of them"
        )
