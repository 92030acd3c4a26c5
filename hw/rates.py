"""What one row of work costs on a machine: seconds and joules per byte, per operation and per count, by the roles it names."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from tokentape.hw.profile import Lane
from tokentape.hw.sourced import Sourced
from tokentape.hw.spec import Engine, HardwareSpec, Link, MemTier
from tokentape.hw.work import Rows

OPPOSITE = {"value": "value", "low": "high", "high": "low"}
_ATTENDING = ("attend", "kv_read", "kv_write")
LAUNCH_CLASS = {"elementwise": "elementwise", "expert": "experts", **dict.fromkeys(_ATTENDING, "attention")}  # others: gemm


@dataclass(frozen=True)
class Rates:
    """Of rows of one kind in one lane at one end of the machine's ranges; all devices together.

    busy_s_per_byte: by what the bytes occupy; j_per_byte: by what spends it; engine: what computes, "" where nothing does. All
    are keys of the machine's file: tiers.hbm, links.pcie, engines.sm.
    """

    s_per_byte: float = 0.0
    s_per_op: float = 0.0
    each_s: float = 0.0
    j_per_byte: Mapping[str, float] = field(default_factory=dict)
    j_per_op: float = 0.0
    busy_s_per_byte: Mapping[str, float] = field(default_factory=dict)
    engine: str = ""

    def part(self, name: str) -> "Rates":
        """What the rows' bytes, ops or fixed alone ask of resources; "": all of them."""
        busy = self.busy_s_per_byte if name == "bytes" else {}
        return replace(self, busy_s_per_byte=busy, engine=self.engine if name == "ops" else "") if name else self


def rates_of(machine: HardwareSpec, rows: Rows, lane: Lane, end: str) -> Rates:
    """The rates of these rows; `end`: value, low (favourable) or high (worst).

    Raises ValueError where the rows name a role that the machine lacks: whoever emitted them had to ask.
    """
    engine, tier = _engine(machine, rows), _tier(machine, rows.tier) if rows.tier else None
    each_s = lane.each_s
    if each_s is None and rows.kind in ("layer", "step"):
        each_s = at(machine.host.get(f"{rows.kind}_s"), end)
    if each_s is None and rows.kind == "feed" and engine is not None:
        each_s = 1.0 / at(engine.feed_values_per_s, OPPOSITE[end]) if engine.feed_values_per_s else 0.0
    s_per_op = j_per_op = 0.0
    if engine is not None:
        s_per_op = 1.0 / (_ops_per_s(machine, engine, lane.dtype or rows.dtype, lane, end) * machine.n_devices)
        j_per_op = lane.j_per_op if lane.j_per_op is not None else 1e-12 * at(engine.energy_pj_per_op, end)
        if each_s is None and not rows.target:
            each_s = at(engine.launch_s.get(LAUNCH_CLASS.get(rows.kind, "gemm")), end)
    name = f"engines.{machine.roles.of(rows.engine)}" if engine is not None else ""
    if tier is None:
        return Rates(0.0, s_per_op, each_s or 0.0, {}, j_per_op, {}, name)
    link = _link(machine, rows)
    paths = {_key(machine, rows.tier): _bytes_per_s(machine, tier, lane, end, engine)}
    if rows.target and link is not None:
        if lane.link_only:
            paths = {}
        frac = lane.bytes_frac if lane.bytes_frac is not None else at(link[1].efficiency_frac, OPPOSITE[end])
        paths[link[0]] = at(link[1].peak_bytes_per_s, OPPOSITE[end]) * frac
    slowest = min(paths.values()) if paths else np.inf
    if each_s is None and rows.target:
        each_s = (0.0 if lane.link_only else at(tier.latency_s, end)) + (at(link[1].latency_s, end) if link else 0.0)
    busy = {name: 1.0 / (rate * machine.n_devices) for name, rate in paths.items()}  # a slow link leaves its tier time for others
    if rows.target and rows.kind in ("fetch", "prefetch"):  # what is fetched is written there
        busy[_key(machine, rows.target)] = 1.0 / (
            _bytes_per_s(machine, _tier(machine, rows.target), lane, end, None) * machine.n_devices
        )
    joules = {} if lane.no_energy else _joules(machine, rows, lane, end, link)
    return Rates(1.0 / (slowest * machine.n_devices), s_per_op, each_s or 0.0, joules, j_per_op, busy, name)


def at(number: Sourced | None, end: str) -> float:
    """A number of the machine at an end of its range; 0 for one that its file does not give."""
    return float(getattr(number, end)) if number is not None else 0.0


def stream_pj_per_bit(tier: MemTier, end: str) -> float:
    """Energy of a streamed bit: the read, and its share of opening a row where the file keeps that apart."""
    if tier.activate_nj is None or tier.row_bytes is None:
        return at(tier.read_pj_per_bit, end)
    return at(tier.read_pj_per_bit, end) + 1e3 * at(tier.activate_nj, end) / (8.0 * at(tier.row_bytes, OPPOSITE[end]))


def _engine(machine: HardwareSpec, rows: Rows) -> Engine | None:
    if not rows.engine:
        return None
    name = machine.roles.of(rows.engine)
    if not name:
        raise ValueError(f"{machine.name} has no {rows.engine}, and rows of kind {rows.kind} name it")
    return machine.engines[name]


def _tier(machine: HardwareSpec, role: str) -> MemTier:
    name = machine.roles.of(role)
    if not name:
        raise ValueError(f"{machine.name} has no {role}, and rows of work name it")
    return machine.tiers[name]


def _key(machine: HardwareSpec, role: str) -> str:
    return f"tiers.{machine.roles.of(role)}"


def _link(machine: HardwareSpec, rows: Rows) -> tuple[str, Link] | None:
    """The link that moved bytes cross, with its name; None where the tiers touch."""
    found = machine.link(machine.roles.of(rows.tier), machine.roles.of(rows.target)) if rows.target else None
    return (f"links.{found[0]}", found[1]) if found else None


def _ops_per_s(machine: HardwareSpec, engine: Engine, given: str, lane: Lane, end: str) -> float:
    dtype = given if given in engine.ops_per_s else machine.dtype
    peak = at(engine.ops_per_s.get(dtype) or next(iter(engine.ops_per_s.values())), OPPOSITE[end])
    if lane.macs_only:
        peak = engine.mac_ops_per_s(dtype, OPPOSITE[end]) or peak
    frac = lane.ops_frac if lane.ops_frac is not None else at(engine.efficiency_frac, OPPOSITE[end])
    return peak * frac


def _bytes_per_s(machine: HardwareSpec, tier: MemTier, lane: Lane, end: str, engine: Engine | None) -> float:
    """What one device reads from a tier: in-memory compute sees more of its own memory than the pins carry."""
    peak = tier.peak_bytes_per_s
    if engine is not None and engine.memory_bytes_per_s is not None and _is_own(machine, engine, tier):
        peak = engine.memory_bytes_per_s
    frac = lane.bytes_frac if lane.bytes_frac is not None else at(tier.efficiency_frac, OPPOSITE[end])
    return at(peak, OPPOSITE[end]) * frac


def _is_own(machine: HardwareSpec, engine: Engine, tier: MemTier) -> bool:
    return machine.tiers[engine.memory or machine.fast] is tier


def _joules(machine: HardwareSpec, rows: Rows, lane: Lane, end: str, link: tuple[str, Link] | None) -> dict[str, float]:
    """Joules per byte: the read, and for a transfer the link and the write."""
    source = _key(machine, rows.tier)
    if lane.j_per_byte is not None:
        return {source: lane.j_per_byte}
    found = {link[0]: 8e-12 * at(link[1].energy_pj_per_bit, end)} if link else {}
    if rows.target and lane.link_only:
        return found
    tier = _tier(machine, rows.tier)
    engine = _engine(machine, rows)
    if rows.kind == "kv_write":
        of_source = at(tier.write_pj_per_bit, end)
    elif engine is not None and engine.read_pj_per_bit is not None and _is_own(machine, engine, tier):
        of_source = at(engine.read_pj_per_bit, end)
    else:
        of_source = stream_pj_per_bit(tier, end)
    found[source] = found.get(source, 0.0) + 8e-12 * of_source
    if rows.target:
        target = _key(machine, rows.target)
        found[target] = found.get(target, 0.0) + 8e-12 * at(_tier(machine, rows.target).write_pj_per_bit, end)
    return found
