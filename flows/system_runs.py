"""Systems on tapes and machines: a tape's requests as a workload, runs at rest, and a table of many beside each other.

A run is known by the hash of all that decides its numbers, as a replay is: one that the store has is not made again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from operator import itemgetter
from statistics import median

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tokentape.flows import sources
from tokentape.flows.grid import READ, format_of, load_hardware, load_trace, manifest_of, record_machine
from tokentape.flows.tapes import attention_tape, gate_weights, scored_trace, with_similarity
from tokentape.hw import calibrate
from tokentape.hw import profile as profiles
from tokentape.hw.spec import HardwareSpec, with_values
from tokentape.policies import registry
from tokentape.policies.bits import UNIFORM, BitRule
from tokentape.policies.cache import needs_of
from tokentape.policies.names import refuse_twice, refuse_unknown
from tokentape.policies.resolve import convert, told
from tokentape.policies.slots import System, system_of
from tokentape.replay.capacity import parse_capacity
from tokentape.replay.cxl_ndp.setting import stand_in_losses
from tokentape.replay.result import Metric, ReplayResult, tables_of
from tokentape.replay.serving.iteration import PARTS
from tokentape.replay.serving.workload import LONGEST, Requests, arrivals
from tokentape.replay.system.drafts import TABLES
from tokentape.replay.system.recorded import Recorded, recorded
from tokentape.replay.system.run import Setting, run
from tokentape.replay.transformer import ACTIVATION
from tokentape.warehouse import models, results
from tokentape.warehouse.at_rest import hash_of
from tokentape.warehouse.geometry import Geometry
from tokentape.warehouse.losses import loss_table
from tokentape.warehouse.model_sizes import kv_bytes, other_bytes
from tokentape.warehouse.schema.metrics import METRICS as UNITS
from tokentape.warehouse.tables import BadTable
from tokentape.warehouse.tape import BadTape, Store

ALWAYS = ("no_offload", "lru_offload")
BOUND = "bound"  # of lru_offload: the same schedule and room, with Belady's choice of victims
BELADY = {"residency.policy": "belady"}
# What is compared: the metric, and whether more is better.
METRICS = {"tokens_per_s": True, "ttft_mean_s": False, "tbt_p99_s": False, "energy_j_per_output_token": False}
WORDS = ("requests", "repeats", "output", "batch", "rate", "seed", "order")
VIEW, ENGINE = "system_runs", "tokentape.replay.system.run"
LOSSES = ("tokentape.warehouse.losses", "tokentape.replay.cxl_ndp.setting")  # of experts at few bits, read and drawn
STAND_IN = "losses of experts at few bits are drawn: this tape holds none"
MOST_TOKENS, MOST_AT_ONCE, MOST_ROOM = 32_768, 16, 0.5  # of a workload and a room that no one chose


@dataclass(frozen=True)
class Workload:
    """requests: how many of the tape's, in order, all where 0. repeats: how often they come again, after the last of them.
    output: tokens of an answer at most, all that the tape has where 0. batch: requests at once, the system's where 0. rate:
    arrivals per second, all there at 0 where 0. seed: of arrivals, of a shuffled order, and of caches that draw."""

    requests: int = 0
    repeats: int = 0
    output: int = 0
    batch: int = 0
    rate: float = 0.0
    seed: int = 0
    order: str = "tape"

    def of(self, tape: Recorded) -> Requests:
        """The requests. Raises ValueError for more than the tape has."""
        n_held = tape.n_prompt.size
        n = self.requests or n_held
        if n > n_held:
            raise ValueError(f"requests={n}: tape {tape.trace_id} holds {n_held}; record a longer one, or ask for fewer")
        rng = np.random.default_rng(self.seed)
        rows = np.tile(rng.permutation(n_held)[:n] if self.order == "shuffled" else np.arange(n), 1 + self.repeats)
        made = tape.requests(arrivals(rows.size, self.rate, rng) if self.rate else None, rows)
        return replace(made, n_output_tokens=np.minimum(made.n_output_tokens, self.output or LONGEST))

    @property
    def draws(self) -> bool:
        return bool(self.rate) or self.order == "shuffled"

    def __str__(self) -> str:
        arriving = f"{self.rate:g} arriving per second" if self.rate else "all there at 0"
        at_once = f"at most {self.batch} at once, " if self.batch else ""
        seed = f", seed {self.seed}" * self.draws
        requests = "1 request" if self.requests == 1 else f"{self.requests or 'all'} requests"
        again = f", {self.repeats} times again" if self.repeats else ""
        cut = f", {self.output} tokens of each at most" if self.output else ""
        return f"{requests} of the tape{again}{cut}, {at_once}{arriving}, order {self.order}{seed}"


def workload_of(text: str | None) -> Workload:
    """`rate=2,batch=8`. Raises ValueError naming the word."""
    given: dict[str, int | float | str] = {}
    for pair in filter(None, (text or "").split(",")):
        name, equals, value = (part.strip() for part in pair.partition("="))
        refuse_unknown("word of --workload", name, WORDS)
        if not equals:
            raise ValueError(f"--workload {name} has no value; write {name}=VALUE")
        refuse_twice("--workload", [*given, name])
        given[name] = convert(f"--workload {name}", value, {"order": str, "rate": float}.get(name, int))
        if name == "order" and value not in ("tape", "shuffled"):
            raise ValueError(f"--workload order={value}: choose tape or shuffled")
        if name != "order" and not 0 <= float(given[name]) < float("inf"):
            raise ValueError(f"--workload {name}={value} must be 0 or more and finite")
    return Workload(**given)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Asked:
    """One run, as a person would type it. system: a name or a file; changes: of its slots; budget: room for experts, where it
    has a cache or a hot set; name: that the run goes by, the system's where empty; numbers: of the machine, by dotted key."""

    trace_id: str
    system: str
    machine: str
    workload: Workload = Workload()
    changes: Mapping[str, str] = field(default_factory=dict)
    budget: str | None = None
    model: str | None = None
    expert_format: str = "auto"
    profile: str = profiles.PHYSICAL
    name: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        changed = "".join(f" {key}={value}" for key, value in {**self.changes, **self.numbers}.items())
        return f"{self.name or self.system}{changed} on {self.machine}, {self.trace_id}: {self.workload}"

    @property
    def told(self) -> tuple[str, str]:
        return self.name or self.system, self.machine

    def key(self, store: Store, study: str = "") -> str:
        """The run's id, the same in every study. Raises ValueError on what cannot be had."""
        return key_of(store, self, self.made(store))

    def check_budget(self, store: Store) -> int:
        """Bytes of the room, 0: none is asked for. Raises ValueError for one, or a format of experts, that there cannot be."""
        geometry = tape_of(store, self.trace_id, self.model).geometry
        expert_format = format_of(store, self.trace_id, self.expert_format)
        geometry.expert_bytes(expert_format)
        return parse_capacity(self.budget, geometry, expert_format) if self.budget else 0

    @property
    def hardware(self) -> HardwareSpec:
        return with_values(load_hardware(self.machine), self.numbers)

    @classmethod
    def from_json(cls, text: str) -> Asked:
        given = json.loads(text)
        return cls(**given | {"workload": Workload(**given["workload"])})

    def made(self, store: Store | None = None) -> System:
        """store: of the tape that Buddy's similarity is taken from. Raises ValueError as `system_of`, and where a change and a
        word of the run say one thing twice."""
        system = system_of(self.system, with_similarity(self.changes, store, "route."))
        options = {slot: dict(given) for slot, given in system.options.items()}
        shared = (
            (system.room, "budget", self.budget, "budget"),
            ("schedule", "max_seqs", self.workload.batch, "batch of the workload"),
        )
        for slot, name, value, word in shared:
            if slot and value:
                if (key := f"{slot}.{name}") in self.changes:
                    raise ValueError(f"{key}={self.changes[key]} and the {word}, {value}, say one thing; leave one out")
                options.setdefault(slot, {})[name] = str(value)
        return replace(system, name=self.name or system.name, options=options)


def run_asked(store: Store, asked: Asked) -> tuple[str, ReplayResult]:
    """A run's id and result; from the store, without its series, where it is there, else computed and written to it. Raises
    ValueError on what cannot be had; nothing is written then."""
    chosen, machine = asked.made(store), asked.hardware
    tape = tape_of(store, asked.trace_id, asked.model, asks_scores(chosen))
    setting = setting_of(store, asked, chosen)
    key, code = key_of(store, asked, chosen), _sources(chosen, machine, setting)
    if there := results.stored_run(store, VIEW, key):
        record_machine(store.absolute, asked.machine)
        return key, _read(*there)
    with chosen.blamed():
        made = run(tape, asked.workload.of(tape), chosen, machine, setting, keeps_ledger=True)
    told_also: dict[str, object] = {"workload": str(asked.workload), "asked": json.dumps(asdict(asked), sort_keys=True)}
    if setting.losses is not None and not store.open(asked.trace_id).has("losses"):
        said = filter(None, (made.settings["outside_envelope"], STAND_IN))
        told_also |= {"is_extrapolated": True, "outside_envelope": "; ".join(said)}
    result = replace(made, settings=made.settings | told_also)
    record_machine(store.absolute, asked.machine)
    results.write_replays(store, tables_of({key: result}, "adhoc", {key: code}, VIEW))
    return key, result


def key_of(store: Store, asked: Asked, system: System) -> str:
    """The run's id: a hash of all that decides its numbers."""
    machine, setting = asked.hardware, setting_of(store, asked, system)
    own = {slot: registry.sha256(slot, told(slot, policy)[0]) for slot, policy in system.policies.items()}
    workload = asdict(asked.workload) | ({} if asked.workload.draws else {"seed": setting.seed})
    return hash_of(
        {
            "trace": manifest_of(store, asked.trace_id).model_dump(mode="json", exclude={"created_utc"}),
            "system": [system.name, system.told(), own],
            "hardware": machine.sha256,
            "workload": workload,
            "model": asked.model and hash_of(models.load(asked.model).geometry.model_dump(mode="json")),
            "setting": [setting.expert_format, setting.seed, profiles.load(asked.profile).sha256],
            "sources": _sources(system, machine, setting),
        }
    )


def _sources(system: System, machine: HardwareSpec, setting: Setting) -> str:
    """Hash of the code that decides a run: the loop's, its policies', that of losses, and the constants of its machine."""
    names = {name for slot, policy in system.policies.items() for name in registry.reached(slot, told(slot, policy)[0])}
    also = sorted(names.union(() if setting.losses is None else LOSSES))
    return sources.sha256(ENGINE, also=tuple(also), fits=calibrate.files_of(machine))


def _read(facts: Mapping[str, object], metrics: pl.DataFrame) -> ReplayResult:
    rows = metrics.select("metric", "value", "low", "high", "denominator").iter_rows()
    return ReplayResult(
        dict(facts), {name: Metric(value, UNITS[name].unit, low, high, of) for name, value, low, high, of in rows}
    )


@lru_cache(maxsize=2)
def _recorded(uri: str, trace_id: str, model: str | None, of_model: Geometry | None, has_scores: bool) -> Recorded:
    store = Store(uri)
    trace, scores = scored_trace(store, trace_id) if has_scores else (load_trace(store, trace_id), None)
    if model is not None and of_model is not None:
        trace = replace(trace, geometry=trace.geometry.completed(of_model, model))
    tape = store.open(trace_id)
    drafted = None
    if all(tape.has(name) for name in TABLES):
        drafted = (tape.manifest.settings.get("speculation") or {}, {name: tape.read(name) for name in TABLES})
    attention = attention_tape(store, trace_id) if manifest_of(store, trace_id).attention else None
    gates = gate_weights(tape)
    if gates is not None and gates.size != trace.ids.size:  # a speculative tape's are of drafts, too
        gates = None
    return recorded(trace, gates, attention and replace(attention, geometry=trace.geometry), scores, drafted=drafted)


def tape_of(store: Store, trace_id: str, model: str | None, has_scores: bool = False) -> Recorded:
    """A tape's requests, with the widths of a model where given, and what its router ranked by where a system asks. Raises
    ValueError where the model is another, and for a tape without what is asked."""
    of_model = None if model is None else models.load(model).geometry  # as its file has it now
    return _recorded(store.absolute, trace_id, model, of_model, has_scores)


def asks_scores(system: System) -> bool:
    """Whether a router or a cache's policy reads the tape's scores."""
    return system.route is not None or "score" in needs_of(system.residency)


def setting_of(store: Store, asked: Asked, system: System) -> Setting:
    """How the system runs; its seed is 0 where nothing of it draws."""
    draws = getattr(system.residency, "kind", "") == "uniform" or getattr(system.sliced, "draws", False)
    profiles.load(asked.profile)
    by_losses = isinstance(system.precision, BitRule) and system.precision is not UNIFORM
    losses = _losses(store.absolute, asked.trace_id) if by_losses else None
    seed = asked.workload.seed if draws else 0
    expert_format = format_of(store, asked.trace_id, asked.expert_format)
    return Setting(profile=asked.profile, expert_format=expert_format, seed=seed, losses=losses)


@lru_cache(maxsize=2)
def _losses(uri: str, trace_id: str) -> NDArray[np.float64]:
    """Of experts at 1 to 4 bits: the tape's own, else the stand-in of the study of CXL GPU-NDP."""
    tape = Store(uri).open(trace_id)
    if tape.has("losses"):
        return loss_table(tape)
    return stand_in_losses(len(tape.geometry.moe_layers), tape.geometry.n_experts)


READ.extend((_recorded, _losses))


# ------------------------------------------------------------------------------------------------ side by side


@dataclass(frozen=True)
class Cell:
    """A system on a machine: its runs by their ids, one per seed that draws, or why there is none."""

    system: str
    machine: str
    runs: Mapping[str, ReplayResult]
    reason: str = ""
    room: str = ""  # for experts, as asked

    @property
    def any(self) -> ReplayResult | None:
        return next(iter(self.runs.values()), None)

    def metric(self, name: str) -> Metric | None:
        """The median of the seeds, from the lowest to the highest end of any."""
        found = [run.metrics[name] for run in self.runs.values() if name in run.metrics]
        if not found:
            return None
        low, high = (m.low for m in found if m.low is not None), (m.high for m in found if m.high is not None)
        value = median(m.value for m in found)
        return Metric(value, found[0].unit, min(low, default=None), max(high, default=None), found[0].denominator)

    def change(self, name: str, other: Cell) -> Metric | None:
        """Of a metric against another cell's, seed by seed: the median, and the range over seeds."""
        mine, theirs = list(self.runs.values()), list(other.runs.values())
        pairs = [(mine[i % len(mine)], theirs[i % len(theirs)]) for i in range(max(len(mine), len(theirs))) if mine and theirs]
        found = [a.metrics[name].value / b.metrics[name].value - 1.0 for a, b in pairs if name in a.metrics and name in b.metrics]
        return Metric(median(found), "1", min(found), max(found), f"{other.system}'s") if found else None


def compare(
    store: Store,
    asked: Asked,
    names: Sequence[str],
    machines: Sequence[str],
    n_seeds: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Cell]:
    """Every system on every machine, with no_offload, lru_offload and its bound beside them. asked: what they share; where it
    says no budget, `room_for` does. What a tape or machine cannot carry is a cell with the reason.

    Raises ValueError on what no system could run with, such as names that do not exist, and where nothing ran.
    """
    if not machines:
        raise ValueError("--machine names none; give shipped machines or my.toml, by commas")
    machines = list(dict.fromkeys(machines))
    hardware = [load_hardware(machine).name for machine in machines]
    profiles.load(asked.profile)
    every = [replace(asked, system=name) for name in dict.fromkeys((*ALWAYS, *names))]
    every.append(replace(asked, system="lru_offload", changes=BELADY, name=BOUND))
    systems = [one.made().name for one in every]
    for names_of in (systems, hardware):
        if len({*names_of}) < len(names_of):
            raise ValueError(f"two of {', '.join(names_of)} go by one name; rename one of yours")
    tape, cells = tape_of(store, asked.trace_id, asked.model), list[Cell]()
    if not tape.geometry.hidden:
        raise ValueError("this tape records no widths and heads; give the model it was taken from with --model")
    given = asked.check_budget(store)  # in bytes: a share of a system's own width of experts would be another room
    asked.workload.of(tape)
    for machine in machines:
        room = given or room_for(store, asked, tape, machine)
        for name, one in zip(systems, every, strict=True):
            made, reason = dict[str, ReplayResult](), ""
            for seed in range(asked.workload.seed, asked.workload.seed + n_seeds):
                workload = replace(asked.workload, seed=seed)
                try:
                    key, result = run_asked(store, replace(one, machine=machine, budget=f"{room}B", workload=workload))
                    made[key] = result
                except (BadTable, BadTape):
                    raise  # says nothing about the system
                except ValueError as error:
                    made, reason = {}, str(error)
                    break
            cells.append(Cell(name, machine, made, reason, asked.budget or f"{room / 1e9:.4g} GB"))
            progress(len(cells), len(machines) * len(every))
    for machine in machines:
        rows = _at_rest(asked, [cell for cell in cells if cell.machine == machine], systems)
        results.write_rows(store, "comparisons", rows, of=f"{asked.trace_id} {rows[0]['hardware']} {_words(asked)}")
    if not any(cell.runs for cell in cells):
        raise ValueError(f"no system ran: {cells[0].reason}")
    return cells


def _words(asked: Asked) -> str:
    """Of a comparison: what its systems share, but the seed."""
    room = f"room for experts {asked.budget}" if asked.budget else "what room the machine has left, at most half of the experts"
    usual = {"experts": "auto", "priced by": profiles.PHYSICAL, "model": None}
    told = zip(usual.items(), (asked.expert_format, asked.profile, asked.model), strict=True)
    more = "".join(f", {name} {value}" for (name, left_out), value in told if value != left_out)
    return f"{replace(asked.workload, seed=0)}; {room}{more}".replace(", seed 0", "")


def _at_rest(asked: Asked, cells: Sequence[Cell], order: Sequence[str]) -> list[dict[str, object]]:
    """Rows of table `comparisons`: one per run, or one with the reason why there is none."""
    shared = {"comparison": _words(asked), "trace_id": asked.trace_id}
    return [
        shared
        | {"hardware": load_hardware(cell.machine).name, "place": order.index(cell.system), "system": cell.system}
        | {"seed": seed, "result_id": run_id, "reason": cell.reason or None}
        for cell in cells
        for seed, run_id in enumerate(cell.runs or [None], asked.workload.seed)
    ]


def workload_for(tape: Recorded) -> Workload:
    """Requests of the tape up to MOST_TOKENS in all, at most MOST_AT_ONCE of them at once, all there at 0."""
    n = max(1, int(np.searchsorted(np.cumsum(tape.n_inputs), MOST_TOKENS, "right")))
    return Workload(requests=n, batch=min(n, MOST_AT_ONCE))


def room_for(store: Store, asked: Asked, tape: Recorded, machine: str) -> int:
    """Bytes for experts: what a machine's fast tier has left beside the other weights and the longest requests' keys and values,
    at most MOST_ROOM of all experts, so that a system has something to decide."""
    spec, geometry = load_hardware(machine), tape.geometry
    roles, expert_format = spec.roles, format_of(store, asked.trace_id, asked.expert_format)
    total = sum(geometry.expert_bytes(expert_format)) * geometry.n_experts
    fast = roles.expert_cache or roles.expert_home
    room = spec.tiers[fast].capacity_bytes.value * spec.n_devices
    if roles.weights_home == fast:
        room -= other_bytes(geometry, geometry.value_format(expert_format), ACTIVATION) * spec.data_parallel
    if roles.kv_home == fast:
        n = asked.workload.batch or replace(asked, system="lru_offload").made().max_seqs
        room -= n * kv_bytes(geometry, int(tape.n_inputs.max()) + 1, "bf16", spec.tensor_parallel)
    return int(max(0, min(room, MOST_ROOM * total)))


def winners(cells: Sequence[Cell]) -> dict[tuple[str, str], dict[str, str]]:
    """By machine and room, then by metric, the system that does best, the first of equals; what sees the future is none."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for at in dict.fromkeys((cell.machine, cell.room) for cell in cells):
        ran = [cell for cell in cells if (cell.machine, cell.room) == at and cell.any and not cell.any.settings["is_bound"]]
        for metric, more in METRICS.items():
            rated = [(of.value, cell.system) for cell in ran if (of := cell.metric(metric))]
            if rated:
                found.setdefault(at, {})[metric] = (max if more else min)(rated, key=itemgetter(0))[1]
    return found


def limit_of(cell: Cell) -> str:
    """The part of an iteration that takes longest, with its share: medians of the seeds."""
    shares = {part: share.value for part in PARTS if (share := cell.metric(f"{part}_frac"))}
    busiest = max(shares, key=shares.__getitem__)
    return f"{busiest} {shares[busiest]:.0%}"
