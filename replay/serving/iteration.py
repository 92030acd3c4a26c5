"""What an iteration of the serving engine costs: the rows of a transformer's step, as code compiled for the engine's loop.

A step's rows are linear in what the iteration carries (replay/transformer.py), so coefficients come from evaluating them and the
code from the profile's step (hw/codegen.py): of what a profile composes of which rows, and of the constants of fitted operators;
other numbers of models and machines are a table. See docs/serving.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.hw import profile as profiles
from tokentape.hw.by_model import ByModel
from tokentape.hw.calibrate import Fit, gpu_of
from tokentape.hw.clock import background_w
from tokentape.hw.codegen import Generated, Writer, around
from tokentape.hw.operators.flash_attention import runs_fa2
from tokentape.hw.profile import Profile
from tokentape.hw.rates import rates_of
from tokentape.hw.spec import HardwareSpec
from tokentape.hw.work import Floats, Rows, Values
from tokentape.policies.kernels import F64_2D, float64, int64, kernel, uint64
from tokentape.policies.placement.host import Host
from tokentape.policies.serving import Speculation
from tokentape.replay.passes import floats_on_integers, not_measured
from tokentape.replay.serving.coverage import Coverage, at_multiples
from tokentape.replay.serving.ranks import Ranks, fuller
from tokentape.replay.serving.tables import attention, curve, plane, seconds_of
from tokentape.replay.tokens import Blocks, Sums, blocks_of
from tokentape.replay.transformer import ACTIVATION, experts_of, kv_token_bytes, rebuilt_of, steps_of
from tokentape.warehouse.formats import bytes_per_value
from tokentape.warehouse.geometry import Geometry

PARTS = ("moe", "dense", "attention", "communication", "other")
# Entries of an iteration's cost (N_COST,): seconds by part; bytes of routed experts read; joules of bytes and of operations.
EXPERT_BYTES, J_OF_BYTES, J_OF_OPS = range(len(PARTS), len(PARTS) + 3)
N_COST = len(PARTS) + 3
# Entries of what an iteration carries. Of the prompts' slices: tokens, how many, query-key pairs, keys and values that they
# attend to, and that are then in the cache; of the decodes: how many, drafts of each, keys and values; the longest of their
# contexts, -1 where nobody asks for it. _W: cut by the window. Of several replicas N_OF_SLICES follow again: of the one
# that has the most tokens, and then of each.
PROMPT, PROMPTS, PAIRS, PAIRS_W, SEEN, SEEN_W, HELD, HELD_W, DECODES, NODES, KEYS, KEYS_W, LONGEST, FULLEST = range(14)
N_OF_SLICES = DECODES
N_CARRIED = FULLEST + N_OF_SLICES
# The table of an iteration: a row per kind of layers and one of the output head, with these entries and then coefficients; rows
# (from the last) of constants, of what the iteration carries, and of its cost. Entries: layers without and with the prompts;
# shares of their experts that are touched without and with them; the window, 0 for none, -1
# for nothing to attend to; the kinds of equal coefficients.
OTHERS, IN_GROUP, SHARE, SHARE_MIXED, WINDOW, ALIKE, N_OF_KIND = range(7)
CONSTANTS, CARRIED, COST = -3, -2, -1
N_OTHER_ROWS = 4  # than those of kinds
# Reads and writes of the hidden states in a layer, for profiles that count them apart (assumed, as in notes on Layered Prefill).
ACTIVATION_PASSES = 20.0
REFERENCE_HIDDEN = 2048  # of the hidden size, to which times per token are scaled

_PART_OF = {
    **dict.fromkeys(("expert", "fetch", "prefetch", "exchange"), "moe"),
    **dict.fromkeys(("proj", "router", "shared", "dense_ffn", "head", "weights"), "dense"),
    **dict.fromkeys(("attend", "kv_read", "kv_write", "recompute"), "attention"),
    "all_reduce": "communication",
    **dict.fromkeys(("elementwise", "draft", "feed", "launch", "activations", "layer", "step"), "other"),
}
# What a run's time and energy go to, in words: by kind, and where rows of one kind are several things, by engine and tier.
OBJECTS = {
    **dict.fromkeys(("proj", "router", "shared", "dense_ffn"), "weights outside the experts"),
    **dict.fromkeys(("kv_read", "kv_write"), "keys and values"),
    **dict.fromkeys(("layer", "step", "launch"), "launches"),
    "expert.main.expert_cache": "experts in the fast tier",
    "expert.main.expert_home": "experts read at their home",
    "expert.near_compute.expert_home": "experts near their memory",
    "fetch": "experts fetched",
    "prefetch": "experts fetched ahead",
    "elementwise": "operations between products",
    "exchange": "activations exchanged",
    "attend": "attention of prompts",
    "recompute": "keys and values computed anew",
    "head": "output head",
    "all_reduce": "sums over devices",
}
_GUARDS = {"kv_read": "decodes > 0.0", "attend": "prompt > 0.0", "recompute": "rebuilt > 0.0"}
_FEATURES = (
    "tokens", "decodes", "context", "keys", "scores", "prompt", "prompts", "pairs", "length", "before", "seen", "logits",
    "carries_prompt", "longest", "busiest", "crowd", "busy_pairs", "busy_seen", "fetches", "share",
)  # fmt: skip
OF_RANKS = ("heavy", "wide")  # tokens and share of experts, were every rank as full as the fullest
# Of the experts' events (replay/system/events.py), in this order, from entry N_OF_KIND of a row of a kind of layers on.
EVENT = (
    "active", "chosen", "weights", "missed", "fetches", "in_place", "chosen_in_place", "weights_in_place",
    "near", "near_weights", "near_tokens", "near_work", "busy", "busy_weights", "busy_tokens", "busy_work", "exchanges",
    "ahead", "ahead_reads",
)  # fmt: skip
# Of a KV policy's tracks (replay/system/kv.py), behind them: what the decodes of an iteration read in a layer.
TRACK = ("keys", "scores", "rebuilt")
_CHOSEN, _WEIGHTS, _MISSED = (N_OF_KIND + EVENT.index(name) for name in ("chosen", "weights", "missed"))
N_PLACES = 64  # where layers that may cost the same meet
_SOURCE = """\
def cost(t):
    n_kinds = t.shape[0] - {N_OTHER_ROWS}
    constants, carried, cost = n_kinds + 1, n_kinds + 2, n_kinds + 3
    n_prompt, n_decodes, n_nodes = t[carried, {PROMPT}], t[carried, {DECODES}], t[carried, {NODES}]
    decodes, prompts = n_decodes, t[carried, {PROMPTS}]
    verified = n_decodes * (1.0 + n_nodes)
    context = t[carried, {KEYS}] / max(n_decodes, 1.0)
    carries_prompt = 1.0 if n_prompt > 0.0 else 0.0
    logits = verified + prompts * carries_prompt
    crowd, most = {crowd}, {most}
    {start}
    of_kind, of_group = -1.0, -1
    for k in range(n_kinds):
        window = t[k, {WINDOW}]
        {event}
        {keys}
        for is_group in range(2):
            prompt = pairs = seen = busy_pairs = busy_seen = 0.0
            if is_group:
                count, share, prompt = t[k, {IN_GROUP}], t[k, {SHARE_MIXED}], n_prompt
                pairs = t[carried, {PAIRS_W}] if window > 0.0 else t[carried, {PAIRS}]
                seen = t[carried, {SEEN_W}] if window > 0.0 else t[carried, {SEEN}]
                {fullest}
            else:
                count, share = t[k, {OTHERS}], t[k, {SHARE}]
            tokens = verified + prompt
            {ranks}
            busiest = most if is_group else 0.0
            if count == 0.0 or tokens == 0.0:
                continue
            if of_kind != t[k, {ALIKE}] or of_group != is_group:  # what the layers of a kind share
                of_kind, of_group = t[k, {ALIKE}], is_group
                {shared}
            {layer}
    k = n_kinds
    {head}
    {after}
    {end}
"""
# Where operators are fitted: alike slices with as many pairs, behind as many tokens of the cache; `_length` of replay/tokens.py.
_LENGTH = """\
before = max(0.0, ({seen} - busiest) / max(crowd, 1.0))
length = {pairs} / max(crowd, 1.0) + before * (before + 1.0) / 2.0
full = min(length, window * (window + 1.0) / 2.0) if window > 0.0 else length
length = (np.sqrt(8.0 * full + 1.0) - 1.0) / 2.0 + ((length - full) / window if window > 0.0 else 0.0) - before"""
# Where the KV cache has a tier of its own: the share that it holds.
_NEAR = """\
held = 0.0
for k in range(n_kinds):
    if t[k, {WINDOW}] < 0.0:
        continue
    of_prompts = t[carried, {HELD_W}] if t[k, {WINDOW}] > 0.0 else t[carried, {HELD}]
    of_decodes = {of_decodes}
    held += (t[k, {OTHERS}] + t[k, {IN_GROUP}]) * (of_decodes + {beside} * n_decodes + carries_prompt * of_prompts){over}
near_kv = min(1.0, {room} / max(held, 1.0))
far_kv = 1.0 - near_kv"""


@kernel(float64(F64_2D, int64, int64), error_model="numpy", allocates=False)
def covered(table, n_tokens, kind):  # type: ignore[no-untyped-def]
    """Share of a layer's experts that n_tokens touch. Beyond the table the untouched share falls as 1 / n_tokens."""
    last = table.shape[0] - 1
    if n_tokens <= last:
        return table[uint64(n_tokens), uint64(kind)]
    return 1.0 - (1.0 - table[last, kind]) * last / n_tokens


@kernel(inline="always")
def stand_together(table, n_kinds, places):  # type: ignore[no-untyped-def]
    """Of layers that cost the same, since all that they carry is equal, the first stands for all. places (N_PLACES,): scratch."""
    last = min(N_OF_KIND + len(EVENT) + len(TRACK), table.shape[1])
    places[:] = -1
    for c in range(uint64(n_kinds)):
        number = 37.7 * table[c, _MISSED] + 101.3 * table[c, _WEIGHTS] + table[c, _CHOSEN]
        place = uint64(int64(number) % N_PLACES)
        first = places[place]
        is_same = first >= 0
        if is_same:
            for i in range(SHARE, last):
                is_same &= table[c, uint64(i)] == table[uint64(first), uint64(i)]
        if is_same:
            table[uint64(first), OTHERS] += table[c, OTHERS]
            table[uint64(first), IN_GROUP] += table[c, IN_GROUP]
            table[c, OTHERS] = table[c, IN_GROUP] = 0.0
        else:
            places[place] = c


@dataclass(frozen=True, eq=False)
class IterationCosts:
    """The cost of any iteration of one model on one machine. source, names, table: an iteration's code, what it calls,
    and its numbers.

    layers_before (L + 1, C): layers of each kind below a layer; moe_of (C,): the one MoE layer of a kind, -1 where it stands for
    several. cov_prefill, cov_decode: shares touched, a column per kind. held_frac: of the experts, in the fast tier.
    background_w: drawn all the time. speculation: what decodes draft; cov_decode then is that of so many requests with all their
    nodes. ledger: objects, and what of each the table's last row sums up over a run, from entry N_COST on. uncounted: kinds of
    rows that the profile has no lane for.
    """

    geometry: Geometry
    machine: HardwareSpec
    profile: Profile
    expert_format: str
    outside: str
    source: str = field(repr=False)
    names: Mapping[str, Any] = field(repr=False)
    table: Floats = field(repr=False)
    layers_before: Floats = field(repr=False)
    moe_of: NDArray[np.int64] = field(repr=False)
    cov_prefill: Floats = field(repr=False)
    cov_decode: Floats = field(repr=False)
    held_frac: float = 1.0
    background_w: float = 0.0
    speculation: Speculation | None = None
    events: bool = False
    ledger: tuple[tuple[str, str], ...] = ()
    uncounted: tuple[str, ...] = ()

    @cached_property
    def iteration(self) -> Callable[[Floats], None]:
        """As machine code, of the table; in place."""
        from tokentape.policies.machine_code import machine_code

        return machine_code(self.source, **self.names)

    @property
    def window(self) -> int:
        """Of the layers that have one."""
        return int(self.table[: self.moe_of.size, WINDOW].max())

    def cost(self, carried: Mapping[int, float], in_group: Floats, only: Floats, mixed: Floats) -> Floats:
        """(N_COST,) of one iteration. in_group (C,): layers that process the prompts; only, mixed (C,): shares of the experts
        that are touched without and with them."""
        table, of_kinds = self.table.copy(), slice(0, self.moe_of.size)
        for entry, value in carried.items():
            table[CARRIED, entry] = value
        for entry, values in (
            (OTHERS, self.layers_before[-1] - in_group),
            (IN_GROUP, in_group),
            (SHARE, only),
            (SHARE_MIXED, mixed),
        ):
            table[of_kinds, entry] = values
        self.iteration(table)
        return table[COST, :N_COST]

    def decode_step_s(self, batch: int, context_tokens: int) -> float:
        """Seconds of an iteration of `batch` decodes, each attending to so many tokens, and no prefill."""
        shares = np.array([covered(self.cov_decode, batch, kind) for kind in range(self.moe_of.size)])
        keys = {KEYS: float(batch * context_tokens), KEYS_W: float(batch * min(context_tokens, self.window))}
        return float(self.cost({DECODES: batch, **keys}, 0.0 * shares, shares, shares)[: len(PARTS)].sum())


def iteration_costs(
    geometry: Geometry,
    machine: HardwareSpec,
    coverage: Coverage,
    profile: Profile | str = profiles.PHYSICAL,
    expert_format: str = ACTIVATION,
    fits: Mapping[str, Fit] | None = None,
    speculation: Speculation | None = None,
    held_frac: float = 1.0,
    events: bool = False,
    end: str = "value",
    tracks: bool = False,
    kv_frac: float = 1.0,
    keeps_ledger: bool = False,
    dense_format: str | Mapping[str, str] = ACTIVATION,
    kv_format: str = ACTIVATION,
    by_model: ByModel | None = None,
    graph_sizes: Sequence[int] = (),
    is_ahead: bool = False,
    ranks: Ranks | None = None,
) -> IterationCosts:
    """Of a model whose layers are shared by all devices of the machine (tensor parallelism), or, where the machine is
    expert-parallel, whose experts are: a layer's experts then take as long as those of the fullest rank, as `ranks` tell, while
    bytes and energy are of all. Without `ranks` every rank has an even share.

    fits: the machine's fitted operators. speculation: every decode is a draft-and-verify round. held_frac: of the experts in the
    fast tier; the others are read in place where the engine can, else fetched. events: what a layer's experts cost is what
    replay/system/events.py says of them; tracks: what decodes read is what kv.py says, layer by layer; kv_frac: bytes of what is
    kept over those of 16-bit keys and values. end: of the machine's ranges. keeps_ledger: sums up what each object takes.
    dense_format: of weights but experts, or by kind of row; kv_format: of keys and values. by_model: measured times of
    this model's layers, in place of operators. graph_sizes: tokens of the CUDA graphs, rising; decodes are
    padded to them, and what pads them chooses experts too. is_ahead: events fetch ahead. Raises ValueError for windows of
    several sizes, and for a profile that would count what is fetched ahead as nothing.
    """
    made = profiles.load(profile) if isinstance(profile, str) else profile
    if ranks and (events or held_frac < 1.0):
        raise ValueError("the fullest rank is known where all experts are in the fast tier and coverage is a curve")
    sizes = {w for w in geometry.sliding_windows if w}
    if len(sizes) > 1:
        raise ValueError(f"{geometry.architecture}: windows of {sorted(sizes)} tokens; one size per model is supported")
    prefill, decode = coverage.tables(geometry) if geometry.moe_layers else (np.zeros((2, 1)), np.zeros((2, 1)))
    if speculation is not None and speculation.n_nodes:
        decode = at_multiples(decode, coverage.tokens_of_nodes(speculation.n_nodes))
    decode = decode[_padded(np.arange(len(decode)), graph_sizes, machine.data_parallel)]
    by_layer = events or prefill.shape[1] > 1
    moe_index = {layer: i for i, layer in enumerate(geometry.moe_layers)}
    keys = [
        (moe_index.get(layer, -1 - layer * tracks) if by_layer else -1, geometry.kind_of(layer))
        for layer in range(geometry.n_layers)
    ]
    kinds = list(dict.fromkeys(keys))
    before = np.zeros((geometry.n_layers + 1, len(kinds)))
    before[1:] = np.cumsum([[key == kind for kind in kinds] for key in keys], axis=0)
    blocks = Blocks.of_layers(geometry, [*map(keys.index, kinds)], np.append(before[-1], 1.0)[None])
    columns = [moe % prefill.shape[1] if is_moe else -1 for moe, (is_moe, *_) in kinds]
    near_tokens = window_frac = 0.0
    if machine.roles.kv_cache:
        is_mixed = geometry.state_layers or geometry.apart  # where a window does not tell
        views = (geometry, geometry) if is_mixed else (geometry.alike(False), geometry.alike(True))
        token_bytes, windowed_bytes = (kv_token_bytes(of, machine, kv_format) for of in views)
        near_bytes = machine.data_parallel * machine.tiers[machine.roles.kv_cache].capacity_bytes.value
        near_tokens = near_bytes / (kv_frac * token_bytes)
        window_frac = windowed_bytes / token_bytes
    of_rows = (end, tracks, kv_frac, dense_format, kv_format, keeps_ledger, bool(ranks))
    how = _Step(geometry, machine, made, blocks, expert_format, held_frac, events, is_ahead, *of_rows)
    n_ranks = machine.n_devices if machine.expert_parallel else 1  # among which experts are shared whole
    told = seconds_of(by_model, geometry.n_experts, machine.data_parallel, n_ranks, bool(ranks)) if by_model else {}
    generated = _generated(how, fits or {}, told)
    pack = by_model.pack if by_model else np.zeros(0)
    constants = np.array([near_tokens, held_frac**geometry.n_experts, *pack])
    of_ranks = constants.size if ranks else 0  # where their curves begin
    constants = np.concatenate([constants, ranks.crowding.ravel()]) if ranks else constants
    is_fitted = any("attention" in name for name in generated.operators)
    asks_longest = not tracks and (bool(by_model) or (is_fitted and runs_fa2(gpu_of(machine))))
    outside = [coverage.outside(geometry), *floats_on_integers(machine, expert_format)] if geometry.moe_layers else []
    outside += [ranks.outside] if ranks else []
    stored = geometry.value_format(expert_format)
    outside += [] if by_model else not_measured(machine, made, fits or {}, geometry, stored, dense_format, kv_format)
    return IterationCosts(
        geometry,
        machine,
        made,
        expert_format,
        "; ".join(filter(None, outside)),
        _source(how, generated, window_frac, of_ranks),
        {
            **({"curve": curve, "plane": plane, "attention": attention} if by_model else {}),
            **({"fuller": fuller} if ranks else {}),
            **generated.operators,
        },
        _table(how, generated, constants, asks_longest),
        before,
        np.array([moe for moe, _ in kinds], np.int64),
        *((np.zeros((2, len(kinds))),) * 2 if events else (_of_kinds(prefill, columns), _of_kinds(decode, columns))),
        held_frac,
        float(sum(background_w(machine, made, end).values())),
        speculation,
        events,
        tuple((part[1] if isinstance(part, tuple) else "", what) for part, what, _ in generated.ledger),
        generated.uncounted,
    )


def no_costs(geometry: Geometry) -> IterationCosts:
    """Of decisions that no clock moves: every iteration takes a second, on no machine."""
    n, layers = len(geometry.moe_layers), np.array(geometry.moe_layers)
    before = np.zeros((geometry.n_layers + 1, n))
    before[1:] = np.cumsum(np.arange(geometry.n_layers)[:, None] == layers, axis=0)
    table, none = np.zeros((n + N_OTHER_ROWS, N_OF_KIND + len(EVENT))), np.zeros((2, n))
    code = "def cost(t):\n    t[t.shape[0] - 1, 0] = 1.0\n"
    roles = SimpleNamespace(near_compute="", expert_cache="", expert_home="", reads=())
    machine: Any = SimpleNamespace(roles=roles, data_parallel=1)
    profile, moe_of = profiles.load(profiles.PHYSICAL), np.arange(n)
    return IterationCosts(geometry, machine, profile, "", "", code, {}, table, before, moe_of, none, none, events=True)


def _of_kinds(table: Floats, columns: list[int]) -> Floats:
    """A column per kind of layer; a dense one has no experts to touch."""
    return np.ascontiguousarray(np.column_stack([np.zeros(len(table)) if c < 0 else table[:, c] for c in columns]))


def _padded(n_tokens: NDArray[np.int64], sizes: Sequence[int], n_replicas: int) -> NDArray[np.int64]:
    """Tokens as CUDA graphs of these sizes compute them, each replica's in its own; more than the largest as they are."""
    of_one = -(-n_tokens // n_replicas)
    at = np.searchsorted(np.array(sizes, np.int64), of_one)
    padded = n_replicas * np.array([*sizes, 0], np.int64)[at]
    return np.asarray(np.where((of_one > 0) & (at < len(sizes)), np.minimum(padded, n_tokens[-1]), n_tokens))


def _table(how: _Step, made: Generated, constants: Floats, asks_longest: bool) -> Floats:
    n_carried, first_column, blocks = N_CARRIED + N_OF_SLICES * how.machine.data_parallel, how.first_column, how.blocks
    width = max(first_column + made.coefficients.shape[1], constants.size, n_carried, N_COST + len(made.ledger))
    table = np.zeros((blocks.n - 1 + N_OTHER_ROWS, width))
    table[: blocks.n, first_column : first_column + made.coefficients.shape[1]] = made.coefficients
    table[: blocks.n - 1, WINDOW] = np.where(np.isin(np.arange(blocks.n - 1), blocks.mixing), blocks.windows, -1)
    rows, kinds = table[: blocks.n - 1], dict[bytes, int]()
    varying = rows[:, (rows != rows[0]).any(axis=0)]
    table[: blocks.n - 1, ALIKE] = [kinds.setdefault(row.tobytes(), len(kinds)) for row in varying]
    table[CONSTANTS, : constants.size] = constants
    table[CARRIED, LONGEST] = 0.0 if asks_longest else -1.0
    return table


def _generated(how: _Step, fits: Mapping[str, Fit], told: Mapping[str, str]) -> Generated:
    """The rows of a step, around a point in all that an iteration carries, as code. told: seconds of rows by name."""
    geometry, machine, blocks = how.geometry, how.machine, how.blocks
    features = ((*_FEATURES[:-2], *EVENT) if how.events else _FEATURES) + TRACK[2:] * how.tracks + OF_RANKS * how.has_ranks
    values = around(len(features))
    at = {name: values[:, [i]] for i, name in enumerate(features)}
    sums = Sums(
        **{name: at[name] for name in _FEATURES[:-2]},
        held=at["keys"],
        near_frac=0.5 if machine.roles.kv_cache else 0.0,
        kv_frac=how.kv_frac,
    )
    apart = () if how.profile.activations else _activations(geometry, at, blocks)
    if how.tracks:
        apart += (rebuilt_of(geometry, machine, at["rebuilt"], np.arange(blocks.n - 1)),)
    experts = how.rows(at)
    if how.has_ranks:
        fullest = how.rows({**at, "tokens": at["heavy"], "share": at["wide"]})
        experts = tuple(replace(of, waits=full) for of, full in zip(experts, fullest, strict=True))
    work = steps_of(geometry, machine, sums, (*experts, *apart), blocks, how.dense_format, how.kv_format)
    # Half of the keys and values lie near in these rows, of which the code takes its own share.
    kinds, tiers = ("kv_read", "kv_write", "attend"), (("kv_cache", "2.0 * near_kv"), ("kv_home", "2.0 * far_kv"))
    scales = {(kind, tier): scale for kind in kinds for tier, scale in tiers} if machine.roles.kv_cache else {}
    guards = _GUARDS | (how.guards if how.events else {})

    def part_of(rows: Rows) -> tuple[str, str]:
        of_place = OBJECTS.get(f"{rows.kind}.{rows.engine}.{rows.tier}", OBJECTS.get(rows.kind, rows.kind))
        return _PART_OF[rows.kind], of_place if how.keeps_ledger else ""

    of_how = how.first_column, how.end, how.keeps_ledger
    return Writer(work, features, machine, how.profile, part_of, guards, fits, scales, *of_how, told).generated()


@dataclass(frozen=True, eq=False)
class _Step:
    """What `iteration_costs` is told of a step. Its routed experts: those held where they are, the others read at their home, or
    fetched from there; or as `events` say."""

    geometry: Geometry
    machine: HardwareSpec
    profile: Profile
    blocks: Blocks
    expert_format: str
    held_frac: float
    events: bool
    is_ahead: bool = False
    end: str = "value"
    tracks: bool = False
    kv_frac: float = 1.0
    dense_format: str | Mapping[str, str] = ACTIVATION
    kv_format: str = ACTIVATION
    keeps_ledger: bool = False
    has_ranks: bool = False

    @property
    def first_column(self) -> int:
        """Of the coefficients, in the table of an iteration."""
        return N_OF_KIND + len(EVENT) * self.events + len(TRACK) * self.tracks

    def rows(self, at: Mapping[str, Floats]) -> tuple[Rows, ...]:
        if not self.blocks.moe.size:
            return ()
        if self.events:
            return self._of_event(at)
        tokens, active = at["tokens"], at["share"] * self.geometry.n_experts
        chosen = tokens * self.geometry.top_k

        def read(frac: float, is_cached: bool = True) -> tuple[Rows, ...]:
            return self.read(tokens, frac * active, frac * chosen, frac * active, is_cached)

        if self.held_frac == 1.0:
            return read(1.0)
        if self.machine.roles.expert_home in self.machine.roles.reads:
            return (*read(self.held_frac), *read(1.0 - self.held_frac, is_cached=False))
        missed = (1.0 - self.held_frac) * active
        return (self.moved("fetch", "fetch missing experts", missed * self.expert_bytes, at["fetches"]), *read(1.0))

    @property
    def expert_bytes(self) -> Values:
        """Of an expert: of every MoE layer where events say what it costs, else the same in all."""
        if self.expert_format != "recorded":
            return self.geometry.expert_params * bytes_per_value(self.expert_format)
        sizes = np.array(self.geometry.expert_bytes("recorded"), np.float64)
        return sizes if self.events else float(sizes.mean())

    @property
    def bits(self) -> float:
        """Of a weight at full width, its share of the scales with it."""
        if self.expert_format != "recorded":
            return 8.0 * bytes_per_value(self.expert_format)
        return float(8.0 * np.mean(self.expert_bytes) / self.geometry.expert_params)

    @property
    def guards(self) -> dict[str, str]:
        """When the main engine has experts to compute at all."""
        if not self.machine.roles.expert_cache:
            return {"expert.main.expert_home": "chosen > 0.0"}
        return {"expert.main.expert_cache": "chosen > 0.0", "expert.main.expert_home": "chosen_in_place > 0.0"}

    def read(self, tokens: Floats, active: Floats, chosen: Floats, weights: Floats, is_cached: bool) -> tuple[Rows, ...]:
        """weights: in whole experts."""
        return experts_of(
            self.geometry, self.machine, self.blocks, tokens, active, chosen, weights * self.expert_bytes, is_cached,
            self.geometry.value_format(self.expert_format),
        )  # fmt: skip

    def moved(self, kind: str, name: str, n_bytes: Floats, count: Floats) -> Rows:
        of = {"tier": "expert_home", "target": "expert_cache", "blocks": self.blocks.moe}
        return Rows(kind=kind, name=name, bytes=n_bytes, count=count, **of)  # type: ignore[arg-type]

    def _of_event(self, at: Mapping[str, Floats]) -> tuple[Rows, ...]:
        per_token, rows = at["chosen"] / self.geometry.top_k, list[Rows]()
        has_cache = bool(self.machine.roles.expert_cache)
        if has_cache:
            rows.append(self.moved("fetch", "fetch missing experts", at["missed"] * self.expert_bytes, at["fetches"]))
        if has_cache and self.is_ahead:
            rows.append(self.moved("prefetch", "fetch experts ahead", at["ahead"] * self.expert_bytes, at["ahead_reads"]))
            if self.profile.lane_of(rows[-1]) is None:
                raise ValueError(
                    f"profile {self.profile.name} has no lane of kind prefetch: what is fetched ahead would cost nothing; take "
                    "physical, or leave prefetch out"
                )
        rows += self.read(per_token, at["active"], at["chosen"], at["weights"], True)
        if has_cache and self.machine.roles.expert_home in self.machine.roles.reads:
            tokens = at["chosen_in_place"] / self.geometry.top_k
            rows += self.read(tokens, at["in_place"], at["chosen_in_place"], at["weights_in_place"], False)
        if self.machine.roles.near_compute:
            crossing = (at["near_tokens"] + at["busy_tokens"]) * (2.0 * self.geometry.moe_hidden * bytes_per_value(ACTIVATION))
            if has_cache:
                rows.append(self.moved("exchange", "activations", crossing, at["exchanges"]))
            rows += [
                near_experts(self, at[of], at[f"{of}_weights"], at[f"{of}_tokens"], at[f"{of}_work"]) for of in ("near", "busy")
            ]
        return tuple(rows)


def near_experts(how: _Step, count: Values, weights: Values, tokens: Values, work: Values) -> Rows:
    """Experts of one event near their memory, all of which wait for their bytes, or all for operations. weights: in whole
    experts; work: tokens x shares of the width."""
    return Rows(
        kind="expert",
        name="experts in memory",
        tier="expert_home",
        engine="near_compute",
        blocks=how.blocks.moe,
        bytes=np.asarray(weights) * how.expert_bytes,
        ops=np.asarray(tokens) * (2.0 * how.geometry.expert_params),
        count=count,
        bits=how.bits * np.asarray(work) / np.asarray(tokens),
    )


def near_bound(costs: IterationCosts, end: str = "value") -> Floats:
    """(2,) tokens from which an expert of full width near its memory waits for operations, not for its bytes; and 1 where widths
    shorten both alike."""
    found = _one_expert(costs, near_experts, end) if costs.machine.roles.near_compute and costs.geometry.moe_layers else None
    if found is None:
        return np.array([np.inf, 1.0])
    read_s, token_s, by_bits = found
    return np.array([read_s / token_s, float(by_bits)])


def host_of(costs: IterationCosts, n_away: int, end: str = "value") -> Host:
    """What a placement may know of this model on this machine. n_away: MoE layers that the fast tier has no room for.
    Where nothing computes near an expert's memory, the main engine reads it there, or has it moved."""
    roles = costs.machine.roles
    main = _one_expert(costs, lambda how, *one: how.read(*one, True)[0], end) if roles.expert_cache else None
    moved = _one_expert(costs, lambda how, *one: how.moved("fetch", "", one[0] * how.expert_bytes, one[0]), end) if main else None
    if main is None or moved is None:
        return Host(n_away)
    near = _one_expert(costs, near_experts, end) if roles.near_compute else None
    if near is None and roles.expert_home in roles.reads:
        near = _one_expert(costs, lambda how, *one: how.read(*one, False)[0], end)
    read_s, token_s, _ = near or (moved[0] + main[0], 0.0, False)
    return Host(n_away, moved[0] / read_s, token_s / read_s, main[0] / read_s)


def _one_expert(costs: IterationCosts, row_of: Callable[..., Rows], end: str) -> tuple[float, float, bool] | None:
    """Seconds of one expert's bytes and of one token's operations in the row of such a one, and whether narrow weights shorten
    these too; None where the profile leaves it out."""
    how = _Step(costs.geometry, costs.machine, costs.profile, blocks_of(costs.geometry), costs.expert_format, 1.0, True)
    row = row_of(how, 1.0, 1.0, 1.0, 1.0)
    lane = costs.profile.lane_of(row)
    if lane is None:
        return None
    rates = rates_of(costs.machine, row, lane, end)
    of_token = float(np.mean(row.ops)) * rates.s_per_op * (how.bits / 16.0 if lane.ops_by_bits else 1.0)
    return float(np.mean(row.bytes)) * rates.s_per_byte, of_token, bool(lane.ops_by_bits)


def _activations(geometry: Geometry, at: Mapping[str, Floats], blocks: Blocks) -> tuple[Rows, ...]:
    """The hidden states of a layer's tokens, for profiles that count no other activations: passes over them, prefill tokens."""
    layers, token_bytes = np.arange(blocks.n - 1), ACTIVATION_PASSES * geometry.hidden * bytes_per_value(ACTIVATION)
    prompt, others = at["prompt"], at["tokens"] - at["prompt"]
    rows = Rows(kind="activations", tier="weights_home", blocks=layers, bytes=others * token_bytes)
    of_prefill = {"bytes": prompt * token_bytes, "count": prompt * geometry.hidden / REFERENCE_HIDDEN}
    return rows, replace(rows, phase="prefill", **of_prefill)  # type: ignore[arg-type]


def _apart(lines: Sequence[str], own: set[str]) -> tuple[list[str], list[str]]:
    """Lines that follow from nothing of a layer's `own`, and the others: sums, and what its own events decide."""
    shared, others = list[str](), list[str]()
    for line in lines:
        name, how, _ = line.split(" ", 2)
        if how == "=" and own.isdisjoint(re.findall(r"[a-z]\w*", line)):
            shared.append(line)
        else:
            own = own | {name}
            others.append(line)
    return shared, others


def _source(how: _Step, made: Generated, window_frac: float, of_ranks: int) -> str:
    """The source of an iteration's cost. window_frac: keys and values of a token in layers with a window over those of others, 0
    where the KV cache has no tier; of_ranks: where among the constants the curves of ranks begin, 0 for none."""
    first, has_tracks = N_OF_KIND + len(EVENT), how.tracks
    of_decodes = f"t[k, {first}]" if has_tracks else f"t[carried, {KEYS_W}] if t[k, {WINDOW}] > 0.0 else t[carried, {KEYS}]"
    crowd, most, of_busiest, fullest = "prompts", "n_prompt", "", ["pass"]
    if how.machine.data_parallel > 1:
        crowd, most = f"t[carried, {FULLEST + PROMPTS}]", f"t[carried, {FULLEST + PROMPT}] * carries_prompt"
        of_busiest, own = "busy_", (("pairs", FULLEST + PAIRS_W, FULLEST + PAIRS), ("seen", FULLEST + SEEN_W, FULLEST + SEEN))
        fullest = [f"busy_{name} = t[carried, {cut}] if window > 0.0 else t[carried, {whole}]" for name, cut, whole in own]
    over = f" * ({window_frac!r} if t[k, {WINDOW}] > 0.0 else 1.0)" if window_frac not in (0.0, 1.0) else ""
    numbers = globals() | {"most": most, "crowd": crowd, "pairs": f"{of_busiest}pairs", "seen": f"{of_busiest}seen"}
    numbers |= {"room": "t[constants, 0]", "of_decodes": of_decodes, "over": over, "beside": how.geometry.tokens_beside}
    keys = [f"keys = {of_decodes}", "scores = keys * (1.0 + n_nodes)"]
    if has_tracks:
        keys = [f"{name} = t[k, {first + i}]" for i, name in enumerate(TRACK)]
        keys += ["context = scores / max(n_decodes, 1.0)", "scores = scores * (1.0 + n_nodes)"]
    text = " ".join((*made.layer, *made.head, *made.after))
    start = [_NEAR.format(**numbers)] if window_frac else []
    longest = "0.0" if has_tracks else f"max(0.0, t[carried, {LONGEST}])"
    start += [f"longest = {longest}"] if "longest" in text else []
    start += [f"{' = '.join(made.sums)} = 0.0"]
    shared, layer = _apart(made.layer, {"share", "wide", *EVENT, *(("context", *TRACK) if has_tracks else ())})
    shared = ["pass", *([_LENGTH.format(**numbers)] if "length" in text else []), *shared]
    seconds = dict[str, list[str]]()
    for of, name in made.seconds.items():
        seconds.setdefault(of[0] if isinstance(of, tuple) else "other", []).append(name)
    ends = [f"t[cost, {i}] = {' + '.join(seconds.get(part, ['0.0']))}" for i, part in enumerate(PARTS)]
    ends += [f"t[cost, {N_COST + i}] += {text}" for i, (_, _, text) in enumerate(made.ledger)]
    for i, name in ((EXPERT_BYTES, made.expert_bytes), (J_OF_BYTES, made.joules_of_bytes), (J_OF_OPS, made.joules_of_ops)):
        ends.append(f"t[cost, {i}] = {name}")
    of_phase = f"t, {of_ranks}, 2 if prompt > 0.0 else 0", f"t, {of_ranks}, 3 if prompt > 0.0 else 1"
    ranks = [f"{name} * fuller({at}, tokens)" for name, at in zip(("share", "tokens"), of_phase, strict=True)] if of_ranks else []
    event = [f"{name} = t[k, {N_OF_KIND + i}]" for i, name in enumerate(EVENT)] if how.events else []
    is_drawn = "fetches" in text and not how.events
    fetches = ["fetches = 1.0 - t[constants, 1] ** share"] * is_drawn  # how often any expert is missed, by independent draws
    written = {
        "start": (start, 4),
        "event": (event, 8),
        "keys": (keys, 8),
        "fullest": (fullest, 16),
        "ranks": ([*fetches, *(f"{name} = {of}" for name, of in zip(("wide", "heavy"), ranks, strict=False))], 12),
        "shared": (shared, 16),
        "layer": (layer, 12),
        "head": (made.head, 4),
        "after": (made.after, 4),
        "end": (ends, 4),
    }
    filled = {name: "\n".join(lines).replace("\n", "\n" + " " * indent) for name, (lines, indent) in written.items()}
    return _SOURCE.format(**filled, **numbers)
