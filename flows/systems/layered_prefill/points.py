"""One point of the study at rest: its metrics, its attainment grid, and the stretch of a run that is drawn."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.flows import sources
from tokentape.flows.grid import load_hardware
from tokentape.flows.serving.points import ENGINE, measure, point_id, rows_of, serve_point
from tokentape.flows.serving.setup import Point, engine_of, fits_of
from tokentape.flows.systems.layered_prefill.settings import Job, Settings
from tokentape.policies.serving import Disaggregated
from tokentape.policies.serving.groups import group_start, n_groups
from tokentape.replay.serving.metrics import token_times
from tokentape.replay.serving.run import ServingRun
from tokentape.warehouse.results import has_rows
from tokentape.warehouse.tape import Store

Ints = NDArray[np.int64]


def of_job(store: Store, study: Settings, job: Job) -> str:
    """Writes what is missing of a point's rows; what they are `of`."""
    of = _decided_by(study, job)
    if has_rows(store, "serving_points", of):
        return of
    factors = (study.ttft_factors, study.tbt_factors) if job.attainment else ((), ())
    tables = rows_of(study.name, job.series, measure(store, job.point, study.level(job.point), job.against, factors))
    if job.window:
        tables |= window_rows(store, study, job)
    study.write(store, tables, of, last="serving_points")
    return of


def _decided_by(study: Settings, job: Job) -> str:
    """What a point's rows are of: the point, the limits it is read at, and the code and machines that decide them."""
    more = (study.level(job.point), study.ttft_factors, study.tbt_factors) if job.attainment else study.level(job.point)
    against = job.against.text if job.against else ""
    decided = (job.series, job.point.text, against, str(more), str(study.window) if job.window else "")
    code = sources.sha256(*ENGINE, fits=fits_of(job.point))
    return f"{study.name}/{'/'.join(decided)}/{load_hardware(job.point.hardware).sha256}/{code}"


def window_rows(store: Store, study: Settings, job: Job) -> dict[str, list[dict[str, Any]]]:
    """Iterations and requests of a stretch of one run, and the tokens of one request in it; arrivals are any scheduler's."""
    point, window = job.point, study.window
    engine = engine_of(store, point)
    run = serve_point(store, point, engine, window.seed, record=True)
    where = {"point_id": point_id(study.name, job.series, point)}
    begin, end, starts = window.start_s, window.start_s + window.seconds, run.iterations["start_s"]
    first, last = np.searchsorted(starts + run.iterations["seconds"], begin, "right"), np.searchsorted(starts, end)
    groups = _groups(run, point)
    iterations = [{**where, **_iteration(run, i, *groups)} for i in range(int(first), int(last))]
    spans = [{**where, **span} for span in _spans(run, begin, end, iterations)]
    chosen = _long_prompt_after(run, window.start_s)
    times = token_times(run, chosen) - run.requests.arrival_s[chosen]
    tokens = [{**where, "request_id": chosen, "place": i, "time_s": time} for i, time in enumerate(times.tolist())]
    return {"serving_iterations": iterations, "serving_spans": spans, "serving_tokens": tokens}


def _groups(run: ServingRun, point: Point) -> tuple[Ints, Ints]:
    """(iterations,) the group of layers that the batch is in, and how many it walks through."""
    scheduler = point.scheduled()
    assert not isinstance(scheduler, Disaggregated)
    n_layers = run.cost.geometry.n_layers
    steps = scheduler.rule(n_layers).step_numbers()
    of = np.array([n_groups(steps, n) if n else 1 for n in run.iterations["n_prefill"].tolist()], np.int64)
    first = run.iterations["first_layer"].tolist()
    starts = [[group_start(g, n, n_layers) for g in range(n)] for n in of.tolist()]
    return np.array([s.index(f) if f in s else 0 for s, f in zip(starts, first, strict=True)], np.int64), of


def _iteration(run: ServingRun, i: int, group: Ints, n_of: Ints) -> dict[str, Any]:
    made = run.iterations
    return {
        "iteration": i,
        "start_s": float(made["start_s"][i]),
        "seconds": float(made["seconds"][i]),
        "n_decodes": int(made["n_decode"][i]),
        "n_prefill_tokens": int(made["n_prefill"][i]),
        "layer_group": int(group[i]),
        "n_groups": int(n_of[i]),
    }


def _spans(run: ServingRun, begin: float, end: float, iterations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Requests between two moments: queued, in prefill iteration by iteration, decoding."""
    arrival = run.requests.arrival_s
    spans: list[dict[str, Any]] = []
    for r in np.flatnonzero((arrival < end) & (run.finish_s > begin)).tolist():
        add = partial(_add, spans, r, begin, end)
        add("queued", float(arrival[r]), float(run.started_s[r]))
        started, first = float(run.started_s[r]), float(run.first_token_s[r])
        for it in iterations:
            middle = it["start_s"] + it["seconds"] / 2
            if it["n_prefill_tokens"] and started < middle < first:
                group = it["layer_group"] if it["n_groups"] > 1 else None
                add("prefill", it["start_s"], it["start_s"] + it["seconds"], group)
        add("decode", first, float(run.finish_s[r]))
    return spans


def _add(
    spans: list[dict[str, Any]], r: int, begin: float, end: float, state: str, start: float, stop: float, group: int | None = None
) -> None:
    """A span, cut to the window; none where nothing is left of it."""
    start, stop = max(start, begin), min(stop, end)
    if stop > start:
        spans.append({"request_id": r, "state": state, "start_s": start, "seconds": stop - start, "layer_group": group})


def _long_prompt_after(run: ServingRun, start_s: float) -> int:
    """The longest prompt of the ten requests that arrive from this moment on."""
    first = int(np.searchsorted(run.requests.arrival_s, start_s))
    return first + int(np.argmax(run.requests.n_prompt_tokens[first : first + 10]))
