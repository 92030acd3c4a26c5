"""Predicted against measured: what a real engine served, through this engine with the settings of that one.

Times that begin at a client have that of client.py before the engine, as it was measured. Nothing is fitted but, where asked,
what neither it nor a kernel table holds: two constants of the host, on rows that are named.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokentape.hw import by_model, calibrate
from tokentape.hw.clock import background_w
from tokentape.hw.fit_files import FitFiles
from tokentape.hw.spec import HardwareSpec, with_values
from tokentape.hw.work import Floats
from tokentape.policies.serving import Chunked
from tokentape.replay.serving.coverage import IndependentCoverage
from tokentape.replay.serving.engine_logs import METRICS, STATISTICS, Engine, Served, latencies
from tokentape.replay.serving.iteration import IterationCosts, iteration_costs
from tokentape.replay.serving.memory import footprint
from tokentape.replay.serving.ranks import of_even_draws
from tokentape.replay.serving.run import Limits, ServingRun
from tokentape.warehouse.geometry import Geometry

NOTHING = "nothing"
STEP_S = 2e-4  # by which the host's time per iteration is varied, to see what it does
N_MOMENTS = 40  # of a log, that are told apart over its time
FITTED_ON = ("ttft_s", "tpot_s", "e2e_s")  # means of each stage


@dataclass(frozen=True)
class Host:
    """What a server spends beside its kernels and its client (`client.Client`). server_s: before the engine takes a request;
    step_s: of an iteration, that the device waits for."""

    server_s: float = 0.0
    step_s: float = 0.0


HOST = FitFiles("host", Host, "mean relative error of the rows, absolute", by="serving PATH")


class Moment(NamedTuple):
    """A metric of a log from a moment on: of requests that arrive until the next one, or of tokens that come until then."""

    source: str
    metric: str
    start_s: float
    measured: float
    predicted: float


@dataclass(frozen=True)
class Row:
    """One metric of one stage. rel_err: predicted over measured, less 1; fitted_on: the rows that constants were fitted on;
    is_fitted: those of its own source are among them."""

    source: str
    stage: int
    metric: str
    statistic: str
    measured: float
    predicted: float
    rel_err: float
    fitted_on: str = NOTHING
    is_fitted: bool = False


def on_engine(
    engine: Engine,
    geometry: Geometry,
    machine: HardwareSpec,
    formats: Mapping[str, str] | None = None,
    fits: Path | None = None,
    end: str = "value",
    step_s: float = 0.0,
) -> tuple[IterationCosts, Limits]:
    """What its iterations cost on a machine of as many devices, and its limits. formats: of weights but routed experts, by kind;
    fits: a user's own constants, or tables of this model; step_s: of `Host`.

    Raises ValueError where devices and settings do not go together, or the model does not fit.
    """
    if machine.n_devices != engine.n_devices:
        raise ValueError(
            f"the engine runs on {engine.n_devices} devices (tensor x data parallel), {machine.name} has {machine.n_devices}; "
            f"give a machine of {engine.n_devices} with --hardware"
        )
    n_apart = engine.data_parallel if engine.steps_apart and not geometry.moe_layers else 1
    n_devices, n_replicas = engine.n_devices // n_apart, engine.data_parallel // n_apart
    shared = replace(machine, n_devices=n_devices, data_parallel=n_replicas, expert_parallel=engine.expert_parallel)
    shared = with_values(shared, {"host.step_s": step_s}) if step_s else shared
    tables = (
        by_model.find(fits, engine.model, engine.tensor_parallel, machine.measured_as, engine.weight_format) if fits else None
    )
    n_ranks = engine.n_devices if engine.expert_parallel and geometry.moe_layers else 1
    ranks = of_even_draws(geometry, engine.expert_placement, n_ranks) if n_ranks > 1 else None
    cost = iteration_costs(
        geometry,
        shared,
        IndependentCoverage(),
        expert_format=engine.weight_format,
        fits=calibrate.fits_with(machine, None if tables else fits),
        dense_format=formats or {},
        kv_format=engine.kv_format,
        by_model=tables,
        graph_sizes=engine.graph_sizes,
        end=end,
        ranks=ranks,
    )
    blocks, n_seqs = engine.kv_blocks and engine.kv_blocks // n_apart, engine.max_seqs * n_replicas
    rule = scheduler_of(engine).rule(geometry.n_layers)
    held = footprint(
        engine.model, geometry, shared, engine.weight_format, rule, n_seqs, formats=formats, kv_format=engine.kv_format
    )
    blocks = held.kv_blocks(engine.memory_frac) if blocks is None else blocks
    of_all = replace(cost, background_w=float(sum(background_w(machine, cost.profile, end).values())))
    keeps = engine.prefix_caching and not geometry.state_layers  # of which vLLM keeps none by default, to 0.24
    told = {"keeps": keeps, "fills": engine.fills, "fits_whole": engine.fits_whole, **held.windows}
    return of_all, Limits(n_seqs, blocks, schedules_ahead=engine.schedules_ahead, n_engines=n_apart, **told)


def scheduler_of(engine: Engine) -> Chunked:
    """Chunked prefill within the token budget."""
    return Chunked(engine.budget_tokens)


def _times(served: Served, run: ServingRun) -> dict[tuple[str, str], float]:
    return latencies(served.requests.arrival_s, run.first_token_s, run.finish_s, served.requests.n_output_tokens)


def fit_host(stages: Sequence[Served], run: Callable[[Served, float], ServingRun], metrics: Sequence[str] = FITTED_ON) -> Host:
    """The constants, none below 0, with the least squared relative errors of the stages' means of these metrics; run: of a stage
    with so many seconds per iteration. Of times to first token alone the front end is fitted; a log whose times begin in the
    engine has none. Raises ValueError where no stage has such a mean."""
    rows, rest = [], []
    for served in stages:
        without = _times(served, run(served, 0.0))
        slower = _times(served, run(served, STEP_S)) if len(metrics) > 1 else without
        for of in ((name, "mean") for name in metrics if (name, "mean") in served.measured):
            told = served.measured[of]
            rows.append((float(served.is_of_client and of[0] != "tpot_s") / told, (slower[of] - without[of]) / STEP_S / told))
            rest.append(1.0 - without[of] / told)
    if not rows:
        raise ValueError(f"{', '.join(metrics)}: no stage has a measured mean to fit to")
    columns, wanted = np.array(rows), np.array(rest)
    best, least = np.zeros(2), float((wanted**2).sum())
    for n in (1, 2):
        for chosen in (list(of) for of in combinations(np.flatnonzero(columns.any(axis=0)).tolist(), n)):
            values = np.linalg.lstsq(columns[:, chosen], wanted)[0]
            left = float(((columns[:, chosen] @ values - wanted) ** 2).sum())
            if (values >= 0).all() and left < least:
                best, least = np.zeros(2), left
                best[chosen] = values
    return Host(*best.tolist())


def compare(
    served: Served, run: ServingRun, host: Host | None = None, fitted_on: str = NOTHING, fitted: Collection[str] = ()
) -> Iterator[Row]:
    """A row per metric and statistic that was measured. host: fitted on these rows, its time per iteration in the run already;
    fitted: their sources."""
    gaps = (run.gap_mean_s, *np.asarray(run.gap_percentiles_s((50, 90, 99))).tolist())
    front_s = host.server_s if host and served.is_of_client else 0.0
    predicted = {key: value + front_s * (key[0] in ("ttft_s", "e2e_s")) for key, value in _times(served, run).items()}
    predicted |= {("itl_s", which): value for which, value in zip(STATISTICS, gaps, strict=True)}
    for metric in METRICS:
        for which in STATISTICS:
            if (metric, which) in served.measured:
                told, found = served.measured[metric, which], predicted[metric, which]
                is_fitted = served.source in fitted
                yield Row(served.source, served.stage, metric, which, told, found, found / told - 1.0, fitted_on, is_fitted)


def over_time(served: Served, run: ServingRun) -> Iterator[Moment]:
    """Of a log's moments, all as long: mean time to first token, output tokens per second; nothing of means alone."""
    if served.first_s is None or served.last_s is None:
        return
    arrival, n_output = served.requests.arrival_s, served.requests.n_output_tokens
    edges = np.linspace(0.0, max(served.last_s.max(), run.finish_s.max()), N_MOMENTS + 1)
    ours, theirs = (run.first_token_s, run.finish_s), (served.first_s, served.last_s)
    rates = [_tokens_per_s(edges, *ends, n_output) for ends in (theirs, ours)]
    for i, start_s in enumerate(edges[:-1].tolist()):
        now = (arrival >= start_s) & (arrival < edges[i + 1])
        if now.any():
            yield Moment(served.source, "ttft_s", start_s, *(float((of[0] - arrival)[now].mean()) for of in (theirs, ours)))
        yield Moment(served.source, "output_tokens_per_s", start_s, *(float(of[i]) for of in rates))


def _tokens_per_s(edges: Floats, first_s: Floats, last_s: Floats, n_output: NDArray[np.int64]) -> Floats:
    """Between edges, of requests whose tokens come evenly from the first to the last."""
    gap_s = (last_s - first_s) / np.maximum(n_output - 1, 1)
    come = 1.0 + (edges[:, None] - first_s) / np.maximum(gap_s, 1e-12)
    so_far = np.where(edges[:, None] >= first_s, np.clip(come, 1.0, n_output), 0.0).sum(axis=1)
    made: Floats = np.diff(so_far) / np.diff(edges)
    return made


def without_model(stages: Sequence[Served]) -> Iterator[tuple[str, list[Served], list[Served]]]:
    """Of each model: its name, the others' stages, and its own. Raises ValueError for a single model."""
    models = list(dict.fromkeys(of.engine.model for of in stages))
    if len(models) < 2:
        raise ValueError(f"all stages are of {models[0]}; leaving one model out takes two at least")
    for model in models:
        yield model, [of for of in stages if of.engine.model != model], [of for of in stages if of.engine.model == model]
