"""Cost profiles: which rows of work wait for which, and at which shares of a machine's rates. Data, in hw/profiles/*.toml.

    step = "layers(launch + dense + (kv_far | kv_near)) + host"      seconds of a step, from the seconds of its lanes
    [lane.dense]                                                     a lane: the rows that its rule selects, first match wins
    kind = ["proj", "head"]

A row takes memory = bytes / rate, compute = ops / rate and count x each_s. A pooled lane (`per = "pool"`) joins the sums of
memory and compute of a block, one with `per = "item"` joins row by row. join: max, sum, bytes or ops alone, or ["power", p].
In a step: `a + b` one after the other, `a | b` together, `k * a` and `partial(s, a, b)` = max + s (sum - max), k and s numbers,
`lookahead(f, c)`: f of block i beside c of block i - 1, `layers(x)`: x of every block, summed with block_times; outside it a lane
is its sum over blocks. `lane.bytes`, `.ops`, `.fixed`: the parts of a pooled lane. [numbers]: those of a step by name. A row that
no lane selects costs nothing, and is told of in the result's `uncounted`.

arbitrate: whatever runs together is never shorter than what it asks of any one resource. activations = false: only weights, keys
and values are moved. step_low, step_high: the overlap of the favourable and of the worst end, where it is not the same.
"""

import ast
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce
from pathlib import Path
from typing import Any

import numpy as np

from tokentape.hw.roles import ENGINE_ROLES, TIER_ROLES
from tokentape.hw.sourced import BadSpec, build, leaves, parsed, unknown
from tokentape.hw.work import KINDS, PHASES, Floats, Rows

PROFILES = Path(__file__).parent / "profiles"
STEPS = {"value": "step", "low": "step_low", "high": "step_high"}  # end of a band -> key of a file
ENDS = tuple(STEPS)
PHYSICAL = "physical"
JOINS = ("max", "sum", "bytes", "ops")
FLAGS = {"arbitrate": False, "activations": True, "by_middle": False}
_CHOICES = {"kind": KINDS, "tier": ("", *TIER_ROLES), "target": ("", *TIER_ROLES), "engine": ("", *ENGINE_ROLES), "phase": PHASES}


@dataclass(frozen=True, kw_only=True)
class Lane:
    """Rows of these kinds, roles and phases (empty: any), and how they cost; absent numbers are the machine's own.

    bytes_frac, ops_frac: of the peak. bytes_frac_per_stream: limits bytes_frac by the number of streams. link_only: rate, latency
    and energy of the link alone. each_s: of a count (absent: the path's latency). ops_by_bits: operations shrink with the width.
    macs_only: at the rate of the engine's multiply-adds, where its file gives their number. operators: rows with shapes take the
    fitted times of the machine, where it has them.
    """

    name: str
    kind: tuple[str, ...] = ()
    tier: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    engine: tuple[str, ...] = ()
    phase: tuple[str, ...] = ()
    per: str = "pool"
    join: str | tuple[str, float] = "max"
    bytes_frac: float | None = None
    bytes_frac_per_stream: float = 0.0
    link_only: bool = False
    ops_frac: float | None = None
    ops_by_bits: bool = False
    macs_only: bool = False
    dtype: str = ""
    each_s: float | None = None
    operators: bool = False
    j_per_byte: float | None = None
    j_per_op: float | None = None
    no_energy: bool = False

    def takes(self, rows: Rows) -> bool:
        """Its rule selects these rows."""
        return all(not getattr(self, key) or getattr(rows, key) in getattr(self, key) for key in _CHOICES)


@dataclass(frozen=True, kw_only=True)
class Refresh:
    """Refresh of a tier by what is held in it: joules of a pass x held / capacity, every interval. tier: by name, not role."""

    tier: str = ""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """steps: end -> syntax of the step's seconds. activations: their bytes count beside those that are stored. by_middle: engines
    count query-key pairs of a prompt's slice as if all its tokens stood in its middle. static_w: in place
    of all of the machine's own power; leakage: roles of the tiers whose leakage counts, None: all; refresh: by role of what is
    held, in place of the refresh of full tiers."""

    name: str
    lanes: tuple[Lane, ...]
    steps: Mapping[str, ast.expr]
    arbitrate: bool = False
    activations: bool = True
    by_middle: bool = False
    static_w: float | None = None
    leakage: tuple[str, ...] | None = None
    refresh: Mapping[str, Refresh] = field(default_factory=dict)
    sha256: str = ""  # of its file
    _lanes: dict[tuple[str, ...], Lane | None] = field(init=False, default_factory=dict, repr=False, compare=False)
    _steps: dict[tuple[str, tuple[str, ...]], ast.expr] = field(init=False, default_factory=dict, repr=False, compare=False)

    def lane_of(self, rows: Rows) -> Lane | None:
        """The first lane that takes the rows."""
        key = (rows.kind, rows.tier, rows.target, rows.engine, rows.phase)
        if key not in self._lanes:
            self._lanes[key] = next((lane for lane in self.lanes if lane.takes(rows)), None)
        return self._lanes[key]

    def moved(self, rows: Rows) -> Floats:
        """The bytes that count."""
        stored = np.asarray(rows.bytes, np.float64)
        return stored + rows.activation_bytes if self.activations else stored

    def refuse_no_time(self, seconds: float) -> None:
        """Raises ValueError where work takes no time at all, so that no rate and no power follows from it."""
        if seconds <= 0.0:
            raise ValueError(f"cost profile {self.name}: what runs here takes no time by it; give its step a lane of such work")

    def step_of(self, end: str, lanes: tuple[str, ...]) -> ast.expr:
        """The step of work with rows in these lanes alone."""
        if (end, lanes) not in self._steps:
            self._steps[end, lanes] = _of_lanes(self.steps[end], lanes) or ast.Constant(0.0)
        return self._steps[end, lanes]


@lru_cache
def shipped() -> list[str]:
    """Names of the profiles that come with the project."""
    return sorted(path.stem for path in PROFILES.glob("*.toml"))


def load(name_or_path: str) -> Profile:
    """A shipped profile by name, or one's own by the path of its TOML file. Raises BadSpec naming file, lane and key."""
    path = Path(name_or_path)
    if path.suffix == ".toml":
        own = _read(path)
        if own.name in shipped() and path.resolve().parent != PROFILES.resolve():
            raise BadSpec(f"{path}: name = {own.name!r} is that of a shipped cost profile; give it a name of its own")
        return own
    if name_or_path not in shipped():
        raise unknown("cost profile", name_or_path, shipped())
    return _kept(PROFILES / f"{name_or_path}.toml")


def with_values(name_or_path: str, values: Mapping[str, Any]) -> Profile:
    """A profile with other values, as a fit finds them, by the dotted keys of its file: {"numbers.serial_frac": 0.5}. Raises
    BadSpec for a key that the file does not have."""
    own = load(name_or_path)
    path = Path(name_or_path) if name_or_path.endswith(".toml") else PROFILES / f"{name_or_path}.toml"
    data, _ = parsed(path, "file of a cost profile", shipped())
    for key, value in values.items():
        *tables, last = key.split(".")
        table = reduce(lambda table, name: table.get(name, {}), tables, data)
        if last not in table:
            raise BadSpec(f"{path}: there is no {key} to be {value!r}; known there: {', '.join(table) or 'nothing'}")
        table[last] = value
    sha256 = hashlib.sha256(repr((own.sha256, sorted(values.items()))).encode()).hexdigest()
    return replace(of_data(data, str(path)), sha256=sha256)


def _read(path: Path) -> Profile:
    data, sha256 = parsed(path, "file of a cost profile", shipped())
    return replace(of_data(data, str(path)), sha256=sha256)


_kept = lru_cache(_read)


def of_data(data: Mapping[str, Any], where: str) -> Profile:
    """The profile of a parsed file, or of a system's fitted constants. Raises BadSpec."""
    for key, value in leaves(dict(data)):
        each: list[Any] = value if isinstance(value, list) else [value]
        for one in each:
            if type(one) in (int, float) and not 0.0 <= one < float("inf"):
                raise BadSpec(f"{where}: {key} is {one}; it must be finite and at least 0")
    file = _parts(dict(data), where, name=None, **dict.fromkeys(STEPS.values()), **FLAGS, numbers={}, lane=None, energy={})
    flags, numbers = {key: file[key] for key in FLAGS}, _parts(file["numbers"], f"{where}: numbers")
    energy = _parts(file["energy"], f"{where}: energy", j_per_byte=None, j_per_op=None, static_w=None, leakage=None, refresh={})
    is_named = isinstance(file["name"], str) and file["name"].strip()
    if not is_named or not isinstance(file["lane"], dict) or not isinstance(file["step"], str):
        raise BadSpec(f"{where}: a cost profile needs name, step and tables [lane.<name>]")
    for key, value in flags.items():
        if not isinstance(value, bool):
            raise BadSpec(f"{where}: {key} must be true or false, found {value!r}")
    shared = {key: energy[key] for key in ("j_per_byte", "j_per_op") if energy[key] is not None}
    lanes = tuple(
        _lane(name, {**shared, **_parts(table, f"{where}: lane.{name}")}, where) for name, table in file["lane"].items()
    )
    steps = {end: _step(file[key] or file["step"], lanes, numbers, f"{where}: {key}") for end, key in STEPS.items()}
    refreshed = _parts(energy["refresh"], f"{where}: energy.refresh")
    refresh = {role: build(Refresh, of, f"{where}: energy.refresh.{role}") for role, of in refreshed.items()}
    for role, of in refresh.items():
        if not of.tier and role not in TIER_ROLES:
            raise BadSpec(f"{where}: energy.refresh.{role} names no tier, and is no role of one ({', '.join(TIER_ROLES)})")
    static_w, leakage = energy["static_w"], energy["leakage"]
    if static_w is not None and type(static_w) not in (int, float):
        raise BadSpec(f"{where}: energy: static_w must be a number, found {static_w!r}")
    if leakage is not None and not (isinstance(leakage, list) and all(role in TIER_ROLES for role in leakage)):
        raise BadSpec(f"{where}: energy: leakage must list roles of tiers ({', '.join(TIER_ROLES)}), found {leakage!r}")
    power = {"static_w": static_w, "leakage": None if leakage is None else tuple(leakage), "refresh": refresh}
    return Profile(name=file["name"], lanes=lanes, steps=steps, **flags, **power)


def _parts(value: Any, where: str, **known: Any) -> dict[str, Any]:
    """What a table says and, where it does not, what is `known`; any key may be there where nothing is."""
    if not isinstance(value, dict):
        raise BadSpec(f"{where} must be a table, found {value!r}")
    for key in value if known else ():
        if key not in known:
            raise BadSpec(f"{where}: unknown key {key!r}; known: {', '.join(known)}")
    return known | value


def _lane(name: str, table: dict[str, Any], where: str) -> Lane:
    values = dict(table)
    for key, known in _CHOICES.items():
        if key in values:
            values[key] = tuple(values[key]) if isinstance(values[key], list) else (values[key],)
            for one in values[key]:
                if one not in known:
                    raise BadSpec(f"{where}: lane.{name}: {key} = {one!r} is unknown; known: {', '.join(known)}")
    lane: Lane = build(Lane, values, f"{where}: lane.{name}", name=name)
    power = isinstance(lane.join, list) and len(lane.join) == 2 and lane.join[0] == "power" and type(lane.join[1]) in (int, float)
    if not (power and lane.join[1] > 0) and lane.join not in JOINS:  # type: ignore[operator]
        raise BadSpec(f'{where}: lane.{name}: join = {lane.join!r}; known: {", ".join(JOINS)}, ["power", p], p above 0')
    for key in ("bytes_frac", "ops_frac"):
        if getattr(lane, key) == 0.0:
            raise BadSpec(f"{where}: lane.{name}: {key} is 0; it must be above 0")
    if lane.bytes_frac_per_stream and lane.bytes_frac is None:
        raise BadSpec(f"{where}: lane.{name}: bytes_frac_per_stream limits bytes_frac; give both, or neither")
    if lane.per not in ("pool", "item"):
        raise BadSpec(f"{where}: lane.{name}: per = {lane.per!r}; known: pool, item")
    return lane


def _step(text: Any, lanes: tuple[Lane, ...], numbers: Mapping[str, Any], where: str) -> ast.expr:
    """The syntax tree of a step, numbers in place of their names, all of it known to the clock. Raises BadSpec naming what is
    not."""
    try:
        tree: ast.expr = ast.parse(text, mode="eval").body
    except (SyntaxError, TypeError) as error:
        raise BadSpec(f"{where}: {text!r} cannot be read: {error}") from error
    tree = _Numbers(numbers).visit(tree)
    _check(tree, {lane.name: lane for lane in lanes}, where)
    return tree


class _Numbers(ast.NodeTransformer):
    """Puts numbers in place of their names."""

    def __init__(self, numbers: Mapping[str, Any]) -> None:
        self.numbers = numbers

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(self.numbers[node.id]) if node.id in self.numbers else node


def side_by_side(node: ast.expr) -> list[ast.expr]:
    """All that runs together: of a | b | c the three, so that resources are asked once."""
    is_or = isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)
    return [*side_by_side(node.left), *side_by_side(node.right)] if is_or else [node]  # type: ignore[attr-defined]


def is_sum(*nodes: ast.expr) -> bool:
    """Whole lanes, one after the other."""
    return all(isinstance(of, ast.Name | ast.Add | ast.BinOp | ast.Load) for node in nodes for of in ast.walk(node))


@lru_cache(maxsize=1024)
def lanes_in(*nodes: ast.AST) -> tuple[tuple[str, str], ...]:
    """Lanes of nodes, and which part of each ("": all of it), every one once."""
    found: list[tuple[str, str]] = []
    for node in nodes:
        if isinstance(node, ast.Name):
            found.append((node.id, ""))
        else:
            inner = lanes_in(*(node.args if isinstance(node, ast.Call) else ast.iter_child_nodes(node)))
            found += [(name, node.attr) for name, _ in inner] if isinstance(node, ast.Attribute) else inner
    return tuple(dict.fromkeys(found))


def _of_lanes(node: ast.expr, lanes: Sequence[str]) -> ast.expr | None:
    """Sums and maxima without the lanes that are not among these, which take no time; None where nothing is left."""
    if isinstance(node, ast.BinOp) and not isinstance(node.op, ast.Mult):
        left, right = _of_lanes(node.left, lanes), _of_lanes(node.right, lanes)
        if isinstance(node.op, ast.BitOr) and (left or right):  # what is left alone is arbitrated, too
            left, right = left or node.left, right or node.right
        return ast.BinOp(left, node.op, right) if left and right else left or right
    name = node.value if isinstance(node, ast.Attribute) else node
    return None if isinstance(name, ast.Name) and name.id not in lanes else node


def _check(node: ast.expr, lanes: Mapping[str, Lane], where: str) -> None:
    known, told = f"lanes {', '.join(lanes)}, numbers, +, |, *, partial, lookahead, layers", f"{where}: {ast.unparse(node)}"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.BitOr | ast.Mult):
        inner = [node.left, node.right]
        if isinstance(node.op, ast.Mult) and all(map(lanes_in, inner)):
            raise BadSpec(f"{told}: seconds times seconds; one of the two must be a number")
    elif (isinstance(node, ast.Constant) and type(node.value) in (int, float) and node.value != float("inf")) or (
        isinstance(node, ast.Name) and node.id in lanes
    ):
        inner = []
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in ("bytes", "ops", "fixed"):
        if node.value.id not in lanes or lanes[node.value.id].per == "item":
            raise BadSpec(f"{told}: only a pooled lane has parts")
        inner = []
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("partial", "lookahead", "layers"):
        n, inner = len(node.args), node.args
        if node.keywords or not {"layers": n == 1, "lookahead": n == 2, "partial": n >= 2}[node.func.id]:
            raise BadSpec(f"{told} has {n} arguments; layers takes 1, lookahead 2, partial at least 2")
        if node.func.id == "partial" and any(isinstance(of, ast.Name) for of in ast.walk(inner[0])):
            raise BadSpec(f"{told}: its first is how serial the others are, and must be a number")
        within = [ast.unparse(of.func) for one in inner for of in ast.walk(one) if isinstance(of, ast.Call)]
        if node.func.id != "partial" and not {"layers", "lookahead"}.isdisjoint(within):
            raise BadSpec(f"{told}: it goes block by block; leave layers and lookahead out within it")
    else:
        raise BadSpec(f"{where}: {ast.unparse(node)!r} is not known here; known: {known}")
    for part in inner:
        _check(part, lanes, where)
