"""A stretch of one run: its iterations, what requests did meanwhile, and when one of them got its tokens."""

from typing import Any

import numpy as np
import polars as pl

from tokentape.replay.serving.metrics import token_times
from tokentape.replay.serving.run import ServingRun

Rows = list[dict[str, Any]]
OF_ITERATION = ("iteration", "start_s", "seconds", "n_decodes", "n_prefill_tokens", "layer_group", "n_groups")
NEXT = 10  # requests from the stretch's start on; of those that keep their KV the one of the longest prompt is followed


def window(run: ServingRun, start_s: float, seconds: float) -> tuple[Rows, Rows, Rows]:
    """Iterations, spans of requests, tokens of one request, each without the run's id. run: with its iterations recorded. Raises
    ValueError where there is no such request."""
    end = start_s + seconds
    lasts = (pl.col("start_s") + pl.col("seconds") > start_s) & (pl.col("start_s") < end)
    made = pl.DataFrame(run.iterations).with_row_index("iteration").filter(lasts)
    iterations = made.rename({"n_decode": "n_decodes", "n_prefill": "n_prefill_tokens"}).select(OF_ITERATION).to_dicts()
    n_before = int(np.searchsorted(run.requests.arrival_s, start_s))
    whole = n_before + np.flatnonzero(run.n_restarts[n_before : n_before + NEXT] == 0)
    if not whole.size:
        last_s = run.requests.arrival_s[-1]
        raise ValueError(f"window from {start_s:g} s on: no request comes then that keeps its KV; the last comes at {last_s:g} s")
    chosen = int(whole[np.argmax(run.requests.n_prompt_tokens[whole])])
    times = token_times(run, chosen) - run.requests.arrival_s[chosen]
    tokens = [{"request_id": chosen, "place": i, "time_s": time} for i, time in enumerate(times.tolist())]
    return iterations, _spans(run, start_s, end, iterations), tokens


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
