"""Work on a machine under a profile: seconds, joules by part, and how long each resource is busy, of many steps at once.

The only place where seconds and joules come from. Every result is a band: nominal, favourable and worst end of the machine's
ranges (and of the profile's overlap, where it has another at an end). Joules: bytes x path, operations (however wide) x engine,
and power x seconds.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

import numpy as np

from tokentape.hw.calibrate import Fit, gpu_of
from tokentape.hw.profile import ENDS, Lane, Profile
from tokentape.hw.rates import Rates, at, rates_of
from tokentape.hw.spec import HardwareSpec
from tokentape.hw.work import Floats, Rows, Values, Work

BACKGROUND = "background"
Demand = dict[str, Floats]  # resource -> seconds


@dataclass(frozen=True, eq=False)
class Band:
    """value, low, high: (n,) f64: nominal, and at the favourable and the worst end of the ranges."""

    value: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True, eq=False)
class StepCost:
    """Of n steps; what is not asked for is not computed."""

    seconds: Band
    work: Work
    all_rows: tuple[tuple[Work, Rows], ...]  # with those of what it was clocked on
    profile: Profile
    at_end: dict[str, _End]

    @cached_property
    def rows_s(self) -> dict[int, Floats]:
        """Id of rows -> nominal (steps, blocks) seconds by themselves."""
        return self.at_end["value"].rows_s

    @cached_property
    def joules_of(self) -> dict[str, Band]:
        """By what the joules are the sum of: tiers and links (bytes), engines (operations), background (power)."""
        return self._bands(lambda end: self.at_end[end].joules()) | {BACKGROUND: _sum_of(self.background_of)}

    @cached_property
    def background_of(self) -> dict[str, Band]:
        """Static power, leakage and refresh."""
        return self._bands(lambda end: self.at_end[end].background_j(getattr(self.seconds, end)))

    @cached_property
    def joules(self) -> Band:
        """All of them."""
        return _sum_of(self.joules_of)

    @cached_property
    def busy_s(self) -> dict[str, Band]:
        """By tier, link and engine."""
        return self._bands(lambda end: self.at_end[end].busy_s())

    @cached_property
    def uncounted(self) -> dict[str, tuple[float, float]]:
        """Kind -> (bytes, operations) that no lane takes."""
        found: dict[str, tuple[float, float]] = {}
        for work, rows in self.all_rows:
            if self.profile.lane_of(rows) is not None:
                continue
            moved = _moved(rows, self.profile)
            n_bytes, ops = (float(work.total(work.by_cell(rows, values)).sum()) for values in (moved, rows.ops))
            before = found.get(rows.kind, (0.0, 0.0))
            found[rows.kind] = (before[0] + n_bytes, before[1] + ops)
        return found

    def _bands(self, at: Callable[[str], Mapping[str, Floats]]) -> dict[str, Band]:
        by_end, zero = {end: at(end) for end in self.at_end}, np.zeros(self.work.n_steps)
        told = [by_end.get(end, by_end["value"]) for end in ENDS]
        return {name: Band(*(of.get(name, zero) for of in told)) for name in by_end["value"]}


def _sum_of(bands: Mapping[str, Band]) -> Band:
    return Band(*(reduce(np.add, (getattr(band, end) for band in bands.values())) for end in ENDS))


@dataclass(frozen=True, eq=False)
class Prepared:
    """Lanes of work that many steps share (`prepare`), on which `clock` puts more rows."""

    work: Work
    ends: dict[str, _End]


def prepare(
    work: Work, machine: HardwareSpec, profile: Profile, fits: Mapping[str, Fit] | None = None, ends: Sequence[str] = ENDS
) -> Prepared:
    """The work's lanes, for clock(..., on=...): what replays of one tape on one machine have in common is priced once."""
    tallies = [_Tally(work, rows, lane, profile) for rows in work.rows if (lane := profile.lane_of(rows))]
    made = {end: _End(work, machine, profile, fits or {}, tallies, end) for end in ends}
    for parts in (parts for end in made.values() for parts in end.parts.values()):
        parts.update({name: work.apart(values) for name, values in parts.items()})
    return Prepared(work, made)


def clock(
    work: Work,
    machine: HardwareSpec,
    profile: Profile,
    fits: Mapping[str, Fit] | None = None,
    on: Prepared | None = None,
    ends: Sequence[str] = ENDS,
) -> StepCost:
    """Costs the steps. fits: the machine's fitted operators by name, for lanes that take them. on: work of the same steps,
    blocks, machine, profile and fits that comes with it. ends: those that are asked for, the nominal one first; the others of a
    band are then nominal too."""
    tallies = [_Tally(work, rows, lane, profile) for rows in work.rows if (lane := profile.lane_of(rows))]
    below = on.ends if on else {}
    at_end = {end: _End(work, machine, profile, fits or {}, tallies, end, below.get(end)) for end in ends}
    seconds = {end: of.seconds() for end, of in at_end.items()}
    all_rows = tuple((of, rows) for of in ((on.work, work) if on else (work,)) for rows in of.rows)
    band = Band(*(seconds.get(end, seconds["value"]) for end in ENDS))
    return StepCost(band, work, all_rows, profile, at_end)


def _moved(rows: Rows, profile: Profile) -> Floats:
    """The bytes that the profile counts."""
    stored = np.asarray(rows.bytes, np.float64)
    return stored + rows.activation_bytes if profile.activations else stored


class _Tally:
    """Rows of one lane, summed by cell where no end of a range can change the sums."""

    def __init__(self, work: Work, rows: Rows, lane: Lane, profile: Profile) -> None:
        self.work, self.rows, self.lane = work, rows, lane
        self.bytes, self.ops = _moved(rows, profile), np.asarray(rows.ops, np.float64)  # as time sees them
        self.moved = self.cell_bytes = work.by_cell(rows, self.bytes)  # as energy and as time sees them
        self.computed = self.cell_ops = work.by_cell(rows, self.ops)
        if lane.bytes_frac_per_stream and lane.bytes_frac is not None:
            streams = np.maximum(rows.streams, 1.0)
            self.bytes = self.bytes * np.maximum(1.0, lane.bytes_frac / (lane.bytes_frac_per_stream * streams))
            self.cell_bytes = work.by_cell(rows, self.bytes)
        if lane.ops_by_bits:
            self.ops = self.ops * np.asarray(rows.bits) / 16.0
            self.cell_ops = work.by_cell(rows, self.ops)
        self.cell_count = work.by_cell(rows, rows.count) if lane.per == "pool" and np.any(rows.count) else None
        self.priced_as = (lane.name, rows.kind, rows.tier, rows.target, rows.engine)
        self.totals: dict[str, Floats] = {}
        self.fitted_s: Floats | None = None  # by the fitted operator, which has no ends: (steps, blocks)

    def total(self, name: str) -> Floats:
        """(steps,) sums of moved, computed, cell_bytes or cell_ops, the same at every end."""
        if name not in self.totals:
            self.totals[name] = self.work.total(getattr(self, name))
        return self.totals[name]


class _End:
    """The lanes of the work at one end of the machine's ranges: (steps, blocks) seconds, and the demand on every resource."""

    def __init__(
        self,
        work: Work,
        machine: HardwareSpec,
        profile: Profile,
        fits: Mapping[str, Fit],
        tallies: list[_Tally],
        end: str,
        on: _End | None = None,
    ) -> None:
        self.work, self.machine, self.profile, self.fits, self.end = work, machine, profile, fits, end
        self.gpu = gpu_of(machine) if fits else None
        rates = {tally.priced_as: tally for tally in tallies}
        found = {key: rates_of(machine, tally.rows, tally.lane, end) for key, tally in rates.items()}
        self.tallies = [(tally, found[tally.priced_as]) for tally in tallies]
        self.on, self._demands = on, dict[str, Demand]()
        # Of pooled lanes bytes, operations and counts, of the others the seconds of their rows.
        self.parts: dict[str, dict[str, Floats]] = {lane.name: dict(on.parts[lane.name]) if on else {} for lane in profile.lanes}
        self.of_rows = {id(tally.rows): (tally.lane, self._add(tally, rates)) for tally, rates in self.tallies}
        self.all_tallies = self.tallies + (on.tallies if on else [])
        if on:
            self.of_rows |= on.of_rows
        self.lanes = {lane.name: lane for lane in profile.lanes}

    def _add(self, tally: _Tally, rates: Rates) -> dict[str, Floats]:
        """Puts rows into their lane; what of it is theirs."""
        found: dict[str, Floats] = {}
        if tally.lane.per == "item":
            found["item"] = self._items_s(tally, rates)
        else:
            if tally.rows.tier:
                found["bytes"] = tally.cell_bytes * rates.s_per_byte
            if rates.engine:
                found["ops"] = tally.cell_ops * rates.s_per_op
            if tally.cell_count is not None and rates.each_s:
                found["fixed"] = tally.cell_count * rates.each_s
        for part, values in found.items():
            _plus(self.parts[tally.lane.name], part, values)
        return found

    def _demand_of(self, lane: str) -> Demand:
        """What the lane asks of every resource, summed when it is first asked for; nothing where no lane waits for a resource."""
        if lane not in self._demands:
            found = dict(self.on._demand_of(lane)) if self.on else {}
            for tally, rates in self.tallies if self.profile.arbitrate else ():
                if tally.lane.name == lane:
                    for resource, s_per_byte in rates.busy_s_per_byte.items():
                        _plus(found, resource, tally.cell_bytes * s_per_byte)
                    _plus(found, rates.engine, tally.cell_ops * rates.s_per_op if rates.engine else None)
            self._demands[lane] = {resource: self.work.apart(values) for resource, values in found.items()}
        return self._demands[lane]

    def _items_s(self, tally: _Tally, rates: Rates) -> Floats:
        """(steps, blocks) seconds, one row after the other: by the fitted operator, or by the roofline of each."""
        rows, fit = tally.rows, self.fits.get(tally.rows.operator) if tally.lane.operators else None
        if fit is None or self.gpu is None:
            fixed = np.asarray(rows.count, np.float64) * rates.each_s
            seconds = _join(tally.lane.join, tally.bytes * rates.s_per_byte, tally.ops * rates.s_per_op) + fixed
            return self.work.by_cell(rows, seconds)
        if tally.fitted_s is None:
            seconds = np.asarray(fit.seconds(self.gpu, self.work.shapes(rows)))
            tally.fitted_s = self.work.by_cell(rows, seconds.reshape(self.work.size(rows)))
        return tally.fitted_s

    @property
    def rows_s(self) -> dict[int, Floats]:
        """Id of rows -> (steps, blocks) seconds by themselves."""
        return {rows: _pooled(lane, parts) for rows, (lane, parts) in self.of_rows.items()}

    def joules(self) -> dict[str, Floats]:
        """(steps,) joules of what is moved and computed, by tier, link and engine."""
        found: dict[str, Floats] = {}
        for tally, rates in self.all_tallies:
            for part, j_per_byte in rates.j_per_byte.items():
                _plus(found, part, tally.total("moved") * j_per_byte)
            _plus(
                found,
                rates.engine,
                tally.total("computed") * rates.j_per_op if rates.engine and not tally.lane.no_energy else None,
            )
        return found

    def busy_s(self) -> Demand:
        """(steps,) seconds that the steps ask of every resource."""
        found: Demand = {}
        for tally, rates in self.all_tallies:
            for resource, s_per_byte in rates.busy_s_per_byte.items():
                _plus(found, resource, tally.total("cell_bytes") * s_per_byte)
            _plus(found, rates.engine, tally.total("cell_ops") * rates.s_per_op if rates.engine else None)
        return found

    def background_j(self, seconds: Floats) -> dict[str, Floats]:
        """Power times seconds, by what draws it: the machine and its tiers, or what the profile has in their place."""
        watts = background_w(self.machine, self.profile, self.end, self.work.held_bytes)
        return {part: np.asarray(of * seconds) for part, of in watts.items()}

    def seconds(self) -> Floats:
        """(steps,) seconds of the composed step."""
        step = self.profile.step_of(self.end, tuple(name for name, parts in self.parts.items() if parts))
        return np.broadcast_to(self._walk(step, False, False)[0], (self.work.n_steps,))

    def _walk(self, node: ast.expr, is_inside: bool, is_shared: bool) -> tuple[Floats, Demand]:
        """Seconds of a node, (steps, blocks) inside `layers`, (steps,) outside; and its demand where it runs beside another."""
        if isinstance(node, ast.Constant):
            return np.asarray(float(node.value)), {}  # type: ignore[arg-type]
        if isinstance(node, ast.Name | ast.Attribute):
            name = node.id if isinstance(node, ast.Name) else node.value.id  # type: ignore[attr-defined]
            parts = self.parts[name]
            found = _pooled(self.lanes[name], parts) if isinstance(node, ast.Name) else parts.get(node.attr, np.zeros((1, 1)))
            return self._placed(found, self._demand_of(name) if is_shared else {}, is_inside)
        if isinstance(node, ast.BinOp):
            if isinstance(node.op, ast.BitOr):
                beside = [self._walk(of, is_inside, True) for of in _beside(node)]
                demand = reduce(self._sum, (of for _, of in beside))
                return self._together(reduce(np.maximum, (of for of, _ in beside)), demand), demand
            (left, of_left), (right, of_right) = (self._walk(of, is_inside, is_shared) for of in (node.left, node.right))
            return left + right if isinstance(node.op, ast.Add) else left * right, self._sum(of_left, of_right)
        assert isinstance(node, ast.Call)
        assert isinstance(node.func, ast.Name)
        return getattr(self, f"_{node.func.id}")(node.args, is_inside, is_shared)  # type: ignore[no-any-return]

    def _layers(self, nodes: list[ast.expr], is_inside: bool, is_shared: bool) -> tuple[Floats, Demand]:
        seconds, demand = self._walk(nodes[0], True, is_shared)
        return self.work.total(seconds), self._totals(demand)

    def _partial(self, nodes: list[ast.expr], is_inside: bool, is_shared: bool) -> tuple[Floats, Demand]:
        serial, parts = self._walk(nodes[0], is_inside, False)[0], [self._walk(node, is_inside, True) for node in nodes[1:]]
        longest, together = reduce(np.maximum, (s for s, _ in parts)), reduce(np.add, (s for s, _ in parts))
        demand = reduce(self._sum, (d for _, d in parts))
        return self._together(longest + serial * (together - longest), demand), demand

    def _lookahead(self, nodes: list[ast.expr], is_inside: bool, is_shared: bool) -> tuple[Floats, Demand]:
        first, of_first = self._walk(nodes[0], True, True)
        if not np.any(first):  # nothing is told ahead
            return self._layers(nodes[1:], is_inside, is_shared)
        assert self.work.is_once, "what is fetched ahead needs every layer as a block of its own"
        second, of_second = self._walk(nodes[1], True, True)
        none, whole = np.zeros((self.work.n_steps, 1)), (self.work.n_steps, self.work.n_blocks)
        first, second = np.broadcast_to(first, whole), np.broadcast_to(second, whole)
        slots = np.maximum(np.hstack([first, none]), np.hstack([none, second])).sum(axis=1)
        demand = self._totals(self._sum(of_first, of_second))
        return self._together(slots, demand), demand

    def _totals(self, demand: Demand) -> Demand:
        return {resource: self.work.total(values) for resource, values in demand.items()}

    def _placed(self, values: Floats, demand: Demand, is_inside: bool) -> tuple[Floats, Demand]:
        return (values, demand) if is_inside else (self.work.total(values), self._totals(demand))

    def _together(self, seconds: Floats, demand: Demand) -> Floats:
        """No sooner than any one resource is done."""
        return reduce(np.maximum, demand.values(), seconds) if self.profile.arbitrate else seconds

    def _sum(self, a: Demand, b: Demand) -> Demand:
        found = dict(a)
        for resource, values in b.items():
            _plus(found, resource, values)
        return found


def _beside(node: ast.expr) -> list[ast.expr]:
    """All that runs together: of a | b | c the three, so that resources are asked once."""
    is_or = isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)
    return [*_beside(node.left), *_beside(node.right)] if is_or else [node]  # type: ignore[attr-defined]


def background_w(
    machine: HardwareSpec, profile: Profile, end: str = "value", held_bytes: Mapping[str, Values] | None = None
) -> dict[str, Values]:
    """Power by what draws it: the machine and its tiers, or what the profile has in their place. held_bytes: by role, of tiers
    that are refreshed by what they hold."""
    if profile.static_w is not None:
        watts: dict[str, Values] = {"static": profile.static_w, "leakage": 0.0, "refresh": 0.0}
    else:
        leaking = machine.tiers if profile.leakage is None else {machine.roles.of(role) for role in profile.leakage}
        leakage_w = sum(at(tier.leakage_w, end) for name, tier in machine.tiers.items() if name in leaking)
        refresh_w = sum(tier.refresh_w(end) for tier in machine.tiers.values()) if not profile.refresh else 0.0
        watts = {
            "static": at(machine.static_w, end),
            "leakage": leakage_w * machine.n_devices,
            "refresh": refresh_w * machine.n_devices,
        }
    for role, refresh in profile.refresh.items():
        tier = machine.tiers.get(refresh.tier or machine.roles.of(role))
        if tier is None or not tier.refresh_j or not tier.refresh_interval_s:
            continue
        capacity = at(tier.capacity_bytes, "value")
        filled = np.minimum(np.asarray((held_bytes or {}).get(role, 0.0)), capacity) / capacity
        watts["refresh"] = watts["refresh"] + filled * tier.refresh_w(end)
    return watts


def _pooled(lane: Lane, parts: Mapping[str, Floats]) -> Floats:
    """Seconds of a lane by what it sums."""
    none = np.zeros((1, 1))
    if lane.per == "item":
        return parts.get("item", none)
    if lane.join == "max" and not {"bytes", "ops"} <= parts.keys():
        joined = parts.get("bytes", parts.get("ops", none))
    else:
        joined = _join(lane.join, parts.get("bytes", none), parts.get("ops", none))
    return joined + parts["fixed"] if "fixed" in parts else joined


def _plus(sums: dict[str, Floats], name: str, values: Floats | None) -> None:
    if values is not None:
        sums[name] = sums[name] + values if name in sums else values


def _join(how: str | tuple[str, float], memory: Floats, compute: Floats) -> Floats:
    if how == "max":
        return np.maximum(memory, compute)
    if how == "sum":
        return memory + compute
    if how in ("bytes", "ops"):
        return memory if how == "bytes" else compute
    return np.asarray((memory ** how[1] + compute ** how[1]) ** (1.0 / how[1]))  # type: ignore[operator]


def power_findings(spec: HardwareSpec, power_w: float) -> list[str]:
    """Sentences on a mean power that the machine cannot draw: above `max_w` or below `idle_w`, at the far end of their ranges."""
    findings = []
    if spec.max_w is not None and power_w > spec.max_w.high:
        findings.append(f"mean power {power_w:.3g} W is above {spec.name}'s limit of {spec.max_w.high:g} W")
    if spec.idle_w is not None and power_w < spec.idle_w.low:
        findings.append(f"mean power {power_w:.3g} W is below {spec.name}'s idle power of {spec.idle_w.low:g} W")
    return findings
