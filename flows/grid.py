"""Runs a study's replays and systems: expands it, skips what is done, computes the rest on threads or processes, writes results.

A replay is identified by the hash of everything that decides its numbers, so an interrupted or repeated run continues where it
stopped, and results have the same rows whatever the runner. The numbers themselves come from replay/.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import cache, lru_cache, partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from tokentape.flows import machines, sources
from tokentape.flows.shared import mapped, shared
from tokentape.flows.study import Study, matching
from tokentape.flows.tapes import told
from tokentape.flows.workers import Telling, as_finished, ending, pool_of
from tokentape.hw import calibrate, spec
from tokentape.hw import profile as profiles
from tokentape.policies import registry
from tokentape.policies.cache import needs_of
from tokentape.policies.names import unknown
from tokentape.policies.resolve import Value, resolve
from tokentape.replay import capacity as capacities
from tokentape.replay import experts
from tokentape.replay.result import ReplayResult, tables_of
from tokentape.replay.semantics import Semantics
from tokentape.replay.stream import Stream, stream
from tokentape.replay.trace import COLUMNS, NotGrowing, Trace, trace_from_tables, without_rows
from tokentape.warehouse import results
from tokentape.warehouse.at_rest import hash_of, hash_of_text, text_of
from tokentape.warehouse.tape import ROW_GROUP_ROWS, Manifest, Store, Tape

if TYPE_CHECKING:
    from tokentape.flows.system_runs import Asked

RESIDENCY = "residency"
BATCH_ROWS = 24_000_000  # of routing, replayed between two files: some seconds
MOST_SHARED = 1 << 28  # lookups of a tape whose stream is kept for all of its replays, 4 B each
ROUTING = ("routing", ROW_GROUP_ROWS, COLUMNS)  # as parts are read
ENGINE = "tokentape.replay.experts"
LONG_ROWS = 1 << 22  # of routing: more are read anew by each replay that can take them part by part, and not held
NAMED = 3  # policies in the name of a batch


@dataclasses.dataclass(frozen=True, slots=True)
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
    profile: str = profiles.PHYSICAL

    def __str__(self) -> str:
        return f"{self.policy} at {self.capacity} {self.semantics.scope} on {self.trace_id}"

    @property
    def told(self) -> tuple[str, str]:
        """Its policy and its machine, as they were asked for."""
        return self.policy, self.hardware

    def key(self, store: Store, study: str) -> str:
        """The run's id. Raises ValueError on bad input."""
        return replay_key(store, self, study, _decided_once)


Job: TypeAlias = "Cell | Asked"  # a run of a study: of a policy, or of a system


@dataclasses.dataclass(frozen=True)
class Batch:
    """Jobs on one tape that a worker is given together, by their runs' ids. plan: of one run of a study; folder: where the tape
    is shared (shared.py); key: a hash of all that decides what comes out; is_there: all of the results are in the store."""

    plan: str
    folder: str
    by_id: Mapping[str, Job]
    key: str
    is_there: bool

    @property
    def jobs(self) -> tuple[Job, ...]:
        return tuple(self.by_id.values())

    def __str__(self) -> str:
        every = dict.fromkeys(job.told[0].rpartition(":")[2].rpartition("/")[2] for job in self.jobs)  # policies and systems
        names = [name for name in every if name != experts.ALL_CAPACITIES] or [*every]
        more = f"+{len(names) - NAMED} more" if len(names) > NAMED else ""
        return f"{'+'.join(names[:NAMED])}{more} on {self.jobs[0].trace_id} x {len(self.jobs)}"

    @property
    def tags(self) -> tuple[str, ...]:
        return (f"tape:{self.jobs[0].trace_id}", *sorted({f"system:{job.system}" for job in self.jobs if hasattr(job, "system")}))


class Refused(NamedTuple):
    """Why there is no result. job: None of a tape that is not there or cannot be opened."""

    job: Job | None
    reason: str

    def __str__(self) -> str:
        return f"{self.job}: {self.reason}" if self.job else self.reason


@dataclasses.dataclass(frozen=True)
class GridReport:
    """How a study went: replays found finished, computed now, and not possible with the reason (a cache below top-k, say)."""

    n_found: int
    n_run: int
    impossible: tuple[str, ...]


def _routed(study: Study, store: Store) -> tuple[list[str], list[Refused]]:
    """Tapes that policies are replayed on, and why others do not open. Raises ValueError if no tape fits, or none that opens."""
    tapes, damaged = store.tapes()
    wanted = matching(study.traces, [*(tape.trace_id for tape in tapes), *damaged])
    routed = [tape.trace_id for tape in tapes if tape.trace_id in wanted and tape.has("routing")]
    refused = [Refused(None, damaged[trace_id]) for trace_id in wanted if trace_id in damaged]
    if not routed:
        none = f"study {study.name}: none of its tapes holds routing; capture one with --tables requests,tokens,routing"
        raise ValueError(refused[0].reason if refused else none)
    for machine in study.hardware:
        load_hardware(machine)
    profiles.load(study.profile)
    return routed, refused


def _cells(study: Study, trace_id: str) -> Iterator[Cell]:
    named = [(policy.name, tuple(policy.params.items()), seed) for policy in study.policies for seed in policy.seeds]
    for scope, expert_format in itertools.product(study.scopes, study.expert_formats):
        semantics = Semantics(scope, **study.semantics)
        if study.lru_curve:
            yield Cell(trace_id, experts.ALL_CAPACITIES, (), "", semantics, "100%", expert_format)
        for machine, size, (name, params, seed) in itertools.product(study.hardware, study.capacities, named):
            yield Cell(trace_id, name, params, machine, semantics, size, expert_format, seed, study.profile)


def replay_once(store: Store, cell: Cell) -> tuple[str, ReplayResult]:
    """The replay's id and result, written to the store as study 'adhoc' unless it is there.

    Raises ValueError on bad input, and for what the policy's engine does not have: nothing is ignored; nothing is written then.
    """
    if getattr(registry.find(RESIDENCY, cell.policy), "kind", "") != "uniform" and cell.seed:
        raise ValueError(f"--seed {cell.seed} has no effect on {cell.policy}, which draws nothing; leave it out")
    key, result = compute(store, cell, "adhoc")
    if not results.is_whole(store, f"replays-{key}"):  # as `write` names a batch of one
        write(store, "adhoc", {key: (cell, result)})
    elif cell.hardware:
        record_machine(store.absolute, cell.hardware)  # which `check --repair` may have dropped
    return key, result


def write(store: Store, study: str, made: Mapping[str, tuple[Cell, ReplayResult]]) -> None:
    """Replays as one batch, by their ids, and the machines they ran on."""
    for machine in sorted({cell.hardware for cell, _ in made.values()} - {""}):
        record_machine(store.absolute, machine)
    code = {key: sources_of(cell) for key, (cell, _) in made.items()}
    results.write_replays(store, tables_of({key: result for key, (_, result) in made.items()}, study, code))


def compute(store: Store, cell: Cell, study: str, is_one: bool = True) -> tuple[str, ReplayResult]:
    """One replay and its id. is_one: no other follows on this tape. Raises ValueError on bad input."""
    key = replay_key(store, cell, study) if is_one else cell.key(store, study)
    how, expert_format = cell.semantics, format_of(store, cell.trace_id, cell.expert_format)
    if cell.policy == experts.ALL_CAPACITIES:
        return key, experts.replay_all_capacities(load_trace(store, cell.trace_id), how, expert_format)
    policy, machine = resolve(RESIDENCY, cell.policy, dict(cell.params)), load_hardware(cell.hardware)
    size, rest, needs = _size_of(store, cell), (expert_format, cell.seed, cell.profile), needs_of(policy)
    with registry.blamed(RESIDENCY, cell.policy):
        try:
            trace = load_trace(store, cell.trace_id, _is_whole(cell), needs)
            is_shared = not (is_one or needs) and trace.read is None and trace.ids.size <= MOST_SHARED
            of_all = dataclasses.replace(how, scope="global")  # the stream that all replays of the tape share
            kept = _stream(store.absolute, cell.trace_id, of_all) if is_shared else None
            return key, experts.replay(trace, policy, machine, how, size, *rest, kept)
        except NotGrowing:
            return key, experts.replay(load_trace(store, cell.trace_id), policy, machine, how, size, *rest)


def _is_whole(cell: Job) -> bool:
    """Whether the run needs all rows of its tape at once."""
    if not isinstance(cell, Cell) or cell.policy == experts.ALL_CAPACITIES:
        return True
    try:
        policy = resolve(RESIDENCY, cell.policy, dict(cell.params))
        return experts.needs_whole(policy, cell.semantics) or bool(needs_of(policy))
    except ValueError:  # told when it is computed
        return False


def lookups_of(store: Store, cell: Cell) -> tuple[Trace, NDArray[np.float64], str]:
    """The cell's tape, what its passes look up (see passes.pass_costs), and the format of all weights but the experts."""
    policy = resolve(RESIDENCY, cell.policy, dict(cell.params))
    trace = load_trace(store, cell.trace_id, needs=needs_of(policy))
    expert_format = format_of(store, cell.trace_id, cell.expert_format)
    found = experts.looked_up(trace, policy, cell.semantics, _size_of(store, cell), expert_format, cell.seed)
    return trace, np.concatenate([of_part for *_, of_part in found], axis=1), expert_format


def _size_of(store: Store, cell: Cell) -> int:
    """Bytes of the cell's cache."""
    geometry = routed(store, cell.trace_id).geometry
    return capacities.parse_capacity(cell.capacity, geometry, format_of(store, cell.trace_id, cell.expert_format))


def replay_key(store: Store, cell: Cell, study: str = "adhoc", decided: Callable[..., Any] | None = None) -> str:
    """The replay_id: a hash of all that decides a result's bytes. Reads the manifest only. Raises ValueError on bad input."""
    alike, types = dataclasses.replace(cell, capacity="", seed=0), tuple(type(value) for _, value in cell.params)
    between, after, experts_of = (decided or _decided)(store.absolute, study, alike, types)
    size = capacities.bytes_of(cell.capacity, *experts_of)
    return hash_of_text(f'{{"capacity_bytes":{size},{between},"seed":{cell.seed},{after}}}')


def _decided(uri: str, study: str, cell: Cell, types: tuple[type, ...]) -> tuple[str, str, tuple[int, int]]:
    """What the ids of replays hash that differ in capacity and seed alone: JSON before the seed and after it; and bytes
    of all experts as the cell holds them, and how many there are. types: of the parameters, since 1 and True are equal."""
    store = Store(uri)
    expert_format = format_of(store, cell.trace_id, cell.expert_format)
    before: dict[str, Any] = {"policy": cell.policy, "params": {}, "hardware": "", "expert_format": expert_format}
    if cell.policy != experts.ALL_CAPACITIES:
        policy = resolve(RESIDENCY, cell.policy, dict(cell.params))
        before |= {"policy": registry.name_of(RESIDENCY, policy), "params": experts.policy_params(policy)}
        before["policy_source"] = registry.sha256(RESIDENCY, cell.policy)
    if cell.hardware:
        before |= {"hardware": load_hardware(cell.hardware).sha256, "profile": profiles.load(cell.profile).sha256}
    manifest = manifest_of(store, cell.trace_id).model_dump(mode="json", exclude={"created_utc"})
    after = {"semantics": dataclasses.asdict(cell.semantics), "sources": sources_of(cell), "study": study, "trace": manifest}
    geometry = routed(store, cell.trace_id).geometry
    experts_of = capacities.total_expert_bytes(geometry, expert_format), len(geometry.moe_layers) * geometry.n_experts
    return text_of(before)[1:-1], text_of(after)[1:-1], experts_of


_decided_once = lru_cache(maxsize=1024)(_decided)


def resolve_run(store: Store, prefix: str, *of: str) -> str:
    """The run of these views whose id begins so. Raises ValueError where there is none, or more than one."""
    known = [run_id for view in of for run_id in results.run_ids(store, view)]
    found = [key for key in known if key.startswith(prefix)]
    if len(found) > 1:
        raise ValueError(f"result {prefix!r} is ambiguous: {', '.join(found[:5])}; give more of it")
    if not found and (other := next((view for view, key in results.all_ids(store) if key.startswith(prefix)), "")):
        raise ValueError(f"result {prefix!r} is of {other}, not of {' or '.join(of)}; `timeline` shows replays")
    if not found:
        raise unknown("result", prefix, known[:20])
    return found[0]


def sources_of(cell: Cell) -> str:
    """Hash of the code that decides the replay: its engine's, its policy's, and the constants of its machine."""
    if cell.policy == experts.ALL_CAPACITIES:
        return sources.sha256(ENGINE)
    return sources.sha256(ENGINE, also=registry.reached(RESIDENCY, cell.policy), fits=_fits(cell.hardware))


def run(
    study: Study,
    store: Store,
    runner: str = "threads",
    workers: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    pools: Callable[[str, int | None], Executor] = pool_of,
    is_part: bool = False,
) -> GridReport:
    """Runs what is missing of a study; `progress` gets (replays finished, replays in all). Ctrl-C stops after those in hand.
    pools: makes the pool of a runner and its workers. is_part: on some of its tapes; what is told of the others stays.

    Raises ValueError if no tape fits or none of the replays is possible.
    """
    from tokentape.flows.planned import record

    n_workers = workers or os.cpu_count() or 1
    pool = pools(runner, n_workers)
    store.remove_stale()
    begin(plan := uuid4().hex)
    jobs, points, impossible, finished = asked(study, store)
    n_found, n_run, total = 0, 0, sum(len(of_trace) for _, of_trace in jobs) + len(impossible)
    is_telling, is_apart = isinstance(pool, Telling), not isinstance(getattr(pool, "pool", pool), ThreadPoolExecutor)
    broken = cache(partial(results.broken, store))  # of all tapes, read once, and where nothing is missing never
    with ending(pool):
        for trace_id, of_trace in jobs:
            wanted, reasons = by_ids(store, study.name, of_trace)
            missing = {key: job for key, job in wanted.items() if key not in finished}
            for machine in sorted({job.told[1] for key, job in wanted.items() if key in finished} - {""}):
                record_machine(store.absolute, machine)  # which `check --repair` may have dropped
            impossible += reasons
            n_found += len(wanted) - len(missing)
            total += len(wanted) + len(reasons) - len(of_trace)  # what is asked for twice is one run
            if missing:
                results.remove_broken(store, broken(), set(missing))
                try:
                    load_trace(store, trace_id, any(map(_is_whole, missing.values())))  # once, before the threads ask for it
                except ValueError as error:  # a damaged tape does not keep the others from their replays
                    impossible += [Refused(job, str(error)) for job in missing.values()]
                    wanted, missing = {}, {}
            n_rows = manifest_of(store, trace_id).rows.get("routing", 0)
            refused, n, cpu_s = dict[str, str](), Counter[str](), Counter[str]()
            progress(n_found + n_run + len(impossible), total)
            with shared(_arrays(store, missing.values()) if is_apart and missing else {}) as folder:
                batches = _batches(plan, folder, wanted if is_telling else missing, missing, n_workers, n_rows)
                for batch, (failed, spent) in as_finished(pool, partial(_run_batch, store.absolute, study.name), batches):
                    if batch.is_there:
                        continue
                    n_run += len(batch.by_id) - len(failed)
                    refused |= failed
                    n.update(job.told[0] for key, job in batch.by_id.items() if key not in failed)
                    cpu_s.update(spent)
                    progress(n_found + n_run + len(impossible) + len(refused), total)
            impossible += [Refused(job, refused[key]) for key, job in missing.items() if key in refused]
            record(store, study.name, trace_id, n_rows, n, cpu_s)

    def others(view: str) -> list[dict[str, Any]]:
        here = {None, *(trace_id for trace_id, _ in jobs)}
        return [row for row in results.rows_of(store, view, study.name) or () if row["trace_id"] not in here] if is_part else []

    if study.grid:
        from tokentape.flows import system_grid

        system_grid.write(store, study.name, points, {repr(job): reason for job, reason in impossible}, others("study_points"))
    rows = [*others("failed_runs"), *(_failed(study.name, one) for one in impossible)]
    results.replace_rows(store, "failed_runs", [row | {"place": n} for n, row in enumerate(rows)], of=study.name)
    if impossible and not n_found + n_run:
        raise ValueError(f"study {study.name}: {impossible[0]}")
    return GridReport(n_found, n_run, tuple(map(str, impossible)))


def _failed(study: str, refused: Refused) -> dict[str, Any]:
    """A row of view `failed_runs`."""
    row: dict[str, Any] = {"study": study, "reason": refused.reason}
    if (job := refused.job) is None:
        return row
    system, hardware = job.told
    asked = json.dumps(dataclasses.asdict(job))
    return row | {"system": system, "hardware": hardware, "trace_id": job.trace_id, "asked": asked}


def asked(study: Study, store: Store) -> tuple[list[tuple[str, Sequence[Job]]], list[Any], list[Refused], set[str]]:
    """The runs of a study, of each tape; its points in a figure; why tapes are left out; ids that are there."""
    jobs, points, impossible = list[tuple[str, Sequence[Job]]](), list[Any](), list[Refused]()
    if study.policies:
        trace_ids, impossible = _routed(study, store)
        jobs += [(trace_id, [*_cells(study, trace_id)]) for trace_id in trace_ids]
    if study.grid:
        from tokentape.flows import system_grid  # which loads tapes as this module does

        points, reasons = system_grid.expand(study, store)
        by_tape = itertools.groupby(sorted((point.asked for point in points), key=(tape := attrgetter("trace_id"))), key=tape)
        jobs += [(trace_id, [*of]) for trace_id, of in by_tape]
        impossible += [Refused(None, reason) for reason in reasons]
    views = ("replays", "system_runs") if study.grid else ("replays",)
    return jobs, points, impossible, {key for view, key in results.all_ids(store) if view in views}


def by_ids(store: Store, study: str, jobs: Iterable[Job]) -> tuple[dict[str, Job], list[Refused]]:
    """Runs by their ids, each once, and why others can have no result."""
    found, reasons = dict[str, Job](), list[Refused]()
    for job in jobs:
        try:
            found[job.key(store, study)] = job
        except ValueError as error:
            reasons.append(Refused(job, str(error)))
    return found, reasons


def _run_batch(uri: str, study: str, batch: Batch) -> tuple[dict[str, str], dict[str, float]]:
    """Computes jobs on one tape: why runs are not there, by their ids, and CPU seconds of the others by policy or system. Replays
    of policies are written together, a system's run is a batch of its own. What one raises does not keep the others from running,
    unless it is of the disk or the memory. Raises ChildProcessError where a run is not the one that was asked for."""
    refused, cpu_s = dict[str, str](), defaultdict[str, float](float)
    if batch.is_there:
        return refused, cpu_s
    from tokentape.flows.system_runs import Asked, run_asked

    begin(batch.plan)
    _shared_at[batch.jobs[0].trace_id] = batch.folder
    began = time.thread_time()
    store, made = Store(uri), dict[str, tuple[Cell, ReplayResult]]()
    for planned, job in batch.by_id.items():
        start = time.thread_time()
        try:
            if isinstance(job, Asked):
                key, _ = run_asked(store, job)
            else:
                key, result = compute(store, job, study, is_one=False)
                made[key] = (job, result)
        except ValueError as error:
            refused[planned] = str(error)
            continue
        except (OSError, MemoryError):
            raise
        except Exception as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            refused[planned] = f"raised {type(error).__name__}: {error} ({at.filename}, line {at.lineno})"
            continue
        if key != planned:
            raise ChildProcessError(f"{job}: the worker has other code, another tape or another machine's file; start it anew")
        cpu_s[job.told[0]] += time.thread_time() - start
    if made:
        write(store, study, made)
    whole = (time.thread_time() - began) / (sum(cpu_s.values()) or 1.0)  # what is done for all of a batch is shared by them
    return refused, {name: whole * spent for name, spent in cpu_s.items()}


@lru_cache(maxsize=1)
def begin(plan: str) -> None:
    """Forgets what was read for another run of a study: files may have changed since."""
    for read in READ:
        read.cache_clear()
    _shared_at.clear()


def _arrays(store: Store, jobs: Collection[Job]) -> dict[str, Any]:
    """The jobs' tape, unless each of them reads its rows anew, and its stream where many read the same; the process itself keeps
    neither."""
    job = next(iter(jobs))
    trace = load_trace(store, job.trace_id, any(map(_is_whole, jobs)))
    _trace.cache_clear()
    if trace.read is not None:
        return {}
    if isinstance(job, Cell) and trace.ids.size <= MOST_SHARED:
        return {"trace": trace, "stream": stream(trace, job.semantics)}
    return {"trace": trace}


def _batches(
    plan: str, folder: str, cells: Mapping[str, Job], missing: Mapping[str, Job], n_workers: int, n_rows: int
) -> Iterator[Batch]:
    """Of `cells`, by their ids, those that are `missing`, or where none of a batch is, all of it. At least four batches per
    worker, to share the load; of at most eight replays of a long tape, so that Ctrl-C waits for little, and of more of a short
    one, since a batch is a file per table. n_rows: of the tape's routing."""
    size = min(max(8, min(64, BATCH_ROWS // max(1, n_rows))), max(1, -(-len(cells) // (4 * n_workers))))
    keys = list(cells)
    for start in range(0, len(keys), size):
        chosen = keys[start : start + size]
        left = [key for key in chosen if key in missing]
        yield Batch(plan, folder, {key: cells[key] for key in left or chosen}, hash_of(chosen), is_there=not left)


def load_trace(store: Store, trace_id: str, is_whole: bool = True, needs: Sequence[str] = ()) -> Trace:
    """The tape's routing as arrays, with what a policy needs of gates and scores; the last one is kept. Of a long tape,
    where it need not be whole, one that reads its rows. Raises ValueError for a tape without routing."""
    of = routed(store, trace_id)
    if not is_whole and of.rows["routing"] > LONG_ROWS:
        trace = _long_trace(store.absolute, trace_id)
        if trace is not None:
            return trace
    trace = _trace(store.absolute, trace_id)
    return dataclasses.replace(trace, told={name: told(store.absolute, trace_id, name) for name in needs}) if needs else trace


def manifest_of(store: Store, trace_id: str) -> Manifest:
    """The tape's manifest; read once."""
    return _manifest(store.absolute, trace_id)


def routed(store: Store, trace_id: str) -> Manifest:
    """The same. Raises ValueError for a tape without routing."""
    if "routing" not in (of := manifest_of(store, trace_id)).tables:
        raise ValueError(f"tape {trace_id} records no routing; import or capture one that does")
    return of


_shared_at = dict[str, str]()  # folders of tapes that processes share, for what is read once below


@lru_cache(maxsize=1)
def _stream(uri: str, trace_id: str, semantics: Semantics) -> Stream:
    """The same for all scopes."""
    return mapped(_shared_at.get(trace_id, ""), "stream", Stream, told={}) or stream(_trace(uri, trace_id), semantics)


@lru_cache(maxsize=1)
def _trace(uri: str, trace_id: str) -> Trace:
    of = _manifest(uri, trace_id)
    given = {"trace_id": trace_id, "origin": of.origin, "geometry": of.geometry, "read": None, "told": {}}
    if found := mapped(_shared_at.get(trace_id, ""), "trace", Trace, **given):
        return found
    tape = _unchanged(uri, trace_id)
    routing = tape.batches(*ROUTING)
    return trace_from_tables(trace_id, of.geometry, of.origin, routing, tape.passes, of.rows["routing"])


@lru_cache(maxsize=1)
def _long_trace(uri: str, trace_id: str) -> Trace | None:
    """None of a speculative tape: only its rows tell how many tokens of a pass were accepted."""
    tape = _unchanged(uri, trace_id)
    of, passes = tape.manifest, tape.passes.sort("pass_id")
    if passes["kind"].is_in(["draft", "verify"]).any():
        return None
    return without_rows(trace_id, of.geometry, of.origin, passes, partial(tape.batches, *ROUTING))


def _unchanged(uri: str, trace_id: str) -> Tape:
    tape = Store(uri).open(trace_id)
    if tape.manifest != _manifest(uri, trace_id):
        raise ValueError(f"tape {trace_id} has changed while it was in use; run the same command again")
    return tape


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


OF_MACHINES = (_hardware, _fits, record_machine)
READ: list[Any] = [_trace, _long_trace, _stream, _manifest, _decided_once, told, *OF_MACHINES]  # kept of files


def forget_changed(tape: Tape) -> None:
    """What was read of machines, whose files may have changed since; of tapes, too, where this one has been made anew."""
    for read in READ if manifest_of(tape.store, tape.trace_id) != tape.manifest else OF_MACHINES:
        read.cache_clear()


def format_of(store: Store, trace_id: str, expert_format: str) -> str:
    """The experts' format; `auto` is the sizes another engine recorded, else int8-g32."""
    if expert_format != "auto":
        return expert_format
    manifest = manifest_of(store, trace_id)
    return "recorded" if manifest.origin == "imported" and manifest.geometry.recorded_expert_bytes else "int8-g32"
