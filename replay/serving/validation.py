"""Predicted against measured: what a real engine served, through this engine with the settings of that one, nothing fitted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from tokentape.hw import calibrate
from tokentape.hw.spec import HardwareSpec
from tokentape.policies.serving import Chunked
from tokentape.replay.serving.coverage import IndependentCoverage
from tokentape.replay.serving.engine_logs import METRICS, STATISTICS, Served, latencies
from tokentape.replay.serving.iteration import iteration_costs
from tokentape.replay.serving.memory import MEMORY_FRAC, footprint
from tokentape.replay.serving.run import Limits, ServingRun, serve
from tokentape.warehouse.geometry import Geometry

NOTHING = "nothing"


@dataclass(frozen=True)
class Row:
    """One metric of one stage. rel_err: predicted over measured, less 1; fitted_on: the rows that constants were fitted on."""

    source: str
    stage: int
    metric: str
    statistic: str
    measured: float
    predicted: float
    rel_err: float
    fitted_on: str = NOTHING


def served_by(served: Served, geometry: Geometry, machine: HardwareSpec) -> ServingRun:
    """The run of this engine. machine: of as many devices as the engine's.

    Raises ValueError where devices and settings do not go together, or the model does not fit.
    """
    n = served.tensor_parallel * served.data_parallel
    if machine.n_devices != n:
        raise ValueError(
            f"{served.source}: the engine ran on {n} devices (tensor x data parallel), {machine.name} has {machine.n_devices}; "
            f"give a machine of {n} with --hardware"
        )
    shared = replace(machine, data_parallel=served.data_parallel, expert_parallel=served.expert_parallel)
    scheduler, seqs = Chunked(served.budget_tokens), served.max_seqs * served.data_parallel
    fits = calibrate.fits_of(machine, calibrate.known())
    cost = iteration_costs(geometry, shared, IndependentCoverage(), expert_format=served.weight_format, fits=fits)
    blocks = served.kv_blocks
    if blocks is None:
        rule = scheduler.rule(geometry.n_layers)
        blocks = footprint(served.model, geometry, shared, served.weight_format, rule, seqs).kv_blocks(MEMORY_FRAC)
    return serve(served.requests, scheduler, cost, Limits(seqs, blocks, schedules_ahead=served.schedules_ahead))


def front_end_s(runs: Iterable[tuple[Served, ServingRun]]) -> float:
    """Time of client and server before the engine takes a request: what the mean times to first token of these stages lack."""
    return float(np.mean([served.measured["ttft_s", "mean"] - run.ttft_s.mean() for served, run in runs]))


def compare(served: Served, run: ServingRun, front_s: float = 0.0, fitted_on: str = NOTHING) -> Iterator[Row]:
    """A row per metric and statistic that was measured. front_s: of client and server, fitted on these rows."""
    arrival = served.requests.arrival_s
    predicted = latencies(arrival, run.first_token_s, run.finish_s, served.requests.n_output_tokens)
    gaps = (run.gap_mean_s, *np.asarray(run.gap_percentiles_s((50, 90, 99))).tolist())
    predicted = {key: value + front_s * (key[0] in ("ttft_s", "e2e_s")) for key, value in predicted.items()}
    predicted |= {("itl_s", which): value for which, value in zip(STATISTICS, gaps, strict=True)}
    for metric in METRICS:
        for which in STATISTICS:
            if (metric, which) in served.measured:
                told, found = served.measured[metric, which], predicted[metric, which]
                yield Row(served.source, served.stage, metric, which, told, found, found / told - 1.0, fitted_on)
