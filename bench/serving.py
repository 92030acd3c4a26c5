"""The serving engine: simulated requests and iterations per CPU second, and the memory of a million requests."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time

from hw import serving_constants
from hw.spec import load
from policies.serving import Chunked, Layered, Scheduler
from replay.serving import serve
from replay.serving_cost import CostTables, cost_tables
from replay.serving_coverage import published_coverage
from replay.workload import synthetic
from warehouse import models
from warehouse.load import claims

MACHINE, MODEL, RATE_PER_S = "h100x2", "qwen3-30b-a3b", 1.3
N_SEEDS, N_REPEATS, N_MANY = 40, 3, 1_000_000
SCHEDULERS: dict[str, Scheduler] = {"chunked": Chunked(), "layered": Layered()}


def costs() -> tuple[CostTables, float]:
    """The shipped constants' costs of the paper's main model, and the scale of its prompts."""
    fit = serving_constants.load(MACHINE)
    coverage = published_coverage(claims().to_pylist(), fit.constants.prefill_correlation)
    return cost_tables(models.load(MODEL).geometry, load(MACHINE), fit.constants, coverage), fit.length_scale


def bench() -> dict[str, float]:
    """Requests and iterations per CPU second of 40 runs of 780 arXiv requests; peak memory and rate of a million in one run."""
    cost, length_scale = costs()
    workloads = [synthetic("arxiv", RATE_PER_S, seed, length_scale=length_scale) for seed in range(N_SEEDS)]
    n_requests = sum(map(len, workloads))
    report: dict[str, float] = {}
    for name, scheduler in SCHEDULERS.items():
        best, n_iterations = float("inf"), 0
        for _ in range(N_REPEATS):
            started = time.process_time()
            n_iterations = sum(serve(requests, scheduler, cost).n_iterations for requests in workloads)
            best = min(best, time.process_time() - started)
        report[f"serving_{name}_requests_per_cpu_s"] = round(n_requests / best)
        report[f"serving_{name}_iterations_per_cpu_s"] = round(n_iterations / best)
        print(f"serving, {name:8s} {n_requests / best / 1e3:6.0f} k requests/s, {n_iterations / best / 1e6:5.2f} M iterations/s")
    # The headline is the scheduler that most engines run.
    report["serving_requests_per_cpu_s"] = report["serving_chunked_requests_per_cpu_s"]
    report["serving_iterations_per_cpu_s"] = report["serving_chunked_iterations_per_cpu_s"]
    # Another process: this one's peak memory may come from elsewhere.
    done = subprocess.run([sys.executable, "-m", "bench.serving"], capture_output=True, text=True, check=True)
    many = json.loads(done.stdout.splitlines()[-1])
    print(f"serving a million requests: {many['cpu_s']:.1f} s, peak {many['peak_bytes'] / 2**20:.0f} MiB")
    return report | {"serving_million_requests_cpu_s": many["cpu_s"], "serving_million_peak_bytes": many["peak_bytes"]}


def many_requests() -> dict[str, float]:
    """A million arXiv requests in one run, and the process's peak memory."""
    cost, length_scale = costs()
    requests = synthetic("arxiv", RATE_PER_S, 0, n=N_MANY, length_scale=length_scale)
    started = time.process_time()
    run = serve(requests, Layered(), cost)
    assert run.n_decoded == int(requests.n_output_tokens.sum()) - N_MANY
    spent = time.process_time() - started
    return {"cpu_s": round(spent, 2), "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


if __name__ == "__main__":
    print(json.dumps(many_requests()))
