"""Work on a machine under a profile: seconds, joules by part, and how long each resource is busy, of many steps at once.

The only place where seconds and joules come from. Every result is a band: nominal, favourable and worst end of the machine's
ranges (and of the profile's overlap, where it has another at an end). Joules: bytes x path, operations (however wide) x engine,
and power x seconds.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from typing import NamedTuple

import numpy as np

from tokentape.hw.calibrate import Fit, gpu_of
from tokentape.hw.profile import ENDS, Lane, Profile, is_sum, lanes_in, side_by_side
from tokentape.hw.rates import Rates, at, rates_of
from tokentape.hw.spec import HardwareSpec
from tokentape.hw.work import Floats, Rows, Values, Work

BACKGROUND = "background"
NONE = np.zeros((1, 1))
Demand = dict[str, Floats]  # resource -> seconds


class Band(NamedTuple):
    """value, low, high: (n,) f64: nominal, and at the favourable and the worst end of the ranges."""

    value: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True, eq=False)
class StepCost:
    """Of n steps; what is not asked for is not computed."""

    work: Work
    all_rows: tuple[tuple[Work, Rows], ...]  # with those of what it was clocked on
    profile: Profile
    at_end: dict[str, _End]

    @cached_property
    def seconds(self) -> Band:
        """Of the composed steps. A fitted operator may reach more of its engine than the machine's favourable end."""
        seconds = {end: of.seconds() for end, of in self.at_end.items()}
        value = seconds["value"]
        return Band(value, np.minimum(seconds.get("low", value), value), np.maximum(seconds.get("high", value), value))

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
            moved = self.profile.moved(rows)
            n_bytes, ops = (float(work.summed(rows, values).sum()) for values in (moved, rows.ops))
            before = found.get(rows.kind, (0.0, 0.0))
            found[rows.kind] = (before[0] + n_bytes, before[1] + ops)
        return found

    def _bands(self, at: Callable[[str], Mapping[str, Floats]]) -> dict[str, Band]:
        by_end, zero = {end: at(end) for end in self.at_end}, np.zeros(self.work.n_steps)
        told = [by_end.get(end, by_end["value"]) for end in ENDS]
        return {name: Band(*(of.get(name, zero) for of in told)) for name in by_end["value"]}


def _sum_of(bands: Mapping[str, Band]) -> Band:
    return Band(*(reduce(np.add, of) for of in zip(*bands.values(), strict=True)))


def clock(
    work: Work,
    machine: HardwareSpec,
    profile: Profile,
    fits: Mapping[str, Fit] | None = None,
    on: StepCost | None = None,
    ends: Sequence[str] = ENDS,
) -> StepCost:
    """Costs the steps. fits: the machine's fitted operators by name, for lanes that take them. on: work of the same steps,
    blocks, machine, profile and fits that comes with it: what replays of one tape on one machine have in common is priced once.
    ends: those that are asked for, the nominal one first; the others of a band are then nominal too."""
    tallies = [_Tally(work, rows, lane, profile) for rows in work.rows if (lane := profile.lane_of(rows))]
    below = on.at_end if on else {}
    at_end = {end: _End(work, machine, profile, fits or {}, tallies, end, below.get(end)) for end in ends}
    all_rows = tuple((of, rows) for of in ((on.work, work) if on else (work,)) for rows in of.rows)
    return StepCost(work, all_rows, profile, at_end)


class _Tally:
    """Rows of one lane, and their sums that no end of a range can change: of what energy sees, moved and computed; and of what
    time sees, bytes, ops and count."""

    def __init__(self, work: Work, rows: Rows, lane: Lane, profile: Profile) -> None:
        self.work, self.rows, self.lane = work, rows, lane
        n_bytes, ops = moved, computed = profile.moved(rows), np.asarray(rows.ops, np.float64)
        if rows.waits:
            n_bytes, ops = profile.moved(rows.waits), np.asarray(rows.waits.ops, np.float64)
        if lane.bytes_frac_per_stream and lane.bytes_frac is not None:
            streams = np.maximum(rows.streams, 1.0)
            n_bytes = n_bytes * np.maximum(1.0, lane.bytes_frac / (lane.bytes_frac_per_stream * streams))
        if lane.ops_by_bits:
            ops = ops * np.asarray(rows.bits) / 16.0
        count = np.asarray(rows.count, np.float64)
        self.values = {"moved": moved, "computed": computed, "bytes": n_bytes, "ops": ops, "count": count}
        self.priced_as = (lane.name, rows.kind, rows.tier, rows.target, rows.engine)
        self.is_counted = bool(np.any(count))
        self._cells, self._totals = dict[int, Floats](), dict[int, Floats]()
        self.fitted_s: Floats | None = None  # of each row by the fitted operator, which has no ends

    def cells(self, name: str) -> Floats:
        """(steps, blocks) sums of values, by name."""
        values = self.values[name]  # one array may go by two names
        if id(values) not in self._cells:
            self._cells[id(values)] = self.work.by_cell(self.rows, values)
        return self._cells[id(values)]

    def total(self, name: str) -> Floats:
        """(steps,) sums of values, by name."""
        values = self.values[name]
        if id(values) not in self._totals:
            is_placed = self.rows.cells is not None or id(values) in self._cells
            self._totals[id(values)] = self.work.total(self.cells(name)) if is_placed else self.work.summed(self.rows, values)
        return self._totals[id(values)]


class _End:
    """The lanes of the work at one end of the machine's ranges: seconds, and the demand on every resource, of (steps, blocks) or,
    all blocks together, of (steps,)."""

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
        self.on, self.lanes, self.own = on, {lane.name: lane for lane in profile.lanes}, {tally.lane.name for tally in tallies}
        self.all_tallies: list[tuple[_Tally, Rates]] = self.tallies + (on.all_tallies if on else [])
        self.there = {tally.lane.name for tally, rates in self.all_tallies if tally.lane.per == "item" or _terms(tally, rates)}
        self._sums = dict[tuple[str, str], Floats]()

    def parts(self, lane: str) -> dict[str, Floats]:
        """(steps, blocks) of a pooled lane the seconds of its bytes, operations and counts, of others those of its rows."""
        found = self.on.apart(self.on.parts(lane)) if self.on else {}
        for tally, rates in self._of(lane, self.tallies):
            for part, values in self._parts_of(tally, rates).items():
                _plus(found, part, values)
        return found

    def total(self, lane: str, part: str = "") -> Floats:
        """(steps,) seconds of a lane by itself, or of its bytes, ops or fixed alone. What joins by a sum is summed before it is
        multiplied."""
        if (lane, part) in self._sums:
            return self._sums[lane, part]
        of, here = self.lanes[lane], self._of(lane, self.all_tallies)
        sums = dict[str, Floats]()
        for tally, rates in here if of.per == "pool" else ():
            for name, values, each_s in _terms(tally, rates):
                _plus(sums, name, tally.total(values) * each_s)
        if part:
            found = sums.get(part, np.zeros(self.work.n_steps))
        elif of.per == "pool" and (of.join in ("sum", "bytes", "ops") or not {"bytes", "ops"} <= sums.keys()):
            found = _pooled(of, sums, np.zeros(1))
        elif self.on and not self._of(lane, self.tallies):
            found = self.on.total(lane)
        elif of.per == "item":
            found = self.on.total(lane) if self.on else np.zeros(self.work.n_steps)
            for tally, rates in self._of(lane, self.tallies):
                found = found + self.work.summed(tally.rows, self._items_s(tally, rates))
        else:
            found = self.work.total(_pooled(of, self.parts(lane)))
        self._sums[lane, part] = found
        return found

    def apart(self, values: Mapping[str, Floats]) -> dict[str, Floats]:
        """Those of blocks that are alike, for each of them."""
        return {name: self.work.apart(of) for name, of in values.items()}

    @staticmethod
    def _of(lane: str, tallies: Sequence[tuple[_Tally, Rates]]) -> list[tuple[_Tally, Rates]]:
        return [(tally, rates) for tally, rates in tallies if tally.lane.name == lane]

    def _parts_of(self, tally: _Tally, rates: Rates) -> dict[str, Floats]:
        """What of its lane rows are."""
        if tally.lane.per == "item":
            return {"item": self.work.by_cell(tally.rows, self._items_s(tally, rates))}
        return {part: tally.cells(name) * each_s for part, name, each_s in _terms(tally, rates)}

    def _items_s(self, tally: _Tally, rates: Rates) -> Floats:
        """Seconds of each row by itself: by the fitted operator, or by the roofline."""
        rows, fit = tally.rows, self.fits.get(tally.rows.operator) if tally.lane.operators else None
        if fit is None or self.gpu is None:
            of = tally.values
            seconds = _join(tally.lane.join, of["bytes"] * rates.s_per_byte, of["ops"] * rates.s_per_op)
            return seconds + of["count"] * rates.each_s if tally.is_counted else seconds
        if tally.fitted_s is None:
            tally.fitted_s = np.asarray(fit.seconds(self.gpu, self.work.shapes(rows))).reshape(self.work.size(rows))
        return tally.fitted_s

    @property
    def rows_s(self) -> dict[int, Floats]:
        """Id of rows -> (steps, blocks) seconds by themselves."""
        found = self.on.rows_s if self.on else {}
        return found | {id(tally.rows): _pooled(tally.lane, self._parts_of(tally, rates)) for tally, rates in self.tallies}

    def joules(self) -> dict[str, Floats]:
        """(steps,) joules of what is moved and computed, by tier, link and engine."""
        found: dict[str, Floats] = {}
        for tally, rates in self.all_tallies:
            for part, j_per_byte in rates.j_per_byte.items():
                _plus(found, part, tally.total("moved") * j_per_byte)
            if rates.engine and not tally.lane.no_energy:
                _plus(found, rates.engine, tally.total("computed") * rates.j_per_op)
        return found

    def busy_s(self) -> Demand:
        """(steps,) seconds that the steps ask of every resource."""
        return _demanded(self.all_tallies, _Tally.total)

    def background_j(self, seconds: Floats) -> dict[str, Floats]:
        """Power times seconds, by what draws it: the machine and its tiers, or what the profile has in their place."""
        watts = background_w(self.machine, self.profile, self.end, self.work.held_bytes)
        return {part: np.asarray(of * seconds) for part, of in watts.items()}

    def seconds(self) -> Floats:
        """(steps,) seconds of the composed step."""
        step = self.profile.step_of(self.end, tuple(name for name in self.lanes if name in self.there))
        return np.broadcast_to(self._walk(step, False), (self.work.n_steps,))

    def _walk(self, node: ast.expr, is_inside: bool) -> Floats:
        """Seconds of a node, (steps, blocks) inside `layers`, (steps,) outside."""
        node = self._bare(node)
        if isinstance(node, ast.Constant):
            return np.asarray(float(node.value))  # type: ignore[arg-type]
        if self.on and self._is_prepared(node):  # there blocks that are alike are one
            seconds = self.on._walk(node, is_inside)
            return self.on.work.apart(seconds) if is_inside else seconds
        if isinstance(node, ast.Name | ast.Attribute):
            name, part = (node.id, "") if isinstance(node, ast.Name) else (node.value.id, node.attr)  # type: ignore[attr-defined]
            if not is_inside:
                return self.total(name, part)
            return self.parts(name).get(part, NONE) if part else _pooled(self.lanes[name], self.parts(name))
        if isinstance(node, ast.BinOp):
            if isinstance(node.op, ast.BitOr):
                beside = self._beside(node)
                return self._together(reduce(np.maximum, (self._walk(of, is_inside) for of in beside)), beside, is_inside)
            left, right = self._walk(node.left, is_inside), self._walk(node.right, is_inside)
            return left + right if isinstance(node.op, ast.Add) else left * right
        assert isinstance(node, ast.Call)
        assert isinstance(node.func, ast.Name)
        return getattr(self, f"_{node.func.id}")(node.args, is_inside)  # type: ignore[no-any-return]

    def _layers(self, nodes: list[ast.expr], is_inside: bool) -> Floats:
        """Sums term by term, so that only what runs side by side is worked out block by block."""
        node = self._bare(nodes[0])
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self._layers([node.left], is_inside) + self._layers([node.right], is_inside)
        if isinstance(node, ast.Name | ast.Attribute):
            return self._walk(node, False)
        if self.on and self._is_prepared(node):
            return self.on._layers([node], is_inside)
        return self.work.total(self._walk(node, True))

    def _partial(self, nodes: list[ast.expr], is_inside: bool) -> Floats:
        serial, parts = self._walk(nodes[0], is_inside), [self._walk(node, is_inside) for node in nodes[1:]]
        longest, together = reduce(np.maximum, parts), reduce(np.add, parts)
        return self._together(longest + serial * (together - longest), nodes[1:], is_inside)

    def _lookahead(self, nodes: list[ast.expr], is_inside: bool) -> Floats:
        first = self._walk(nodes[0], True)
        if not np.any(first):  # nothing is told ahead
            return self._layers(nodes[1:], is_inside)
        assert self.work.is_once, "what is fetched ahead needs every layer as a block of its own"
        whole = (self.work.n_steps, self.work.n_blocks)
        first, second = np.broadcast_to(first, whole), np.broadcast_to(self._walk(nodes[1], True), whole)
        slots = np.einsum("ij->i", np.maximum(first[:, 1:], second[:, :-1]))
        return self._together(first[:, 0] + slots + second[:, -1], nodes, False)

    def _together(self, seconds: Floats, nodes: list[ast.expr], is_inside: bool) -> Floats:
        """No sooner than any one resource is done with what the nodes ask of it."""
        if not self.profile.arbitrate:
            return seconds
        return reduce(np.maximum, self._demand(lanes_in(*nodes), is_inside).values(), seconds)

    def _demand(self, lanes: Sequence[tuple[str, str]], is_inside: bool) -> Demand:
        """What these lanes, or parts of them, ask of every resource, (steps, blocks) inside `layers`, (steps,) outside."""
        tallies = self.tallies if is_inside else self.all_tallies
        asked = [(tally, rates.part(part)) for name, part in lanes for tally, rates in self._of(name, tallies)]
        if not is_inside:
            return _demanded(asked, _Tally.total)
        return _demanded(asked, _Tally.cells, self.on.apart(self.on._demand(lanes, True)) if self.on else {})

    def _is_prepared(self, node: ast.expr) -> bool:
        """It has rows, none of which is put on what was prepared."""
        return bool(lanes_in(node)) and self.own.isdisjoint(dict(lanes_in(node)))

    def _beside(self, node: ast.expr) -> list[ast.expr]:
        """Of a | b | c the three, so that resources are asked once, but for what has no rows; what was prepared as one."""
        sides = [(of, self.there.isdisjoint(dict(lanes_in(of)))) for of in side_by_side(node)]
        nodes = [of for of, is_not in sides if not is_not or any(isinstance(part, ast.Constant) for part in ast.walk(of))]
        prepared = [of for of in nodes if self.on and self._is_prepared(of)]
        others = [of for of in nodes if of not in prepared]
        return [reduce(_or, prepared), *others] if len(prepared) > 1 else nodes or [ast.Constant(0.0)]

    def _bare(self, node: ast.expr) -> ast.expr:
        """A node without the | around it where nothing runs beside it and its rows take as long as they ask of any resource."""
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)) or len(nodes := self._beside(node)) > 1:
            return node
        asked = [of for name in dict(lanes_in(nodes[0])) for of in self._of(name, self.all_tallies)]
        is_as_long = is_sum(nodes[0]) and all(self._takes_as_asked(*of) for of in asked)
        return nodes[0] if is_as_long or not self.profile.arbitrate else node

    def _takes_as_asked(self, tally: _Tally, rates: Rates) -> bool:
        is_fitted = tally.lane.operators and tally.rows.operator in self.fits
        most = max(rates.busy_s_per_byte.values(), default=0.0)
        return tally.lane.join in ("max", "sum") and not is_fitted and most <= rates.s_per_byte


@lru_cache(maxsize=1024)
def _or(left: ast.expr, right: ast.expr) -> ast.expr:
    return ast.BinOp(left, ast.BitOr(), right)


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
        filled = np.minimum(np.asarray((held_bytes or {}).get(role, 0.0)) / capacity, machine.n_devices)
        watts["refresh"] = watts["refresh"] + filled * tier.refresh_w(end)
    return watts


def _terms(tally: _Tally, rates: Rates) -> list[tuple[str, str, float]]:
    """Parts of the seconds of a pooled lane's rows: each a sum of the tally, by name, times seconds."""
    found = [("bytes", "bytes", rates.s_per_byte)] if tally.rows.tier else []
    found += [("ops", "ops", rates.s_per_op)] if rates.engine else []
    return found + ([("fixed", "count", rates.each_s)] if tally.is_counted and rates.each_s else [])


def _demanded(
    tallies: Sequence[tuple[_Tally, Rates]], values: Callable[[_Tally, str], Floats], before: Demand | None = None
) -> Demand:
    """Seconds that rows ask of every resource, beside what was asked before."""
    found = before or {}
    for tally, rates in tallies:
        for resource, s_per_byte in rates.busy_s_per_byte.items():
            _plus(found, resource, values(tally, "bytes") * s_per_byte)
        if rates.engine:
            _plus(found, rates.engine, values(tally, "ops") * rates.s_per_op)
    return found


def _pooled(lane: Lane, parts: Mapping[str, Floats], none: Floats = NONE) -> Floats:
    """Seconds of a lane by what it sums; none: where it sums nothing."""
    if lane.per == "item":
        return parts.get("item", none)
    if lane.join == "max" and not {"bytes", "ops"} <= parts.keys():
        joined = parts.get("bytes", parts.get("ops", none))
    else:
        joined = _join(lane.join, parts.get("bytes", none), parts.get("ops", none))
    return joined + parts["fixed"] if "fixed" in parts else joined


def _plus(sums: dict[str, Floats], name: str, values: Floats) -> None:
    sums[name] = sums[name] + values if name in sums else values


def _join(how: str | tuple[str, float], memory: Floats, compute: Floats) -> Floats:
    if how == "max":
        return np.maximum(memory, compute)
    if how == "sum":
        return memory + compute
    if how in ("bytes", "ops"):
        return memory if how == "bytes" else compute
    return np.asarray((memory ** how[1] + compute ** how[1]) ** (1.0 / how[1]))  # type: ignore[operator]


def not_counted(
    uncounted: Mapping[str, tuple[float, float]], machine: HardwareSpec, profile: Profile, held: Container[str] = ()
) -> list[str]:
    """Sentences on rows that no lane takes (StepCost.uncounted), and on memory that the profile refreshes by what it holds, where
    nobody tells that; held: roles of which somebody does."""
    told = uncounted.items()
    found = [f"not counted by the profile: {kind} ({n:.3g} B, {ops:.3g} operations)" for kind, (n, ops) in told if n or ops]
    tiers = {role: machine.tiers.get(of.tier or machine.roles.of(role)) for role, of in profile.refresh.items()}
    lacking = ", ".join(role for role, tier in tiers.items() if role not in held and tier and tier.refresh_j)
    return [*found, *[f"not counted: refresh of {lacking}, which goes by what is held there"] * bool(lacking)]


def power_findings(spec: HardwareSpec, power_w: float) -> list[str]:
    """Sentences on a mean power that the machine cannot draw: above `max_w` or below `idle_w`, at the far end of their ranges."""
    findings = []
    if spec.max_w is not None and power_w > spec.max_w.high:
        findings.append(f"mean power {power_w:.3g} W is above {spec.name}'s limit of {spec.max_w.high:g} W")
    if spec.idle_w is not None and power_w < spec.idle_w.low:
        findings.append(f"mean power {power_w:.3g} W is below {spec.name}'s idle power of {spec.idle_w.low:g} W")
    return findings
