"""A point of a serving engine by names: model, machine, scheduler, workload, coverage. What `serving` and studies run."""

import dataclasses
import hashlib
import io
import json
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from pydantic import BaseModel

from tokentape.flows.grid import READ, load_hardware, load_trace
from tokentape.flows.serving.held import costs_of
from tokentape.flows.system_runs import tape_of
from tokentape.hw import by_model, calibrate, serving_fits
from tokentape.hw import profile as profiles
from tokentape.hw.clock import background_w, not_counted
from tokentape.hw.spec import HardwareSpec
from tokentape.policies import registry
from tokentape.policies.names import refuse_unknown
from tokentape.policies.resolve import resolve
from tokentape.policies.serving import AnyScheduler, Disaggregated, Speculation
from tokentape.replay.serving import coverage as coverages
from tokentape.replay.serving.client import Client
from tokentape.replay.serving.engine_logs import Engine as EngineSettings
from tokentape.replay.serving.iteration import iteration_costs
from tokentape.replay.serving.measure import Engine
from tokentape.replay.serving.memory import MEMORY_FRAC, footprint
from tokentape.replay.serving.ranks import Ranks, of_even_draws, of_tape
from tokentape.replay.serving.run import Limits
from tokentape.replay.serving.workload import LENGTHS, Requests, from_table, resampled, sharing, spread_ties, synthetic
from tokentape.warehouse import models
from tokentape.warehouse.at_rest import hash_of
from tokentape.warehouse.geometry import Geometry
from tokentape.warehouse.load import claims
from tokentape.warehouse.tape import Store

COVERAGES = ("paper_table", "independent", "full", "recorded")
ARRIVALS = ("poisson", "gamma", "trace", "at_once")
ONE_PROMPT = "prompt-"  # a workload of one prompt of so many tokens that asks for one token
# What expert times set in the lane of experts.
MEASURED: dict[str, dict[str, str | bool]] = {"fitted": {}, "measured": {"per": "item", "operators": True}}
COLUMNS = ("arrival_s", "n_prompt_tokens", "n_output_tokens")


class Point(BaseModel, frozen=True, extra="forbid"):
    """A serving engine under one load.

    profile: of costs; that of the paper's server takes the numbers of the fit. scheduler: a name with its fields in `params`.
    workload: a data set of replay/serving/workload.py, `prompt-8192`, a CSV of COLUMNS, or a tape. rate_per_s: None where the
    workload brings its own arrivals, or all arrive at once. client: a benchmark client sends them (replay/serving/client.py).
    windows: of a trace, one per seed. coverage: one of COVERAGES, or a tape whose curves are taken. expert_times: of the
    paper's server, fitted or those of measured kernels. acceptance: of the verify_nodes drafts of a decode: chances by
    position, or a tape with rounds. expert_placement: devices hold whole experts (replay/serving/ranks.py), None: a part of each.
    kv_blocks: None for what memory_frac of the machine's memory leaves beside the model.
    engine: settings of a vLLM engine, which decide all that it has; fits: folder of a user's own constants, or of tables by
    model.
    """

    model: str = "qwen3-30b-a3b"
    hardware: str = "h100x2"
    profile: str = profiles.PHYSICAL
    fit: str = "h100x2"
    scheduler: str
    params: dict[str, int | float | str] = {}
    workload: str = "arxiv"
    arrival: str = "poisson"
    rate_per_s: float | None = None
    cv: float = 1.0
    n_requests: int | None = None
    client: bool = False
    windows: int = 1
    prefix_cache: bool = False
    expert_placement: str | None = None
    verify_nodes: int = 0
    acceptance: str | None = None
    draft_s: float = 0.0
    coverage: str = "paper_table"
    expert_format: str = "bf16"
    expert_times: str = "fitted"
    kv_blocks: int | Literal["unbounded"] | None = None
    memory_frac: float = MEMORY_FRAC
    max_seqs: int = 256
    n_seeds: int = 40
    engine: dict[str, Any] | None = None
    fits: str | None = None

    def scheduled(self) -> AnyScheduler:
        """The scheduler. Raises ValueError naming what is wrong with it."""
        made: AnyScheduler = resolve("schedule", self.scheduler, self.params)
        return made

    @property
    def arrival_text(self) -> str:
        """As table serving_points says it."""
        return f"gamma, CV {self.cv:g}" if self.arrival == "gamma" else self.arrival.replace("_", " ")

    @property
    def text(self) -> str:
        """All that decides the point, the source of a scheduler of one's own too, but for our code and the machine's numbers."""
        own = registry.sha256("schedule", self.scheduler)
        return json.dumps(self.model_dump() | ({"scheduler_source": own} if own else {}), sort_keys=True)


def engine_of(store: Store, point: Point, end: str = "value") -> Engine:
    """Costs and limits of a point, at an end of the machine's ranges. Raises ValueError for names that do not exist or do not fit
    together."""
    client = Client() if point.client else None
    model = models.load(point.model)
    tokens_of_text = model.tokens_of_text if point.client and point.workload == "arxiv" else 1.0
    if point.engine is not None:
        settings, own = EngineSettings(**point.engine), None if point.fits is None else Path(point.fits)
        cost, limits = costs_of(settings, point.hardware, point.model, own, end)
        client = client and dataclasses.replace(client, gather_s=settings.gather_s)
        doubts = (*model.doubts, *filter(None, (cost.outside, *_of_prefixes(point, model.geometry, cost.machine, limits))))
        return Engine(cost, limits, 1.0, None, doubts, client, tokens_of_text)
    fit, machine = serving_fits.load(point.fit), load_hardware(point.hardware)
    geometry = model.geometry
    plain = Point(scheduler=point.scheduler)
    for option, name in (("--coverage", "coverage"), ("--weights", "expert_format")):
        if not geometry.moe_layers and getattr(point, name) != getattr(plain, name):
            raise ValueError(f"{option} {getattr(point, name)} has no effect: {point.model} has no experts; leave it out")
    exact = point.coverage == "recorded"
    coverage = _coverage(store, point.coverage, fit.constants.prefill_correlation)
    drafts, is_paper = _speculation(store, point), point.profile == serving_fits.PROFILE
    of_tables = (point.model, machine.tensor_parallel, machine.measured_as, point.expert_format)
    tables = by_model.find(Path(point.fits), *of_tables) if point.fits else None
    ranks = _ranks(store, point, geometry, machine)
    machine = dataclasses.replace(machine, expert_parallel=True) if ranks else machine
    fits = _fits(machine, geometry, point, tables)
    costs = fit.constants.profile(**MEASURED[point.expert_times]) if is_paper else profiles.load(point.profile)
    kv_blocks, held_frac, windows = _memory(point, geometry, machine, ranks)
    if exact:
        _refuse_of_recorded(point, machine, held_frac)
    how: dict[str, Any] = {"speculation": drafts, "held_frac": held_frac, "events": exact, "end": end, "by_model": tables}
    how["ranks"] = ranks
    n_apart = 1 if geometry.moe_layers or point.scheduler == "disaggregated" else machine.data_parallel
    one = dataclasses.replace(machine, n_devices=machine.n_devices // n_apart, data_parallel=machine.data_parallel // n_apart)
    cost = iteration_costs(geometry, one, coverage, costs, point.expert_format, fits, **how)
    cost = dataclasses.replace(cost, background_w=float(sum(background_w(machine, costs, end).values())))
    tape = tape_of(store, _tape(store, point.workload), None) if exact else None
    n_blocks = kv_blocks and kv_blocks // n_apart
    limits = Limits(-(-point.max_seqs // n_apart), n_blocks, keeps=point.prefix_cache, n_engines=n_apart, **windows)
    told = (cost.outside, tape.gaps if tape else "", *_of_prefixes(point, geometry, one, limits))
    outside = [*model.doubts, *filter(None, told), *not_counted({}, machine, costs)]
    if is_paper and machine.name != fit.machine:
        outside.append(f"constants were fitted on {fit.machine}")
    if is_paper and Path(point.model).stem != fit.model:
        outside.append(f"constants were fitted with {fit.model}")
    if held_frac < 1.0 and "fetch" in cost.uncounted:
        outside.append(f"{1 - held_frac:.0%} of the experts are fetched, which profile {costs.name} does not count")
    if cost.uncounted and not is_paper:
        outside.append(f"not counted by the profile: {', '.join(cost.uncounted)}")
    if drafts and geometry.moe_layers and point.coverage in COVERAGES[:2]:
        outside.append("drafts count as tokens of as many requests in coverage, which bounds it from above; a tape's curves tell")
    return Engine(cost, limits, fit.constants.length_scale, tape, tuple(outside), client, tokens_of_text)


def _of_prefixes(point: Point, geometry: Geometry, machine: HardwareSpec, limits: Limits) -> tuple[str, ...]:
    """What is not modelled of prefixes that prompts share. Raises ValueError where none is ever found."""
    if point.prefix_cache and (geometry.state_layers or not limits.keeps):
        why = f"layers of {point.model} keep a state, of no prefix" if geometry.state_layers else "the engine caches no prefixes"
        raise ValueError(f"--prefix-cache has no effect: {why}; leave it out")
    sooner = "prefixes are found by the layers that see all; vLLM forgets what layers with a window need sooner"
    apart = "replicas find each other's prefixes; vLLM's have a cache each"
    return (sooner * (limits.windowed > 0), apart * (machine.data_parallel > 1)) if point.prefix_cache else ()


def fits_of(point: Point) -> tuple[Path, ...]:
    """Files of the constants that a point is costed with: a profile of one's own too, those of the project are in their room."""
    is_timed = point.profile != serving_fits.PROFILE or point.expert_times == "measured"
    kernels = calibrate.files_of(load_hardware(point.hardware)) if is_timed else ()
    return serving_fits.FILES.path(point.fit), *kernels, *([Path(point.profile)] if point.profile.endswith(".toml") else [])


def sums_of_named(store: Store, point: Point) -> list[str]:
    """Hashes of the machine, model, files and tapes that a point names: they change under their names."""
    model = models.load(point.model).model_dump(mode="json", include={"geometry", "note", "kept_16_bit", "tokens_of_text"})
    found = [load_hardware(point.hardware).sha256, hash_of(model)]
    own = [Path(name) for name in (point.workload, point.profile) if Path(name).is_file()]
    own += sorted(path for path in Path(point.fits).rglob("*") if path.is_file()) if point.fits else []
    found += [hashlib.sha256(path.read_bytes()).hexdigest() for path in own]
    for name in sorted({point.workload, point.coverage, point.acceptance or ""} - {"", *LENGTHS, *COVERAGES}):
        with suppress(ValueError):  # no tape's
            found.append(store.open(name).content_sha256)
    return found


def _ranks(store: Store, point: Point, geometry: Geometry, machine: HardwareSpec) -> Ranks | None:
    """Of a point whose experts are placed: by the tape whose curves it takes, else by even draws. Raises ValueError where devices
    cannot hold whole experts, or how full they are is not known."""
    if point.expert_placement is None:
        return None
    why = {
        f"{point.model} has no experts": not geometry.moe_layers,
        f"{machine.name} has one device": machine.n_devices == 1,
        "--coverage recorded does not tell ranks; take the tape's curves: --coverage TRACE": point.coverage == "recorded",
        "--coverage full leaves routing out": point.coverage == "full",
    }
    if reasons := [reason for reason, is_so in why.items() if is_so]:
        raise ValueError(f"--expert-placement {point.expert_placement} has no effect: {reasons[0]}; leave it out")
    if point.coverage in COVERAGES:
        return of_even_draws(geometry, point.expert_placement, machine.n_devices)
    trace = load_trace(store, _tape(store, point.coverage))
    shapes = [(len(of.moe_layers), of.n_experts, of.top_k) for of in (trace.geometry, geometry)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"--expert-placement goes by the experts of tape {trace.trace_id}, which is not of {point.model}'s shape"
        )
    return of_tape(trace, point.expert_placement, machine.n_devices)


def _memory(
    point: Point, geometry: Geometry, machine: HardwareSpec, ranks: Ranks | None
) -> tuple[int | None, float, Mapping[str, Any]]:
    """KV blocks of a point, None for unbounded, the share of the experts that the fast tier holds beside them, and `Limits` of
    windows. Raises ValueError with the sizes where the model, or so many blocks, do not fit."""
    scheduler = point.scheduled()
    rule_of = scheduler.prefill_rule if isinstance(scheduler, Disaggregated) else scheduler.rule
    held = footprint(
        point.model,
        geometry,
        machine,
        point.expert_format,
        rule_of(geometry.n_layers),
        point.max_seqs,
        point.verify_nodes,
        n_replicas=ranks.n_slots - geometry.n_experts if ranks else 0,
    )
    if point.kv_blocks == "unbounded":
        return None, held.held_frac(0, point.memory_frac), {}
    if point.kv_blocks is None:
        n_blocks = held.kv_blocks(point.memory_frac)
        return n_blocks, held.held_frac(n_blocks, point.memory_frac), held.windows
    held.refuse_more_than_fit(point.kv_blocks)
    return point.kv_blocks, held.held_frac(point.kv_blocks, 1.0), held.windows


def _refuse_of_recorded(point: Point, machine: HardwareSpec, held_frac: float) -> None:
    """Raises ValueError where the loop over a tape's experts, all held, would answer something else."""
    if point.scheduler == "disaggregated":
        raise ValueError("--coverage recorded is of one engine, disaggregated of two; take the tape's curves: --coverage TRACE")
    if point.verify_nodes:
        raise ValueError("--coverage recorded: the tape lacks the experts of drawn drafts; take its curves: --coverage TRACE")
    if held_frac < 1.0:
        raise ValueError(
            f"--coverage recorded holds all experts, {held_frac:.0%} of them fit {machine.name} beside the KV blocks; "
            "`tokentape replay TRACE --system lru_offload` moves them"
        )


def _fits(machine: HardwareSpec, geometry: Geometry, point: Point, tables: by_model.ByModel | None) -> dict[str, calibrate.Fit]:
    """Fitted operators of the machine, or of the folder that is given. Raises ValueError where
    measured experts are asked for and there are none, or the profile takes whatever was measured."""
    if point.fits and point.profile == serving_fits.PROFILE:
        raise ValueError(f"--fits has no effect with --profile {point.profile}, whose numbers are --fit's; leave one of them out")
    fits = calibrate.fits_with(machine, Path(point.fits) if point.fits and not tables else None)
    refuse_unknown("source of expert times", point.expert_times, MEASURED)
    if point.expert_times == "measured":
        if point.profile != serving_fits.PROFILE:
            raise ValueError(
                f"--expert-times has no effect with --profile {point.profile}; give --profile {serving_fits.PROFILE}"
            )
        if "moe" not in fits:
            raise ValueError(f"{machine.name}: no MoE kernels were measured on its GPU; leave --expert-times out")
        if not geometry.moe_layers:
            raise ValueError(f"{point.model} has no experts to time")
        if point.expert_format != "bf16":
            raise ValueError(f"measured kernels are those of bf16 weights, not of {point.expert_format}")
    return fits


def _speculation(store: Store, point: Point) -> Speculation | None:
    """What decodes draft. Raises ValueError where the options do not go together, naming a tape that recorded no rounds."""
    if not point.verify_nodes:
        if point.acceptance is not None or point.draft_s:
            raise ValueError("--acceptance and --draft-ms go with --verify-nodes, the drafts of a round")
        return None
    if point.acceptance is None:
        raise ValueError("--verify-nodes needs --acceptance: a chance such as 0.8, or a tape with recorded rounds")
    try:
        chances = [float(chance) for chance in point.acceptance.split(",")]
    except ValueError:
        tape = store.open(_tape(store, point.acceptance, f"acceptance {point.acceptance!r} is no number and no tape"))
        if not tape.has("rounds"):
            raise ValueError(f"tape {tape.trace_id} recorded no rounds; give --acceptance as a number") from None
        rounds = tape.read("rounds").filter(~pl.col("is_clipped")).unique(["request_id", "round"])  # the engine clips its own
        return Speculation.recorded(point.verify_nodes, rounds["n_accepted"].to_numpy(), point.draft_s)
    return Speculation.conditional(point.verify_nodes, chances[0] if len(chances) == 1 else chances, point.draft_s)


def _coverage(store: Store, name: str, correlation: float) -> coverages.Coverage:
    if name == "paper_table":
        return paper_coverage(correlation)
    if name in COVERAGES:
        return coverages.IndependentCoverage() if name == "independent" else coverages.FixedCoverage()
    return _curves(store.absolute, _tape(store, name, f"coverage {name!r} is none of {', '.join(COVERAGES)} and no tape"))


@lru_cache(maxsize=4)
def paper_coverage(correlation: float) -> coverages.PublishedCoverage:
    """The paper's table. correlation: of what prefill tokens touch, by a fit."""
    return coverages.published_coverage(claims().to_pylist(), correlation)


@lru_cache(maxsize=4)
def _curves(uri: str, trace_id: str) -> coverages.RecordedCurves:
    return coverages.RecordedCurves.of(load_trace(Store(uri), trace_id))


def workload_of(store: Store, point: Point, length_scale: float, seed: int, tokens_of_text: float = 1.0) -> Requests:
    """The requests of a seed. tokens_of_text: of arXiv's, which a client sends as text. Raises ValueError naming what is wrong
    with them."""
    refuse_unknown("arrival", point.arrival, ARRIVALS)
    if point.cv != 1.0 and point.arrival != "gamma":
        raise ValueError(f"--cv {point.cv:g} goes with --arrival gamma, not with {point.arrival}")
    is_prompt, is_at_once = point.workload.startswith(ONE_PROMPT), point.arrival == "at_once"
    is_tape = not (is_prompt or point.workload in LENGTHS or point.workload.endswith(".csv"))
    without = {  # what would be ignored, and why
        "--arrival": (is_prompt and not is_at_once, "one prompt comes alone"),
        "--rate": (is_at_once and point.rate_per_s is not None, "all requests come at once"),
        "--prefix-cache": (point.prefix_cache and not is_tape, "only a tape names prefix blocks"),
        f"windows {point.windows}": (point.windows != 1 and point.arrival != "trace", "only a trace has them"),
    }
    for told, (is_ignored, why) in without.items():
        if is_ignored:
            said = f"--workload {point.workload}" if is_prompt else f"--arrival {point.arrival}"
            raise ValueError(f"{told} has no effect with {said}: {why}")
    if is_prompt:
        if not (length := point.workload.removeprefix(ONE_PROMPT)).isdigit():
            wanted = f"give {ONE_PROMPT}N with the tokens of the prompt, as in {ONE_PROMPT}8192"
            raise ValueError(f"workload {point.workload!r}: {wanted}")
        return Requests(np.zeros(1), np.array([int(length)]), np.array([1]), origin=point.workload)
    if point.workload in LENGTHS:
        if point.arrival == "trace":
            raise ValueError(f"{point.workload} has no arrivals of its own; choose --arrival poisson or gamma")
        if point.rate_per_s is None and not (is_at_once and point.n_requests):
            raise ValueError(f"{point.workload}: --rate is missing, or --arrival at_once with a number of requests")
        rate = 1.0 if point.rate_per_s is None else point.rate_per_s
        lengths = {"length_scale": length_scale if point.workload == "arxiv" else 1.0, "tokens_of_text": tokens_of_text}
        drawn = synthetic(point.workload, rate, seed, n=point.n_requests, cv=point.cv, of_client=point.client, **lengths)
        return drawn.at_once() if is_at_once else drawn
    read = _own(store.absolute, point.workload, point.prefix_cache)
    if is_at_once:
        return read.at_once()
    if point.arrival != "trace":
        if point.rate_per_s is None:
            raise ValueError(f"--arrival {point.arrival} needs --rate; `--arrival trace` keeps the trace's own")
        return resampled(read, point.n_requests, point.rate_per_s, seed, point.cv)
    if point.rate_per_s is not None:
        if read.rate_per_s == float("inf"):
            raise ValueError(f"{point.workload}: all its requests arrive at once; give --arrival poisson with --rate")
        read = read.scaled(point.rate_per_s / read.rate_per_s)
    return _window(read, point.windows, seed)


@lru_cache(maxsize=4)
def _own(uri: str, workload: str, prefix_cache: bool) -> Requests:
    """Requests of a CSV or a tape, with the prefixes that its prompts share."""
    if workload.endswith(".csv"):
        return _from_csv(Path(workload))
    store = Store(uri)
    trace_id = _tape(store, workload, f"workload {workload!r} is none of {', '.join(LENGTHS)}, no .csv and no tape")
    tape = store.open(trace_id)
    rows = tape.read("requests").sort("request_id").sort("arrival_s", maintain_order=True)
    read = from_table(rows, trace_id)
    settings = tape.manifest.settings
    if settings.get("is_stepped", settings.get("importer") == "mooncake"):  # which older tapes of it do not say
        read = spread_ties(read)
    if not prefix_cache:
        return read
    if "prefix_blocks" not in rows.columns:
        raise ValueError(f"tape {trace_id} names no prefix blocks; leave --prefix-cache out")
    return sharing(read, rows["prefix_blocks"].to_list(), settings)


READ.extend((_curves, _own))


def _from_csv(path: Path) -> Requests:
    try:
        frame = pl.read_csv(io.BytesIO(path.read_bytes()), infer_schema_length=None)
    except pl.exceptions.NoDataError:
        raise ValueError(f"{path}: the file is empty; give a header and a row per request: {', '.join(COLUMNS)}") from None
    except pl.exceptions.PolarsError as error:
        raise ValueError(f"{path}: cannot be read as CSV ({str(error).splitlines()[0]})") from None
    if missing := [name for name in COLUMNS if name not in frame.columns]:
        raise ValueError(f"{path}: column {missing[0]} is missing; `tokentape import requests` takes columns of other names")
    try:
        arrival, prompt, output = (frame[name].cast(pl.Float64).to_numpy() for name in COLUMNS)
        return Requests(arrival, prompt, output, origin=path.name)
    except pl.exceptions.PolarsError as error:
        raise ValueError(f"{path}: {str(error).splitlines()[0]}; the columns hold numbers") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _tape(store: Store, name: str, otherwise: str = "") -> str:
    try:
        return store.resolve(name)
    except ValueError as error:
        raise ValueError(f"{otherwise}: {error}" if otherwise else str(error)) from None


def _window(requests: Requests, n_windows: int, number: int) -> Requests:
    """One of n equal stretches of a trace, from its own first arrival. Raises ValueError where one would be empty."""
    if not 0 < n_windows <= len(requests):
        raise ValueError(f"windows {n_windows}: {requests.origin} has {len(requests)} requests; give from 1 to as many")
    edges = np.linspace(0, len(requests), n_windows + 1).astype(int)
    of = slice(edges[number % n_windows], edges[number % n_windows + 1])
    return requests.taken(of, requests.arrival_s[of] - requests.arrival_s[of.start])
