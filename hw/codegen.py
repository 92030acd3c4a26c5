"""Source of a step's seconds and joules, for loops in which the clock decides what comes next: clock.py, a step at a time.

Rows are linear in a step's numbers (its features), so a lane is a few sums of products. The source follows from the profile and
from which rows there are; numbers of machine, model and profile are a table beside it, so that a fit needs no new code.
"""

import ast
import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tokentape.hw.calibrate import Fit, gpu_of
from tokentape.hw.operators import OPERATORS, Gpu
from tokentape.hw.profile import Lane, Profile, is_sum, lanes_in, side_by_side
from tokentape.hw.rates import Rates, rates_of
from tokentape.hw.spec import HardwareSpec
from tokentape.hw.work import Floats, Rows, Work

BASE = 1024.0  # at which features are put; rows are linear around it
# Features of few values in a run: operators of these alone are timed once.
RECURRING = frozenset({"tokens", "logits", "share", "heavy", "wide"})
N_KEPT = 512  # times that are kept, in columns beside the coefficients: of each feature its value, and the time
Parts = dict[Hashable, str]  # part -> seconds, an expression; "" for constants of the profile


@dataclass(frozen=True, kw_only=True, eq=False)
class Generated:
    """sums: names to start at 0. layer, head: statements of one block of a kind of layers, `count` times, and of the head; after:
    of the step, once. seconds: by part, as they then stand; joules: of bytes and of operations, and bytes of experts. ledger:
    where asked, (part, what, expression): its seconds, its joules, and the seconds that it asks of each resource by name.

    Statements read the features by their names and coefficients t[k, i] of block k, i from the first column on; they call fitted
    operators by the names in `operators`.
    """

    sums: tuple[str, ...]
    layer: tuple[str, ...]
    head: tuple[str, ...]
    after: tuple[str, ...]
    seconds: Parts
    joules_of_bytes: str
    joules_of_ops: str
    expert_bytes: str
    operators: Mapping[str, Callable[..., Floats]]
    coefficients: Floats = field(repr=False)
    ledger: tuple[tuple[Hashable, str, str], ...] = ()
    uncounted: tuple[str, ...] = ()  # kinds of rows that no lane takes


def around(n_features: int) -> Floats:
    """(n + 1, n) values of the features in the steps of a work to generate from: all at BASE, then each in turn at twice that."""
    return BASE * np.vstack([np.ones((1, n_features)), 1.0 + np.eye(n_features)])


@dataclass(frozen=True, eq=False)
class _Row:
    rows: Rows
    lane: Lane
    rates: Rates
    scale: str

    def is_as_long_as_asked(self, fits: Mapping[str, Fit]) -> bool:
        """Its seconds are no shorter than what it asks of any resource."""
        is_fitted = self.lane.operators and self.rows.operator in fits
        return self.lane.join in ("max", "sum") and not self.rows.target and not is_fitted


@dataclass(eq=False)
class Writer:
    """work: of the steps that `around` says, its last block the head. part_of: the part of the seconds that rows are. guards:
    kind, or kind.engine.tier -> when a row of it runs at all. scales: (kind, tier) -> a further factor of its rows. first_column:
    of the coefficients. end: of the machine's ranges and of the profile's steps. keeps_ledger: also tells what each part takes.
    """

    work: Work
    features: Sequence[str]
    machine: HardwareSpec
    profile: Profile
    part_of: Callable[[Rows], Hashable]
    guards: Mapping[str, str]
    fits: Mapping[str, Fit]
    scales: Mapping[tuple[str, str], str]
    first_column: int
    end: str = "value"
    keeps_ledger: bool = False
    told: Mapping[str, str] = field(default_factory=dict)  # rows by name: code of their seconds, "" where another row's has them

    def __post_init__(self) -> None:
        head, scales = self.work.n_blocks - 1, self.scales
        self.rows = [
            _Row(
                replace(rows, times=1.0, waits=rows.waits and replace(rows.waits, times=1.0)),
                lane,
                rates_of(self.machine, rows, lane, self.end),
                scales.get((rows.kind, rows.tier), ""),
            )
            for rows in self.work.rows
            if (lane := self.profile.lane_of(rows))
        ]
        self.of_head = {id(row) for row in self.rows if row.rows.blocks is not None and head in row.rows.blocks}
        self.values, self.next_column = list[Floats](), self.first_column
        self.sums: list[str] = []
        self.lines: dict[str, list[str]] = {"layer": [], "head": [], "after": []}
        self.at = "after"
        self.lane_parts: dict[tuple[str, str, str], Parts] = {}
        self.operators: dict[str, Callable[..., Floats]] = {}

    def generated(self) -> Generated:
        """The code of the profile's step."""
        seconds = {part: self._named(text) for part, text in self._walk(self.profile.steps[self.end]).items()}
        of_bytes, of_ops = (self._total(lambda of=of: of(self._here())) for of in (self._joules_of_bytes, self._joules_of_ops))
        read = self._total(lambda: self._form([(r, np.asarray(r.rows.bytes)) for r in self._here() if r.rows.kind == "expert"]))
        ledger = tuple(self._ledger(seconds)) if self.keeps_ledger else ()
        lines = {at: tuple(of) for at, of in self.lines.items()}
        left_out = [rows for rows in self.work.rows if self.profile.lane_of(rows) is None]
        return Generated(
            **lines,
            sums=tuple(self.sums),
            seconds=seconds,
            joules_of_bytes=of_bytes,
            joules_of_ops=of_ops,
            expert_bytes=read,
            operators=self.operators,
            coefficients=np.column_stack(self.values) if self.values else np.zeros((self.work.n_blocks, 0)),
            ledger=ledger,
            uncounted=tuple(dict.fromkeys(of.kind for of in left_out if np.any(self.profile.moved(of)) or np.any(of.ops))),
        )

    def _ledger(self, seconds: Parts) -> Iterator[tuple[Hashable, str, str]]:
        yield from ((part, "seconds", text) for part, text in seconds.items())
        for part in dict.fromkeys(self.part_of(row.rows) for row in self.rows):

            def mine(part: Hashable = part) -> list[_Row]:
                return [row for row in self._here() if self.part_of(row.rows) == part]

            yield part, "joules", self._total(lambda of=mine: _plus(self._joules_of_bytes(of()), self._joules_of_ops(of())))
            asked = self._summed(lambda of=mine: self._demand(of()))
            yield from ((part, str(resource), text) for resource, text in asked.items())

    # ------------------------------------------------------------------------------------------------ sums of products

    def _of(self, row: _Row, values: Any) -> Floats:
        """(steps, blocks) of the row's values."""
        return self.work.by_cell(row.rows, values)

    def _here(self) -> list[_Row]:
        """Rows of the section that is written."""
        return [row for row in self.rows if (id(row) in self.of_head) == (self.at == "head")]

    def _form(self, terms: Sequence[tuple[_Row, Any]]) -> str:
        """The sum of the rows' values, as linear in the features. "" where it is 0."""
        by_scale: dict[str, Floats] = {}
        for row, values in terms:
            by_scale[row.scale] = by_scale.get(row.scale, 0.0) + self._of(row, values)
        texts = ((scale, self._linear(values)) for scale, values in by_scale.items())
        return _plus(*(_times(scale, text) for scale, text in texts if text))

    def _linear(self, values: Floats) -> str:
        slopes = (values[1:] - values[0]) / BASE
        constant = values[0] - BASE * slopes.sum(axis=0)
        constant[np.abs(constant) <= 1e-13 * np.abs(values[0])] = 0.0
        columns, names = np.vstack([constant[None], slopes]), ("", *self.features)
        there = np.flatnonzero(columns.any(axis=1))
        return _plus(*(_times(self._coefficient(columns[i]), names[i]) for i in there))

    def _coefficient(self, column: Floats) -> str:
        self.values.append(np.array(column))  # equal ones too: the source must not depend on numbers
        self.next_column += 1
        return f"t[k, {self.next_column - 1}]"

    def _named(self, text: str) -> str:
        """A name for what an expression says."""
        if text.isidentifier():
            return text
        name = f"v{sum(map(len, self.lines.values()))}"
        self.lines[self.at].append(f"{name} = {text}")
        return name

    def _total(self, text_here: Any) -> str:
        """A name for the sum over the blocks of what is written for each."""
        name, before = f"s{len(self.sums)}", self.at
        self.sums.append(name)
        for self.at in ("layer", "head"):
            if text := text_here():
                self.lines[self.at].append(f"{name} += {_times('count', text) if self.at == 'layer' else text}")
        self.at = before
        return name

    # ------------------------------------------------------------------------------------------------ lanes

    def _parts(self, name: str, what: str) -> Parts:
        """Seconds of a lane in the block that is written, or of its bytes, ops or fixed alone."""
        key = (self.at, name, what)
        if key not in self.lane_parts:
            rows = [row for row in self._here() if row.lane.name == name]
            made = self._items(rows) if rows and rows[0].lane.per == "item" else self._pooled(rows, what)
            self.lane_parts[key] = {part: self._named(text) for part, text in made.items()}
        return self.lane_parts[key]

    def _terms(self, rows: Sequence[_Row]) -> dict[str, str]:
        """Seconds of the rows' bytes, operations and counts."""
        rows = [replace(row, rows=row.rows.timed) for row in rows]
        read = [(self._limited(row), self.profile.moved(row.rows) * row.rates.s_per_byte) for row in rows if row.rows.tier]
        compute = self._form([(row, _computed_s(row)) for row in rows if row.rates.engine])
        fixed = []
        for row in (row for row in rows if row.rates.each_s and np.any(row.rows.count)):
            text = self._linear(self._of(row, np.asarray(row.rows.count) * row.rates.each_s))  # however its bytes are shared out
            guard = self._guard(row.rows)
            fixed.append(f"({text} if {guard} else 0.0)" if guard and text else text)
        return {"bytes": self._form(read), "ops": compute, "fixed": _plus(*fixed)}

    def _limited(self, row: _Row) -> _Row:
        """The row, its bytes as much slower as its streams draw less than the share of its lane."""
        lane = row.lane
        if not lane.bytes_frac_per_stream or lane.bytes_frac is None:
            return row
        streams = self._linear(self._of(row, row.rows.streams))
        limit = self._coefficient(np.full(self.work.n_blocks, lane.bytes_frac / lane.bytes_frac_per_stream))
        return replace(row, scale=_times(row.scale, f"max(1.0, {limit} / max({streams}, 1.0))"))

    def _pooled(self, rows: Sequence[_Row], what: str) -> Parts:
        if not rows:
            return {}
        terms = self._terms(rows)
        text = terms[what] if what else _plus(_join(rows[0].lane.join, terms["bytes"], terms["ops"]), terms["fixed"])
        return {self.part_of(rows[0].rows): text} if text else {}

    def _items(self, rows: Sequence[_Row]) -> Parts:
        texts: dict[Hashable, dict[tuple[str, ...], str]] = {}  # by part, of what is kept by what
        for row in rows:
            kept: tuple[str, ...] = ()
            if row.rows.name in self.told:
                text = self.told[row.rows.name]
            elif row.lane.operators and row.rows.operator in self.fits:
                text, kept = self._operator(row)
            else:
                text = "".join(self._pooled([row], "").values())
            if text:
                of_part = texts.setdefault(self.part_of(row.rows), {})
                of_part[kept] = _plus(of_part.get(kept, ""), text)
        return {part: _plus(*(self._kept(by, text) if by else text for by, text in of.items())) for part, of in texts.items()}

    def _kept(self, by: tuple[str, ...], text: str) -> str:
        """What an expression says, worked out again only where another value of what it depends on has taken its place."""
        first = self.next_column
        at = f"h{first}"
        self.values.append(np.full((self.work.n_blocks, N_KEPT * (len(by) + 1)), -1.0))
        self.next_column += N_KEPT * (len(by) + 1)
        *places, place = (f"t[k, {at} + {i * N_KEPT}]" for i in range(len(by) + 1))
        mixed = " + ".join(f"{factor!r} * {name}" for factor, name in zip((1.0, 8191.0), by, strict=False))
        self.lines[self.at].append(
            f"{at} = {first} + (int({mixed}) & {N_KEPT - 1})\n"
            f"if {' or '.join(f'{kept} != {name}' for kept, name in zip(places, by, strict=True))}:\n"
            + "".join(f"    {kept} = {name}\n" for kept, name in zip(places, by, strict=True))
            + f"    {place} = {text}"
        )
        return place

    def _operator(self, row: _Row) -> tuple[str, tuple[str, ...]]:
        """A call of the fitted operator that times the row, and by which features its time can be kept."""
        rows, name = row.rows.timed, row.rows.operator
        fit = self.fits[name]
        module = OPERATORS[fit.operator]
        called = "_".join(name.split())
        constants = tuple(fit.constants[parameter.name] for parameter in module.parameters)
        self.operators[called] = timed(fit.operator, Gpu(*map(float, gpu_of(self.machine))), constants)
        given = [rows.shapes.get(argument, module.defaults.get(argument, 0)) for argument in module.arguments]
        columns = [self._of(row, np.asarray(values, np.float64)) for values in given]
        texts = [self._linear(values) or "0.0" for values in columns]
        moves = np.any([(of[1:] != of[0]).any(axis=1) for of in columns], axis=0)
        by = tuple(name for name, it_moves in zip(self.features, moves, strict=True) if it_moves)
        call = f"{called}({', '.join(texts)})"
        there = self.work.by_cell(rows, 1.0)[0]
        whole = slice(-1, None) if self.at == "head" else slice(0, -1)
        guards = [self._guard(rows), "" if np.all(there[whole]) else f"{self._coefficient(there)} > 0.0"]
        guard = " and ".join(filter(None, guards))
        kept = by if RECURRING.issuperset(by) and not guards[0] else ()
        return (f"({call} if {guard} else 0.0)" if guard else call), kept

    def _guard(self, rows: Rows) -> str:
        """When the row runs at all; "" for always."""
        return self.guards.get(f"{rows.kind}.{rows.engine}.{rows.tier}", self.guards.get(rows.kind, ""))

    def _joules_of_bytes(self, rows: Sequence[_Row]) -> str:
        return self._form([(row, self.profile.moved(row.rows) * sum(row.rates.j_per_byte.values())) for row in rows])

    def _joules_of_ops(self, rows: Sequence[_Row]) -> str:
        counted = [row for row in rows if row.rates.engine and not row.lane.no_energy]
        return self._form([(row, np.asarray(row.rows.ops) * row.rates.j_per_op) for row in counted])

    def _demand(self, rows: Sequence[_Row]) -> Parts:
        """Seconds that rows ask of each resource in the block that is written."""
        found: dict[str, list[tuple[_Row, Any]]] = {}
        for row in (replace(row, rows=row.rows.timed) for row in rows):
            limited = self._limited(row)
            for resource, s_per_byte in row.rates.busy_s_per_byte.items():
                found.setdefault(resource, []).append((limited, self.profile.moved(row.rows) * s_per_byte))
            if row.rates.engine:
                found.setdefault(row.rates.engine, []).append((row, _computed_s(row)))
        return {resource: text for resource, terms in found.items() if (text := self._form(terms))}

    # ------------------------------------------------------------------------------------------------ the step

    def _walk(self, node: ast.expr) -> Parts:
        """Seconds by part of a node, in the block that is written or of the step."""
        if isinstance(node, ast.Constant):
            return {"": repr(float(node.value))}  # type: ignore[arg-type]
        if isinstance(node, ast.Name | ast.Attribute):
            ((name, what),) = lanes_in(node)
            return self._parts(name, what) if self.at != "after" else self._summed(lambda: self._parts(name, what))
        if isinstance(node, ast.BinOp):
            if isinstance(node.op, ast.BitOr):
                return self._together("max({0})", side_by_side(node))
            left, right = self._walk(node.left), self._walk(node.right)
            if isinstance(node.op, ast.Add):
                return _merged(left, right)
            number, parts = (right, left) if lanes_in(node.left) else (left, right)
            return {part: _times(number[""], text) for part, text in parts.items()}
        assert isinstance(node, ast.Call)
        assert isinstance(node.func, ast.Name)
        if node.func.id == "partial":
            serial = self._walk(node.args[0])[""]
            return self._together(f"max({{0}}) + ({serial}) * ({{1}} - max({{0}}))", node.args[1:])
        inner = node.args[-1]
        if node.func.id == "lookahead":
            ahead = {name for name, _ in lanes_in(node.args[0])}
            if any(row.lane.name in ahead for row in self.rows):  # these stand in the block beside which they run
                inner = ast.BinOp(node.args[0], ast.BitOr(), inner)
        return self._walk(inner) if self.at != "after" else self._summed(lambda: self._walk(inner))

    def _summed(self, parts_here: Any) -> Parts:
        """Totals over the blocks, by part or resource."""
        made, before = dict[str, Parts](), self.at
        for self.at in ("layer", "head"):
            made[self.at] = parts_here()
        self.at = before
        found = dict.fromkeys(part for parts in made.values() for part in parts)
        return {part: self._total(lambda part=part: made[self.at].get(part, "")) for part in found}

    def _together(self, how: str, nodes: Sequence[ast.expr]) -> Parts:
        """What runs together: its parts share the time in proportion. how: of the sides' seconds {0} and their sum {1}."""
        there, lanes = [parts for node in nodes if (parts := self._walk(node))], lanes_in(*nodes)
        asked = [row for name, _ in lanes for row in self.rows if row.lane.name == name]
        alone = len(there) == 1 and is_sum(*nodes) and all(row.is_as_long_as_asked(self.fits) for row in asked)
        demand: Parts = {}
        if self.profile.arbitrate and there and not alone:

            def demanded() -> Parts:
                asked = [(row, part) for name, part in lanes for row in self._here() if row.lane.name == name]
                return self._demand([replace(row, rates=row.rates.part(part)) for row, part in asked])

            demand = self._summed(demanded) if self.at == "after" else demanded()
        merged = _merged(*there)
        if len(there) < 2 and not demand:
            return merged
        each = [self._named(_plus(*parts.values())) for parts in there]
        whole = self._named(_plus(*each))
        joined = how.format(", ".join(each) if len(each) > 1 else f"{each[0]}, 0.0", whole)
        seconds = self._named(f"max({', '.join([joined, *demand.values()])})" if demand else joined)
        ratio = self._named(f"{seconds} / {whole} if {whole} > 0.0 else 1.0")
        return {part: self._named(_times(ratio, text)) for part, text in merged.items()}


@functools.lru_cache(maxsize=256)
def timed(operator: str, gpu: Gpu, constants: tuple[float, ...]) -> Callable[..., Floats]:
    """Seconds of a fitted operator on a GPU, of its arguments; the same function wherever it is asked for."""
    return functools.partial(OPERATORS[operator].time, gpu, constants)


def _computed_s(row: _Row) -> Any:
    bits = np.asarray(row.rows.bits) / 16.0 if row.lane.ops_by_bits else 1.0
    return np.asarray(row.rows.ops) * row.rates.s_per_op * bits


def _plus(*texts: str) -> str:
    return " + ".join(filter(None, texts))


def _times(a: str, b: str) -> str:
    """a x b; a factor that is "" is 1."""
    if not a or not b:
        return a or b
    return " * ".join(f"({text})" if " + " in text else text for text in (a, b))


def _merged(*sides: Parts) -> Parts:
    parts: Parts = {}
    for side in sides:
        for part, text in side.items():
            parts[part] = _plus(parts.get(part, ""), text)
    return parts


def _join(how: str | tuple[str, float], memory: str, compute: str) -> str:
    if how in ("bytes", "ops"):
        return memory if how == "bytes" else compute
    if how == "sum" or not memory or not compute:
        return _plus(memory, compute)
    if how == "max":
        return f"max({memory}, {compute})"
    power = how[1]
    return f"(({memory}) ** {power!r} + ({compute}) ** {power!r}) ** {1.0 / float(power)!r}"
