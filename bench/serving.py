"""The serving engine: simulated requests and iterations per CPU second, the memory of a million requests, and the study's time.

The peer is the same engine in plain Python, for chunked prefill of a model whose layers are all alike: lists and floats, an
iteration at a time. It must agree on when every request finishes. vidur, where it is installed, serves the same requests
(bench/vidur_peer.py).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

from bench import vidur_peer
from bench.hardware import seconds_of
from bench.memory import peak_bytes
from tokentape.flows.running import run
from tokentape.flows.systems.layered_prefill.study import Settings
from tokentape.hw import calibrate, serving_fits
from tokentape.hw.spec import load
from tokentape.policies.serving import Chunked, Layered, Scheduler
from tokentape.replay.serving.coverage import IndependentCoverage, published_coverage
from tokentape.replay.serving.iteration import IterationCosts, iteration_costs
from tokentape.replay.serving.run import serve
from tokentape.replay.serving.workload import Requests, synthetic
from tokentape.warehouse import models
from tokentape.warehouse.load import claims
from tokentape.warehouse.tape import Store

MACHINE, MODEL, RATE_PER_S, CHUNK = "h100x2", "qwen3-30b-a3b", 1.3, 512
N_SEEDS, N_REPEATS, N_MANY = 40, 3, 1_000_000
BUSY_PER_S, BUSY_CHUNK = 20.0, 2048  # more than the machine serves with its fitted operators, and vLLM's own budget
SCHEDULERS: dict[str, Scheduler] = {"chunked": Chunked(CHUNK), "layered": Layered()}
MANY = "many"


def costs() -> tuple[IterationCosts, float]:
    """The costs of the paper's main model on its server, and the scale of its prompts."""
    fit = serving_fits.load(MACHINE).constants
    coverage = published_coverage(claims().to_pylist(), fit.prefill_correlation)
    return iteration_costs(models.load(MODEL).geometry, load(MACHINE), coverage, fit.profile()), fit.length_scale


def operator_costs(cost: IterationCosts) -> IterationCosts:
    """The same model on the same machine, by its fitted operators."""
    fits = calibrate.fits_of(cost.machine, calibrate.shipped())
    return iteration_costs(cost.geometry, cost.machine, IndependentCoverage(), fits=fits)


def peer(requests: Requests, cost: IterationCosts) -> list[float]:
    """When each request finishes under Chunked(CHUNK), one iteration at a time."""
    g, machine = cost.geometry, cost.machine
    lane: dict[str, Any] = {lane.name: lane for lane in cost.profile.lanes}
    byte_s = 1.0 / (machine.n_devices * machine.tiers["hbm"].peak_bytes_per_s.value)
    op_s = 1.0 / (machine.n_devices * machine.compute.ops_per_s[machine.dtype].value)
    covered_s = g.n_experts * g.expert_bytes("bf16")[0] * byte_s / lane["moe"].bytes_frac
    token_s = 2.0 * g.top_k * g.expert_params * op_s / lane["moe"].ops_frac
    weights_s = 2.0 * g.attention_params * byte_s / lane["dense"].bytes_frac
    weights_token_s = 2.0 * g.attention_params * op_s / lane["dense"].ops_frac
    pair_s = 4.0 * g.n_heads * g.head_dim * op_s / lane["pairs"].ops_frac
    context_s = 2.0 * g.kv_elements_per_token_layer * byte_s / lane["context"].bytes_frac
    link, d = machine.links["nvlink"], machine.n_devices
    reduce_s = 2.0 * link.latency_s.value
    reduce_token_s = 8.0 * (d - 1) / d * g.hidden / (link.peak_bytes_per_s.value * lane["comm"].bytes_frac)
    mixed_s, only_s, prefill_s = (lane[name].each_s for name in ("prefill_layer", "decode_layer", "tokens"))
    head_s = 2.0 * g.vocab * g.hidden * byte_s / lane["head"].bytes_frac
    mixed_rest_s, only_rest_s = (lane[name].each_s for name in ("prefill_step", "decode_step"))
    prefill, decode = cost.cov_prefill[:, 0].tolist(), cost.cov_decode[:, 0].tolist()
    n_layers = g.n_layers
    arrival, prompt, output = (
        column.tolist() for column in (requests.arrival_s, requests.n_prompt_tokens, requests.n_output_tokens)
    )
    n, position, left, finish = len(arrival), [0] * len(arrival), list(output), [0.0] * len(arrival)
    decoding: list[int] = []
    now, head, n_done = arrival[0], 0, 0
    while n_done < n:
        if not decoding and arrival[head] > now:
            now = arrival[head]
        taken, room, pairs, last = [], CHUNK - len(decoding), 0.0, head
        while last < n and room > 0 and arrival[last] <= now and len(decoding) + len(taken) < 256:
            take = min(prompt[last] - position[last], room)
            taken.append((last, take))
            pairs += take * (position[last] + 0.5 * take)
            room -= take
            if position[last] + take < prompt[last]:
                break
            last += 1
        n_prefill, n_decode = sum(take for _, take in taken), len(decoding)
        context, tokens = sum(prompt[r] + output[r] - left[r] for r in decoding), n_prefill + n_decode
        share = 1.0 - (1.0 - prefill[n_prefill]) * (1.0 - decode[n_decode])
        of_layer = share * covered_s + tokens * token_s + max(weights_s, tokens * weights_token_s)
        of_layer += pairs * pair_s + context * context_s + reduce_s + tokens * reduce_token_s
        of_layer += mixed_s + n_prefill * prefill_s if n_prefill else only_s
        now += n_layers * of_layer + head_s + (mixed_rest_s if n_prefill else only_rest_s)
        for r in decoding:
            left[r] -= 1
            if not left[r]:
                finish[r], n_done = now, n_done + 1
        decoding = [r for r in decoding if left[r]]
        for r, take in taken:
            position[r] += take
            if position[r] == prompt[r]:
                head, left[r] = r + 1, left[r] - 1
                if left[r]:
                    decoding.append(r)
                else:
                    finish[r], n_done = now, n_done + 1
    return finish


def speed() -> dict[str, Any]:
    """Requests and iterations per CPU second of 40 runs of 780 arXiv requests; ratios to the plain-Python peer and to vidur."""
    cost, length_scale = costs()
    workloads = [synthetic("arxiv", RATE_PER_S, seed, length_scale=length_scale) for seed in range(N_SEEDS)]
    n_requests = sum(map(len, workloads))
    report: dict[str, Any] = {}
    for name, scheduler in SCHEDULERS.items():
        n_iterations = sum(serve(requests, scheduler, cost).n_iterations for requests in workloads)
        spent = cpu_s(workloads, scheduler, cost)
        requests_per_s, iterations_per_s = n_requests / spent, n_iterations / spent
        report[f"serving_{name}_requests_per_cpu_s"] = round(requests_per_s)
        report[f"serving_{name}_iterations_per_cpu_s"] = round(iterations_per_s)
        print(f"serving, {name:8s} {requests_per_s / 1e3:6.0f} k requests/s, {iterations_per_s / 1e6:5.2f} M iterations/s")
    report |= with_operators(operator_costs(cost))
    # The headline is the scheduler that most engines run.
    for what in ("requests_per_cpu_s", "iterations_per_cpu_s"):
        report[f"serving_{what}"] = report[f"serving_chunked_{what}"]
    # Both ratios are of the same requests: iterations per request differ from seed to seed.
    first, chunked = workloads[0], SCHEDULERS["chunked"]
    ours_s = cpu_s([first] * N_SEEDS, chunked, cost) / N_SEEDS
    assert np.allclose(peer(first, cost), serve(first, chunked, cost).finish_s, rtol=1e-9), "the peer serves otherwise"
    peer_s = seconds_of(lambda: peer(first, cost), N_REPEATS)
    report["serving_ratio_vs_python"] = round(peer_s / ours_s, 1)
    print(f"serving, plain Python peer {len(first) / peer_s / 1e3:.1f} k requests/s, ratio {report['serving_ratio_vs_python']}")
    return report | against_vidur(first, cost, ours_s)


def with_operators(cost: IterationCosts) -> dict[str, Any]:
    """Requests and iterations per CPU second by fitted operators: ShareGPT's requests, more than the machine serves."""
    busy, scheduler = [synthetic("sharegpt", BUSY_PER_S, seed) for seed in range(N_SEEDS)], Chunked(BUSY_CHUNK)
    n_iterations = sum(serve(requests, scheduler, cost).n_iterations for requests in busy)
    spent = cpu_s(busy, scheduler, cost)
    requests_per_s, iterations_per_s = sum(map(len, busy)) / spent, n_iterations / spent
    print(f"serving, operators {requests_per_s / 1e3:.0f} k requests/s, {iterations_per_s / 1e6:.2f} M iterations/s, saturated")
    return {
        "serving_operators_requests_per_cpu_s": round(requests_per_s),
        "serving_operators_iterations_per_cpu_s": round(iterations_per_s),
    }


def cpu_s(workloads: list[Requests], scheduler: Scheduler, cost: IterationCosts) -> float:
    """CPU seconds to serve them all, one after the other."""
    return seconds_of(lambda: [serve(requests, scheduler, cost) for requests in workloads], N_REPEATS)


def against_vidur(requests: Requests, cost: IterationCosts, ours_s: float) -> dict[str, Any]:
    """vidur on these requests where it is installed, with the ratio to our seconds, and in any case the figure quoted of it."""
    run = serve(requests, SCHEDULERS["chunked"], cost, record=True)
    n_tokens = run.iterations["n_decode"] + run.iterations["n_prefill"]
    token_s, iteration_s = np.polyfit(n_tokens, run.iterations["seconds"], 1).tolist()
    columns = (requests.arrival_s, requests.n_prompt_tokens, requests.n_output_tokens)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    found = vidur_peer.bench(rows, (iteration_s, token_s), RATE_PER_S, CHUNK)
    if found:
        assert abs(found["vidur_n_iterations"] / run.n_iterations - 1) < 0.05, "vidur serves otherwise"
        found["serving_ratio_vs_vidur"] = round(len(requests) / ours_s / found["vidur_requests_per_cpu_s"])
        print(
            f"serving, vidur {found['vidur_version']} {found['vidur_requests_per_cpu_s']} requests/s "
            f"({found['vidur_n_iterations']:,} iterations, ours {run.n_iterations:,}), ratio {found['serving_ratio_vs_vidur']}"
        )
    return found | {"published": {"vidur": vidur_peer.PUBLISHED}}


def bench() -> dict[str, Any]:
    """`speed`, and a million requests in a process of their own: this one's peak memory may come from elsewhere."""
    report = speed()
    done = subprocess.run([sys.executable, "-m", "bench.serving", MANY], capture_output=True, text=True, check=True)
    many = json.loads(done.stdout.splitlines()[-1])
    print(f"serving a million requests: {many['cpu_s']:.1f} s, peak {many['peak_bytes'] / 2**20:.0f} MiB")
    study_s = study_cpu_s()
    print(f"the study layered_prefill, {N_SEEDS} seeds at every point: {study_s:.0f} s of CPU")
    return report | {
        "serving_million_requests_cpu_s": many["cpu_s"],
        "serving_million_peak_bytes": many["peak_bytes"],
        "serving_study_cpu_s": round(study_s, 1),
    }


def study_cpu_s() -> float:
    """CPU seconds of the whole study of Layered Prefill on one core; recorded arrivals, which only some have, are left out."""
    chosen = Settings.shipped().model_copy(update={"n_seeds": N_SEEDS, "n_claim_seeds": N_SEEDS, "traces": ()})
    with tempfile.TemporaryDirectory() as place:
        started = time.process_time()
        run(chosen, Store(place), runner="threads", workers=1, say=lambda line: None)
        return time.process_time() - started


def many_requests() -> dict[str, float]:
    """A million arXiv requests in one run, and the process's peak memory."""
    cost, length_scale = costs()
    requests = synthetic("arxiv", RATE_PER_S, 0, n=N_MANY, length_scale=length_scale)
    started = time.process_time()
    run = serve(requests, Layered(), cost)
    assert run.n_decoded == int(requests.n_output_tokens.sum()) - N_MANY
    spent = time.process_time() - started
    return {"cpu_s": round(spent, 2), "peak_bytes": peak_bytes()}


if __name__ == "__main__":
    print(json.dumps(many_requests() if MANY in sys.argv[1:] else bench()))
