"""The serving engine against a plain-Python one with an object per request: event by event, all schedulers."""

import json
from pathlib import Path

import numpy as np
import pytest
from serving_models import NOTED, both, tiny
from serving_oracle import serve_slowly

from tokentape.policies.serving import Chunked, Continuous, Layered, Speculation, Static
from tokentape.replay.serving.run import Limits, serve
from tokentape.replay.serving.workload import Requests

MODELS = [
    both(tiny()),
    both(tiny(5, windows=(40, 0, 40, 0, 40)), "h100"),
    both(tiny(6, moe_layers=(1, 2, 3, 4, 5), shared=90), constants=NOTED.but(kv_frac_per_decode=0.119)),
]
N_WORKLOADS = 200
N_SPECULATIVE = 60


def drafting(rng: np.random.Generator, seed: int):
    """One of the models, drafting chains or trees: more nodes than any round accepts, or as many."""
    n_nodes = int(rng.integers(1, 40))
    depth = int(rng.integers(0, min(n_nodes, 6) + 1))
    survival = tuple(np.sort(rng.random(depth))[::-1].tolist())
    options = {"speculation": Speculation(n_nodes, survival, float(rng.choice([0.0, 2e-3])))}
    return (
        both(tiny(), **options),
        both(tiny(5, windows=(40, 0, 40, 0, 40)), "h100", **options),
        both(tiny(6, moe_layers=(1, 2, 3, 4, 5), shared=90), **options),
    )[seed % 3]


def scheduler_of(rng: np.random.Generator, n_layers: int):
    """Any of the four, with small knobs, so that prompts are cut and batches merge."""
    kind = rng.integers(6)
    if kind == 0:
        return Static(int(rng.integers(1, 6)))
    if kind == 1:
        return Continuous(int(rng.integers(20, 400)))
    if kind == 2:
        return Chunked(int(rng.integers(2, 150)))
    rule = ("paper", "code", "fixed")[kind - 3]
    n_max = int(rng.integers(1, n_layers + 1)) if rule == "fixed" else int(rng.choice([1, 2, 4, 8, 12, 16, 24]))
    return Layered(int(rng.integers(30, 5000)), n_max, rule)


def workload(rng: np.random.Generator) -> tuple[list[tuple[float, int, int, int]], list[tuple[int, int]]]:
    """Few requests, some together, some far apart, (arrival, prompt, output, prefix); and prefixes, (shorter one, tokens)."""
    n = int(rng.integers(1, 25))
    gaps = rng.exponential(rng.choice([1e-4, 3e-3, 0.1]), n) * (rng.random(n) < 0.8)
    prompts = np.maximum(1, rng.lognormal(rng.choice([3.0, 5.0, 6.5]), 1.0, n).astype(int))
    outputs = 1 + rng.geometric(0.08, n) * (rng.random(n) < 0.9)
    prefixes = [(0, 0)]
    for _ in range(rng.integers(0, 6)):
        shorter = int(rng.integers(0, len(prefixes)))
        prefixes.append((shorter, prefixes[shorter][1] + int(rng.integers(1, 200))))
    fitting = [[i for i, (_, tokens) in enumerate(prefixes) if tokens < prompt] for prompt in prompts]
    prefix = [int(rng.choice(rows)) for rows in fitting]
    return list(zip(np.cumsum(gaps).tolist(), prompts.tolist(), outputs.tolist(), prefix, strict=True)), prefixes


def as_requests(rows: list[tuple[float, int, int, int]], prefixes: list[tuple[int, int]]) -> Requests:
    arrival, *lengths = (np.array(column) for column in zip(*rows, strict=True))
    return Requests(arrival.astype(float), *lengths, np.array([(*of, 0) for of in prefixes]))


@pytest.mark.parametrize("block", [*range(4), *(pytest.param(block, marks=pytest.mark.slow) for block in range(4, 10))])
def test_agrees_with_the_oracle(block: int) -> None:
    for seed in range(block, N_WORKLOADS + N_SPECULATIVE, 10):
        rng = np.random.default_rng(seed)
        cost, model = MODELS[seed % len(MODELS)]
        if seed >= N_WORKLOADS:
            cost, model = drafting(rng, seed)
        (rows, prefixes), scheduler = workload(rng), scheduler_of(rng, cost.geometry.n_layers)
        max_seqs = int(rng.choice([1, 2, 5, 256]))
        kv_blocks, block_tokens = None, int(rng.choice([4, 16]))
        if seed % 2:
            nodes = model.speculation.n_nodes if model.speculation else 0
            longest = max(-(-(prompt + output - 1 + nodes * (output > 1)) // block_tokens) for _, prompt, output, _ in rows)
            kv_blocks = int(longest * rng.choice([1.0, 1.3, 3.0]))
        limits = Limits(max_seqs, kv_blocks, block_tokens, schedules_ahead=seed % 4 > 1, keeps=seed % 3 > 0, fills=seed % 5 > 1)
        made = serve(as_requests(rows, prefixes), scheduler, cost, limits, record=True, seed=seed)
        slow, log = serve_slowly(
            rows, scheduler, model, max_seqs, kv_blocks, block_tokens, seed, limits.schedules_ahead, limits.keeps, limits.fills,
            prefixes,
        )  # fmt: skip
        where = f"seed {seed}: {scheduler}, {limits}"
        for name, series in made.iterations.items():
            np.testing.assert_allclose(series, [row[name] for row in log], rtol=1e-9, err_msg=f"{where}: {name}")
        assert made.n_restarts.tolist() == [r.restarts for r in slow], where
        assert made.n_cached_tokens.tolist() == [r.cached for r in slow], where
        first = [r.token_times[0] for r in slow]
        waits = [max(r.waits, default=0.0) for r in slow]
        np.testing.assert_allclose(made.first_token_s, first, rtol=1e-9, err_msg=where)
        np.testing.assert_allclose(made.finish_s, [r.token_times[-1] for r in slow], rtol=1e-9, err_msg=where)
        np.testing.assert_allclose(made.started_s, [r.started for r in slow], rtol=1e-9, err_msg=where)
        np.testing.assert_allclose(made.largest_gap_s, waits, rtol=1e-9, atol=1e-12, err_msg=where)
        pooled = np.array([gap for r in slow for gap in r.gaps])
        assert made.gaps.sum() == pooled.size == sum(row[2] for row in rows) - len(rows), where
        if pooled.size:
            np.testing.assert_allclose([made.gap_mean_s, made.gap_std_s], [pooled.mean(), pooled.std()], rtol=1e-6, atol=1e-8)
            for q in (5, 50, 90, 99):
                near = np.percentile(pooled, q, method="lower"), np.percentile(pooled, q, method="higher")
                assert near[0] * (1 - 3e-4) <= made.gap_percentiles_s(q) <= near[1] * (1 + 3e-4), (where, q)
        c = model.constants
        totals = {"moved": made.j_of_bytes / c.j_per_byte, "ops": made.j_of_ops / c.j_per_op, "expert_bytes": made.expert_bytes}
        for name, total in totals.items():
            np.testing.assert_allclose(total, sum(row[name] for row in log), rtol=1e-9, err_msg=f"{where}: {name}")


@pytest.mark.parametrize("told", json.loads(Path(__file__).with_name("vllm_schedules.json").read_text()))
def test_vllm_schedules_the_same(told):
    """What the schedulers of vLLM 0.15.1 (without `fits_whole`), 0.19.1 and 0.24.0 (`fills`) did with requests that come at once
    and too little memory, of the last twelve prompts that share prefixes: tokens of every iteration, and after how many each
    request had its first and its last token."""
    n, shared = len(told["n_prompt"]), {name: np.array(told[name]) for name in ("prefix", "prefixes") if name in told}
    requests = Requests(np.zeros(n), np.array(told["n_prompt"]), np.array(told["n_output"]), **shared)
    limits = Limits(**{name: told[name] for name in told.keys() & vars(Limits())})
    run = serve(requests, Chunked(told["budget_tokens"]), MODELS[0][0], limits, record=True)
    ends_s = run.iterations["start_s"] + run.iterations["seconds"]
    assert (run.iterations["n_prefill"] + run.iterations["n_decode"]).tolist() == told["n_tokens"]
    assert run.n_restarts.sum() >= 2
    for times_s, wanted in ((run.first_token_s, told["first"]), (run.finish_s, told["finish"])):
        assert (np.searchsorted(ends_s, times_s - 1e-12) + 1).tolist() == wanted
