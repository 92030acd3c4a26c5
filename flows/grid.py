"""Runs a study's replays and systems: expands it, skips what is done, computes the rest on threads or processes, writes results.

A replay is identified by the hash of everything that decides its numbers, so an interrupted or repeated run continues where it
stopped, and results have the same bytes whatever the runner. The numbers themselves come from replay/.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tokentape.flows import machines, sources
from tokentape.flows.scored import composed, scored_trace, told
from tokentape.flows.study import Study, matching
from tokentape.flows.workers import Telling, as_finished, ending, pool_of
from tokentape.hw import calibrate, spec
from tokentape.hw import profile as profiles
from tokentape.hw.profile import PHYSICAL
from tokentape.policies import registry
from tokentape.policies.cache import needs_of
from tokentape.policies.names import unknown
from tokentape.policies.resolve import Value, resolve
from tokentape.replay import capacity as capacities
from tokentape.replay import experts
from tokentape.replay.result import ReplayResult, tables_of
from tokentape.replay.semantics import Semantics
from tokentape.replay.slicemoe.cost import OTHER_FORMAT
from tokentape.replay.system.routes import slices_of
from tokentape.replay.system.slicemoe import describe, found_in, replay_sliced, serve
from tokentape.replay.trace import Trace, trace_from_tables
from tokentape.warehouse import results
from tokentape.warehouse.at_rest import hash_of
from tokentape.warehouse.tables import RESULT_TABLES
from tokentape.warehouse.tape import ROW_GROUP_ROWS, Manifest, Store

RESIDENCY = "residency"
BATCH_ROWS = 2_000_000  # of routing, replayed between two files
ENGINE, SLICED_ENGINE = "tokentape.replay.experts", "tokentape.replay.system.slicemoe"
NAMED = 3  # policies in the name of a batch
SLICEMOE = "slicemoe"  # its capacity is of the experts at the high width


class Job(Protocol):
    """A run of a study: a Cell, or a system's, flows/system_runs.py."""

    @property
    def trace_id(self) -> str: ...

    def key(self, store: Store, study: str) -> str:
        """The run's id. Raises ValueError on bad input."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """One replay, as a person would type it. Only names and numbers, so that it travels to another process."""

    trace_id: str
    policy: str
    params: tuple[tuple[str, Value], ...]
    hardware: str
    semantics: Semantics
    capacity: str
    expert_format: str = "auto"
    seed: int = 0
    profile: str = PHYSICAL

    def __str__(self) -> str:
        return f"{self.policy} at {self.capacity} {self.semantics.scope} on {self.trace_id}"

    def key(self, store: Store, study: str) -> str:
        return replay_key(store, self, study)


@dataclasses.dataclass(frozen=True)
class Batch:
    """Jobs on one tape that a worker is given together, by their runs' ids. plan: of one run of a study; key: a hash of all that
    decides what comes out; is_there: all of the results are in the store."""

    plan: str
    number: int
    by_id: Mapping[str, Job]
    key: str
    is_there: bool

    @property
    def jobs(self) -> tuple[Job, ...]:
        return tuple(self.by_id.values())

    def __str__(self) -> str:
        names = [name for name in self.names if name not in ("", experts.ALL_CAPACITIES)] or list(self.names)
        more = f"+{len(names) - NAMED} more" if len(names) > NAMED else ""
        return f"{'+'.join(names[:NAMED])}{more} on {self.jobs[0].trace_id} x {len(self.jobs)}"

    @property
    def names(self) -> tuple[str, ...]:
        """Of policies and systems, each once."""
        named = (getattr(job, "policy", "") or getattr(job, "system", "") for job in self.jobs)
        return tuple(dict.fromkeys(name.rpartition(":")[2].rpartition("/")[2] for name in named))

    @property
    def tags(self) -> tuple[str, ...]:
        return (f"tape:{self.jobs[0].trace_id}", *sorted({f"system:{job.system}" for job in self.jobs if hasattr(job, "system")}))


@dataclasses.dataclass(frozen=True)
class GridReport:
    """How a study went: replays found finished, computed now, and not possible with the reason (a cache below top-k, say)."""

    n_found: int
    n_run: int
    impossible: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Planned:
    """What a study would do: runs found finished, left to compute, and known not to be possible. n_bytes: that those left would
    take in the store, from earlier runs of the same view and tape, or else of that view; None where there are none."""

    n_found: int
    n_left: int
    impossible: tuple[str, ...]
    n_bytes: int | None


def expand(study: Study, store: Store) -> list[Cell]:
    """Every replay of policies of the study, trace by trace. Raises ValueError if no tape fits, or none that can be opened."""
    tapes, damaged = store.tapes()
    wanted = matching(study.traces, [*(tape.trace_id for tape in tapes), *damaged])
    routed = [tape.trace_id for tape in tapes if tape.trace_id in wanted and tape.has("routing")]
    if not routed:
        if set(wanted) & set(damaged):
            raise ValueError(next(reason for trace_id, reason in damaged.items() if trace_id in wanted))
        raise ValueError(
            f"study {study.name}: none of its tapes holds routing; capture one with --tables requests,tokens,routing"
        )
    for machine in study.hardware:
        load_hardware(machine)
    cells, profile = [], study.profile
    profiles.load(profile)
    for trace_id, scope, expert_format in itertools.product(routed, study.scopes, study.expert_formats):
        semantics = Semantics(scope=scope, **study.semantics.model_dump())
        if study.lru_curve:
            cells.append(Cell(trace_id, experts.ALL_CAPACITIES, (), "", semantics, "100%", expert_format))
        cells += [
            Cell(trace_id, policy.name, tuple(policy.params.items()), machine, semantics, size, expert_format, seed, profile)
            for machine, size, policy in itertools.product(study.hardware, study.capacities, study.policies)
            for seed in policy.seeds
        ]
    return cells


def run_cell(store: Store, cell: Cell, study: str = "adhoc") -> tuple[str, ReplayResult]:
    """Computes one replay and writes it unless it is there. Raises ValueError on bad input; nothing is written then."""
    key, result = compute(store, cell, study)
    if key not in results.run_ids(store):
        write(store, study, {key: (cell, result)})
    return key, result


def replay_once(
    store: Store,
    trace_id: str,
    policy: str,
    params: Mapping[str, Any],
    hardware: str,
    semantics: Semantics,
    capacity: str,
    expert_format: str = "auto",
    seed: int = 0,
    profile: str | None = None,
) -> tuple[str, ReplayResult]:
    """The replay's id and result, written to the store as study 'adhoc' unless it is there.

    Raises ValueError on bad input, and for what the policy's engine does not have: nothing is ignored.
    """
    if policy == SLICEMOE:
        given = {**dataclasses.asdict(semantics), "expert-format": expert_format}
        only = {**dataclasses.asdict(Semantics("global")), "expert-format": "auto"}
        for name, value in given.items():
            if name not in ("start", "fetching") and value != only[name]:
                raise ValueError(f"--{name} {value} does not go with slicemoe: it has --{name} {only[name]} only")
    elif seed and getattr(registry.find(RESIDENCY, policy), "kind", "") != "uniform":
        raise ValueError(f"--seed {seed} has no effect on {policy}, which draws nothing; leave it out")
    how = (expert_format, seed, profile or PHYSICAL)
    return run_cell(store, Cell(trace_id, policy, tuple(params.items()), hardware, semantics, capacity, *how))


def write(store: Store, study: str, made: Mapping[str, tuple[Cell, ReplayResult]]) -> None:
    """Replays as one batch, by their ids, and the machines they ran on."""
    for machine in sorted({cell.hardware for cell, _ in made.values()} - {""}):
        record_machine(store.absolute, machine)
    code = {key: sources_of(cell) for key, (cell, _) in made.items()}
    results.write_replays(store, tables_of({key: result for key, (_, result) in made.items()}, study, code))


def compute(store: Store, cell: Cell, study: str) -> tuple[str, ReplayResult]:
    """One replay and its id. Raises ValueError on bad input."""
    key, how, expert_format = replay_key(store, cell, study), cell.semantics, format_of(store, cell.trace_id, cell.expert_format)
    if cell.policy == SLICEMOE:
        trace, scores = scored_trace(store, cell.trace_id)
        system = composed(dict(cell.params), store)
        size, machine = _size_of(store, cell, system), load_hardware(cell.hardware)
        return key, replay_sliced(
            trace, scores, system, machine, size, start=how.start, fetching=how.fetching, seed=cell.seed, profile=cell.profile
        )
    if cell.policy == experts.ALL_CAPACITIES:
        return key, experts.replay_all_capacities(load_trace(store, cell.trace_id), how, expert_format)
    policy, machine = resolve(RESIDENCY, cell.policy, dict(cell.params)), load_hardware(cell.hardware)
    trace = load_trace(store, cell.trace_id, needs_of(policy))
    size = _size_of(store, cell, policy)
    with registry.blamed(RESIDENCY, cell.policy):
        return key, experts.replay(trace, policy, machine, how, size, expert_format, cell.seed, cell.profile)


def lookups_of(store: Store, cell: Cell) -> tuple[Trace, NDArray[np.int64], str]:
    """The cell's tape, what its passes look up (see passes.pass_costs), and the format of all weights but the experts."""
    if cell.policy == SLICEMOE:
        trace, scores = scored_trace(store, cell.trace_id)
        system, is_cold = composed(dict(cell.params), store), cell.semantics.start == "cold"
        events, _ = serve(trace, scores, system, _size_of(store, cell, system), is_cold, cell.seed)
        return trace, found_in(trace, events), OTHER_FORMAT
    policy = resolve(RESIDENCY, cell.policy, dict(cell.params))
    trace, expert_format = load_trace(store, cell.trace_id, needs_of(policy)), format_of(store, cell.trace_id, cell.expert_format)
    found = experts.looked_up(trace, policy, cell.semantics, _size_of(store, cell), expert_format, cell.seed)
    return trace, found, expert_format


def _size_of(store: Store, cell: Cell, policy: Any = None) -> int:
    """Bytes of the cell's cache."""
    geometry = manifest_of(store, cell.trace_id).geometry
    if cell.policy != SLICEMOE:
        return capacities.parse_capacity(cell.capacity, geometry, format_of(store, cell.trace_id, cell.expert_format))
    n_keys = len(geometry.moe_layers) * geometry.n_experts
    return capacities.bytes_of(cell.capacity, n_keys * sum(slices_of(geometry, policy.cache)), n_keys)


def replay_key(store: Store, cell: Cell, study: str = "adhoc") -> str:
    """The replay_id: a hash of all that decides a result's bytes. Reads the manifest only. Raises ValueError on bad input."""
    expert_format = format_of(store, cell.trace_id, cell.expert_format)
    parts = {
        "study": study,
        "trace": manifest_of(store, cell.trace_id).model_dump(mode="json", exclude={"created_utc"}),
        "policy": cell.policy,
        "params": {},
        "hardware": "",
        "semantics": dataclasses.asdict(cell.semantics),
        "expert_format": expert_format,
        "seed": cell.seed,
    }
    if cell.policy == SLICEMOE:
        system = composed(dict(cell.params), store)
        size = _size_of(store, cell, system)
        parts |= {"policy": describe(system), "capacity_bytes": size, "expert_format": system.cache.name}
    else:
        parts["capacity_bytes"] = _size_of(store, cell)
    if cell.policy not in (experts.ALL_CAPACITIES, SLICEMOE):
        policy = resolve(RESIDENCY, cell.policy, dict(cell.params))
        parts["policy"] = registry.label(RESIDENCY, policy)
        parts["policy_source"] = registry.sha256(RESIDENCY, cell.policy)
        parts["params"] = experts.policy_params(policy)
    if cell.hardware:
        parts |= {"hardware": load_hardware(cell.hardware).sha256, "profile": profiles.load(cell.profile).sha256}
    return hash_of(parts | {"sources": sources_of(cell)})


def resolve_run(store: Store, prefix: str, of: str = "replays") -> str:
    """The run of a view whose id begins so. Raises ValueError where there is none, or more than one."""
    known = results.run_ids(store, of)
    found = [key for key in known if key.startswith(prefix)]
    if len(found) > 1:
        raise ValueError(f"result {prefix!r} is ambiguous: {', '.join(found[:5])}; give more of it")
    if not found:
        raise unknown("result", prefix, known[:20])
    return found[0]


def sources_of(cell: Cell) -> str:
    """Hash of the code that decides the replay: its engine's, its policy's, and the constants of its machine."""
    if cell.policy == experts.ALL_CAPACITIES:
        return sources.sha256(ENGINE)
    fits = _fits(cell.hardware)
    if cell.policy == SLICEMOE:
        return sources.sha256(SLICED_ENGINE, fits=fits)
    return sources.sha256(ENGINE, also=registry.reached(RESIDENCY, cell.policy), fits=fits)


def run(
    study: Study,
    store: Store,
    runner: str = "threads",
    workers: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    pools: Callable[[str, int | None], Executor] = pool_of,
) -> GridReport:
    """Runs what is missing of a study; `progress` gets (replays finished, replays in all). Ctrl-C stops after those in hand.
    pools: makes the pool of a runner and its workers.

    Raises ValueError if no tape fits or none of the replays is possible.
    """
    n_workers = workers or os.cpu_count() or 1
    pool = pools(runner, n_workers)
    store.remove_stale()
    begin(plan := uuid4().hex)
    cells, points, impossible, finished = _asked(study, store)
    n_found, n_run = 0, 0
    n_cells = Counter(cell.trace_id for cell in cells)
    total = len(cells) + len(impossible)
    with ending(pool):
        for trace_id, of_trace in itertools.groupby(cells, key=lambda cell: cell.trace_id):
            wanted, missing, reasons = _missing(store, study.name, list(of_trace), finished)
            impossible += reasons
            if missing:
                results.remove_broken(store, set(missing))
            n_found += n_cells[trace_id] - len(missing) - len(reasons)
            if missing:
                try:
                    load_trace(store, trace_id)  # once, before the threads ask for it
                except ValueError as error:  # a damaged tape does not keep the others from their replays
                    impossible += [f"{cell}: {error}" for cell in missing.values()]
                    wanted, missing = {}, {}
            n_rows = manifest_of(store, trace_id).rows["routing"]
            batches = _batches(plan, wanted if isinstance(pool, Telling) else missing, missing, n_workers, n_rows)
            refused = dict[int, list[str]]()  # by batch, so that their order is the study's
            n_refused = len(impossible)
            for batch, (ran, reasons) in as_finished(pool, partial(_run_batch, store.absolute, study.name), batches):
                if batch.is_there:
                    continue
                n_run += ran
                refused[batch.number] = reasons
                n_refused += len(reasons)
                progress(n_found + n_run + n_refused, total)
            impossible += [reason for _, reasons in sorted(refused.items()) for reason in reasons]
    if study.grid:
        from tokentape.flows import system_grid

        system_grid.write(store, study.name, points, impossible)
    if impossible and not n_found + n_run:
        raise ValueError(f"study {study.name}: {impossible[0]}")
    return GridReport(n_found, n_run, tuple(impossible))


def planned(study: Study, store: Store) -> Planned:
    """What `run` would do; computes and writes nothing, opens manifests and earlier runs alone. Raises ValueError as it does."""
    begin(uuid4().hex)
    cells, _, impossible, finished = _asked(study, store)
    n_found, left = 0, Counter[tuple[str, str]]()
    for trace_id, of_trace in itertools.groupby(cells, key=lambda cell: cell.trace_id):
        wanted, missing, reasons = _missing(store, study.name, list(of_trace), finished)
        impossible += reasons
        n_found += len(wanted) - len(missing)
        left.update(("replays" if isinstance(cell, Cell) else "system_runs", trace_id) for cell in missing.values())
    per_run = _bytes_per_run(store) if left else {}
    each = [(n, per_run.get(kind, per_run.get((kind[0], "")))) for kind, n in left.items()]
    n_bytes = None if any(size is None for _, size in each) else round(sum(n * (size or 0.0) for n, size in each))
    return Planned(n_found, left.total(), tuple(impossible), n_bytes)


def _bytes_per_run(store: Store) -> dict[tuple[str, str], float]:
    """What a run takes in the store, by view and tape, and by view alone under ""."""
    sizes = Counter[str]()
    for table in RESULT_TABLES:
        if store.fs.isdir(folder := store.path(table)):
            for entry in store.fs.ls(folder, detail=True):
                sizes[entry["name"].rsplit("/", 1)[-1].removesuffix(".parquet")] += entry["size"]
    n_bytes, n_runs = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    runs = results.stored(store, "runs", results.batches(store))
    for stem, view, trace_id, n in runs.group_by("stem", "view_name", "trace_id").len().iter_rows():
        for kind in {(view, trace_id or ""), (view, "")}:
            n_bytes[kind] += sizes[stem]
            n_runs[kind] += n
    return {kind: n_bytes[kind] / n for kind, n in n_runs.items()}


def _asked(study: Study, store: Store) -> tuple[list[Job], list[Any], list[str], set[str]]:
    """All runs of a study, tape by tape; its points in a figure; why tapes are left out; ids that are there."""
    cells: list[Job] = [*expand(study, store)] if study.policies else []
    points, impossible = list[Any](), _damaged(study, store) if study.policies else []
    if study.grid:
        from tokentape.flows import system_grid  # which loads tapes as this module does

        points, reasons = system_grid.expand(study, store)
        cells += sorted((point.asked for point in points), key=lambda asked: asked.trace_id)
        impossible += reasons
    return cells, points, impossible, {*results.run_ids(store), *(results.run_ids(store, "system_runs") if study.grid else ())}


def _damaged(study: Study, store: Store) -> list[str]:
    """Why tapes of the study cannot be opened."""
    damaged = store.tapes()[1]
    return [damaged[i] for i in matching(study.traces, store.trace_ids()) if i in damaged]


def _missing(store: Store, study: str, cells: list[Job], finished: set[str]) -> tuple[dict[str, Job], dict[str, Job], list[str]]:
    """By their ids: cells, and those of them that have no whole result yet; the reasons of those that can have none."""
    wanted, reasons = dict[str, Job](), []
    for cell in cells:
        try:
            key = cell.key(store, study)
        except ValueError as error:
            reasons.append(f"{cell}: {error}")
            continue
        wanted[key] = cell
    return wanted, {key: cell for key, cell in wanted.items() if key not in finished}, reasons


def _run_batch(uri: str, study: str, batch: Batch) -> tuple[int, list[str]]:
    """How many cells of one trace were computed, and the reasons of those that are not possible. Replays of policies are written
    together, a system's run is a batch of its own. Raises ChildProcessError where a run is not the one that was asked for."""
    if batch.is_there:
        return len(batch.by_id), []
    from tokentape.flows.system_runs import Asked, run_asked

    begin(batch.plan)
    store, made, reasons = Store(uri), dict[str, tuple[Cell, ReplayResult]](), list[str]()
    for planned, cell in batch.by_id.items():
        try:
            if isinstance(cell, Asked):
                key, _ = run_asked(store, cell)
            elif isinstance(cell, Cell):
                key, result = compute(store, cell, study)
                made[key] = (cell, result)
        except ValueError as error:
            reasons.append(f"{cell}: {error}")
            continue
        if key != planned:
            raise ChildProcessError(f"{cell}: the worker has other code, another tape or another machine's file; start it anew")
    if made:
        write(store, study, made)
    return len(batch.by_id) - len(reasons), reasons


@lru_cache(maxsize=1)
def begin(plan: str) -> None:
    """Forgets what was read for another run of a study: files may have changed since."""
    from tokentape.flows import system_runs

    for read in (_trace, _manifest, _hardware, _fits, record_machine, *system_runs.READ):
        read.cache_clear()


def _batches(plan: str, cells: Mapping[str, Job], missing: Mapping[str, Job], n_workers: int, n_rows: int) -> Iterator[Batch]:
    """Of `cells`, by their ids, those that are `missing`, or where none of a batch is, all of it. At least four batches per
    worker, to share the load; of at most eight replays of a long tape, so that Ctrl-C waits for little, and of more of a short
    one, since a batch is a file per table. n_rows: of the tape's routing."""
    size = min(max(8, min(64, BATCH_ROWS // max(1, n_rows))), max(1, -(-len(cells) // (4 * n_workers))))
    keys = list(cells)
    for number, start in enumerate(range(0, len(keys), size)):
        chosen = keys[start : start + size]
        left = [key for key in chosen if key in missing]
        yield Batch(plan, number, {key: cells[key] for key in left or chosen}, hash_of(chosen), is_there=not left)


def load_trace(store: Store, trace_id: str, needs: Sequence[str] = ()) -> Trace:
    """The tape's routing as arrays, with what a policy needs of its gate weights and scores; the last one is kept."""
    trace = _trace(store.absolute, trace_id)
    return dataclasses.replace(trace, told={name: told(store.absolute, trace_id, name) for name in needs}) if needs else trace


def manifest_of(store: Store, trace_id: str) -> Manifest:
    """The tape's manifest; read once."""
    return _manifest(store.absolute, trace_id)


@lru_cache(maxsize=1)
def _trace(uri: str, trace_id: str) -> Trace:
    tape = Store(uri).open(trace_id)
    of = tape.manifest
    if of != _manifest(uri, trace_id):
        raise ValueError(f"tape {trace_id} has changed while it was in use; run the same command again")
    routing = (pl.DataFrame(rows) for rows in tape.batches("routing", ROW_GROUP_ROWS))
    return trace_from_tables(trace_id, of.geometry, of.origin, routing, tape.read("passes"), of.rows["routing"])


def load_hardware(name_or_path: str) -> spec.HardwareSpec:
    """A shipped machine by name or a user's own `.toml`; read once. Raises ValueError with the nearest name."""
    return _hardware(str(Path(name_or_path).resolve()) if name_or_path.endswith(".toml") else name_or_path)


_hardware = lru_cache(maxsize=32)(spec.load)


@lru_cache(maxsize=32)
def _fits(machine: str) -> Any:
    """Files of the machine's fits; read once, as the machine is."""
    return calibrate.files_of(load_hardware(machine))


@lru_cache(maxsize=32)
def record_machine(uri: str, name_or_path: str) -> None:
    """Once per process: the machine's numbers, beside the results that ran on it."""
    machines.record(Store(uri), load_hardware(name_or_path))


@lru_cache(maxsize=64)
def _manifest(uri: str, trace_id: str) -> Manifest:
    return Store(uri).open(trace_id).manifest


def format_of(store: Store, trace_id: str, expert_format: str) -> str:
    """The experts' format; `auto` is the sizes another engine recorded, else int8-g32."""
    if expert_format != "auto":
        return expert_format
    manifest = manifest_of(store, trace_id)
    return "recorded" if manifest.origin == "imported" and manifest.geometry.recorded_expert_bytes else "int8-g32"
