"""Systems on tapes and machines: a tape's requests as a workload, one run, and a table of many beside each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tokentape.flows.grid import load_hardware, load_trace, manifest_of
from tokentape.hw import profile as profiles
from tokentape.policies.names import unknown
from tokentape.policies.slots import System, system_of
from tokentape.replay.result import ReplayResult
from tokentape.replay.serving.workload import Requests, arrivals
from tokentape.replay.system.drafts import TABLES
from tokentape.replay.system.recorded import Recorded, recorded
from tokentape.replay.system.run import Setting, run
from tokentape.warehouse import models
from tokentape.warehouse.formats import EXPERT_FORMATS
from tokentape.warehouse.tape import Store

ALWAYS = ("no_offload", "lru_offload")
BOUND = "bound"  # of lru_offload: the same schedule and room, with Belady's choice of victims
# What is compared: the metric, and whether more is better.
METRICS = {"tokens_per_s": True, "ttft_mean_s": False, "tbt_p99_s": False, "energy_j_per_token": False}
WORDS = ("requests", "batch", "rate", "seed", "order")


@dataclass(frozen=True)
class Workload:
    """requests: how many of the tape's, in order, all where 0. batch: requests at once, the system's where 0. rate: arrivals per
    second, all there at 0 where 0."""

    requests: int = 0
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
        rows = rng.permutation(n_held)[:n] if self.order == "shuffled" else np.arange(n)
        return tape.requests(arrivals(n, self.rate, rng) if self.rate else None, rows)

    def __str__(self) -> str:
        arriving = f"{self.rate:g} arriving per second" if self.rate else "all there at 0"
        return f"{self.requests or 'all'} requests of the tape, {arriving}, order {self.order}, seed {self.seed}"


def workload_of(text: str | None) -> Workload:
    """`rate=2,batch=8`. Raises ValueError naming the word."""
    given: dict[str, int | float | str] = {}
    for pair in filter(None, (text or "").split(",")):
        name, equals, value = (part.strip() for part in pair.partition("="))
        if name not in WORDS or not equals:
            raise unknown("word of --workload", name, WORDS)
        if name == "order":
            if value not in ("tape", "shuffled"):
                raise ValueError(f"--workload order={value}: choose tape or shuffled")
            given[name] = value
            continue
        try:
            given[name] = float(value) if name == "rate" else int(value)
        except ValueError as error:
            raise ValueError(f"--workload {name}={value} is not a number") from error
        if not 0 <= float(given[name]) < float("inf"):
            raise ValueError(f"--workload {name}={value} must be 0 or more and finite")
    return Workload(**given)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Cell:
    """A system on a machine: its result, or why there is none."""

    system: str
    machine: str
    result: ReplayResult | None
    reason: str = ""


def tape_of(store: Store, trace_id: str, model: str | None) -> Recorded:
    """A tape's requests, with the widths of a model where given. Raises ValueError where the model is another."""
    trace = load_trace(store, trace_id)
    if model is not None:
        of_model, own = models.load(model).geometry, trace.geometry
        for name in ("n_layers", "n_experts", "moe_layers"):
            if getattr(of_model, name) != getattr(own, name):
                found = f"{name} is {getattr(of_model, name)}, the tape's is {getattr(own, name)}"
                raise ValueError(f"--model {model}: {found}; give the tape's own model")
        kept = {name: getattr(own, name) for name in ("top_k", "recorded_expert_bytes", "recorded_dense_bytes")}
        trace = replace(trace, geometry=type(of_model).model_validate({**of_model.model_dump(), **kept}))
    tape = store.open(trace_id)
    routing = tape.read("routing")
    gates = routing["gate_weights"].explode().to_numpy() if "gate_weights" in routing.columns else None
    if gates is not None and (gates.dtype == object or gates.size != trace.ids.size or not np.isfinite(gates).all()):
        gates = None
    drafted = None
    if all(tape.has(name) for name in TABLES):
        drafted = (tape.manifest.settings.get("speculation") or {}, {name: tape.read(name) for name in TABLES})
    return recorded(trace, gates, drafted)


def setting_of(store: Store, trace_id: str, tape: Recorded, expert_format: str, profile: str | None) -> Setting:
    """How systems run on a tape. `auto`: the format nearest to the sizes that an engine recorded, else int8-g32."""
    chosen = expert_format
    if chosen == "auto":
        sizes = tape.geometry.recorded_expert_bytes if manifest_of(store, trace_id).origin == "imported" else ()
        chosen = "int8-g32"
        if sizes and tape.geometry.expert_params:
            per_value = float(np.mean(sizes)) / tape.geometry.expert_params
            chosen = min(EXPERT_FORMATS, key=lambda name: abs(EXPERT_FORMATS[name] - per_value))
    profiles.load(profile or profiles.PHYSICAL)
    return Setting(profile=profile or profiles.PHYSICAL, expert_format=chosen)


def budgeted(system: System, budget: str | None, workload: Workload) -> System:
    """The system with this room for experts, where it has a cache or a hot set, and this batch."""
    options = {slot: dict(given) for slot, given in system.options.items()}
    slot = "residency" if system.residency is not None else "place" if system.place is not None else ""
    if budget and slot:
        options.setdefault(slot, {})["budget"] = budget
    if workload.batch:
        options.setdefault("schedule", {})["max_seqs"] = str(workload.batch)
    return replace(system, options=options)


def run_system(
    store: Store,
    trace_id: str,
    system: System,
    machine: str,
    workload: Workload,
    model: str | None = None,
    expert_format: str = "auto",
    profile: str | None = None,
) -> ReplayResult:
    """One system on one tape and machine. Raises ValueError on what cannot be had."""
    spec = load_hardware(machine)
    tape = tape_of(store, trace_id, model)
    setting = setting_of(store, trace_id, tape, expert_format, profile)
    return run(tape, workload.of(tape), budgeted(system, None, workload), spec, setting)


def compare(
    store: Store,
    trace_id: str,
    names: Sequence[str],
    machines: Sequence[str],
    budget: str | None,
    workload: Workload,
    model: str | None = None,
    expert_format: str = "auto",
    profile: str | None = None,
    changes: Mapping[str, str] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Cell]:
    """Every system on every machine, with no_offload, lru_offload and its bound beside them. What a tape or machine cannot carry
    is a cell with the reason. Raises ValueError on names that do not exist, and where nothing ran."""
    systems = {name: system_of(name) for name in dict.fromkeys((*ALWAYS, *names))}
    systems[BOUND] = replace(system_of("lru_offload", {"residency.policy": "belady"}), name=BOUND)
    specs = {name: load_hardware(name) for name in machines}
    tape = tape_of(store, trace_id, model)
    setting, requests = setting_of(store, trace_id, tape, expert_format, profile), workload.of(tape)
    cells = list[Cell]()
    for machine, spec in specs.items():
        for name, system in systems.items():
            try:
                cells.append(Cell(name, machine, run(tape, requests, budgeted(system, budget, workload), spec, setting)))
            except ValueError as error:
                cells.append(Cell(name, machine, None, str(error)))
            progress(len(cells), len(specs) * len(systems))
    if not any(cell.result for cell in cells):
        raise ValueError(f"no system ran: {cells[0].reason}")
    return cells


def winners(cells: Sequence[Cell]) -> dict[str, dict[str, str]]:
    """By machine and metric, the system that does best; bounds are none."""
    found: dict[str, dict[str, str]] = {}
    for machine in dict.fromkeys(cell.machine for cell in cells):
        ran = [(cell, cell.result) for cell in cells if cell.machine == machine and cell.result and cell.system != BOUND]
        for metric, more in METRICS.items():
            rated = [(result.metrics[metric].value, cell.system) for cell, result in ran if metric in result.metrics]
            if rated:
                found.setdefault(machine, {})[metric] = (max if more else min)(rated)[1]
    return found


def limit_of(result: ReplayResult) -> str:
    """The part of an iteration that takes longest, with its share."""
    parts = {name: metric.value for name, metric in result.metrics.items() if name.startswith("seconds_")}
    busiest = max(parts, key=parts.__getitem__)
    return f"{busiest.removeprefix('seconds_').removesuffix('_frac')} {parts[busiest]:.0%}"
