"""A stretch of one run: its iterations, what requests did meanwhile, and when one of them got its tokens."""

from typing import Any

import numpy as np

from tokentape.hw.work import Ints
from tokentape.policies.serving import Scheduler
from tokentape.policies.serving.groups import group_start, n_groups
from tokentape.replay.serving.metrics import token_times
from tokentape.replay.serving.run import ServingRun

Rows = list[dict[str, Any]]
NEXT = 10  # requests from the stretch's start on; of those that keep their KV the one of the longest prompt is followed


def window(run: ServingRun, scheduler: Scheduler, start_s: float, seconds: float) -> tuple[Rows, Rows, Rows]:
    """Iterations, spans of requests, tokens of one request, each without the run's id. run: with its iterations recorded. Raises
    ValueError where there is no such request."""
    end, made = start_s + seconds, run.iterations
    groups, n_of = _groups(run, scheduler)
    first = int(np.searchsorted(made["start_s"] + made["seconds"], start_s, "right"))
    iterations = [
        {
            "iteration": i,
            "start_s": float(made["start_s"][i]),
            "seconds": float(made["seconds"][i]),
            "n_decodes": int(made["n_decode"][i]),
            "n_prefill_tokens": int(made["n_prefill"][i]),
            "layer_group": int(groups[i]),
            "n_groups": int(n_of[i]),
        }
        for i in range(first, int(np.searchsorted(made["start_s"], end)))
    ]
    n_before = int(np.searchsorted(run.requests.arrival_s, start_s))
    whole = n_before + np.flatnonzero(run.n_restarts[n_before : n_before + NEXT] == 0)
    if not whole.size:
        last_s = run.requests.arrival_s[-1]
        raise ValueError(f"window from {start_s:g} s on: no request comes then that keeps its KV; the last comes at {last_s:g} s")
    chosen = int(whole[np.argmax(run.requests.n_prompt_tokens[whole])])
    times = token_times(run, chosen) - run.requests.arrival_s[chosen]
    tokens = [{"request_id": chosen, "place": i, "time_s": time} for i, time in enumerate(times.tolist())]
    return iterations, _spans(run, start_s, end, iterations), tokens


def _groups(run: ServingRun, scheduler: Scheduler) -> tuple[Ints, Ints]:
    """(iterations,) the group of layers that the batch is in, and how many it walks through."""
    n_layers = run.cost.geometry.n_layers
    steps = scheduler.rule(n_layers).step_numbers()
    of = np.array([n_groups(steps, n) if n else 1 for n in run.iterations["n_prefill"].tolist()], np.int64)
    first = run.iterations["first_layer"].tolist()
    starts = [[group_start(g, n, n_layers) for g in range(n)] for n in of.tolist()]
    return np.array([s.index(f) if f in s else 0 for s, f in zip(starts, first, strict=True)], np.int64), of


def _spans(run: ServingRun, begin: float, end: float, iterations: Rows) -> Rows:
    """Requests between two moments: queued, in prefill iteration by iteration, decoding; what reaches past them is cut off."""
    arrival = run.requests.arrival_s
    spans: Rows = []

    def add(request: int, state: str, start: float, stop: float, group: int | None = None) -> None:
        start, stop = max(start, begin), min(stop, end)
        if stop > start:
            spans.append({"request_id": request, "state": state, "start_s": start, "seconds": stop - start, "layer_group": group})

    for r in np.flatnonzero((arrival < end) & (run.finish_s > begin)).tolist():
        started, first = float(run.started_s[r]), float(run.first_token_s[r])
        add(r, "queued", float(run.queued_s[r]), started)
        for it in iterations:
            if it["n_prefill_tokens"] and started < it["start_s"] + it["seconds"] / 2 < first:
                group = it["layer_group"] if it["n_groups"] > 1 else None
                add(r, "prefill", it["start_s"], it["start_s"] + it["seconds"], group)
        add(r, "decode", first, float(run.finish_s[r]))
    return spans
