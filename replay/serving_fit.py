"""Fits the serving engine's constants to Layered Prefill's chunked runs and microbenchmarks; everything else it predicts.

Ten numbers: nine constants and the scale of the arXiv prompts. Loss: sum of ((ln simulated / published) / sigma)^2 over claims of
role `calibrate`, by simplex search on logarithms from generic starts. The facts leave a flat valley of correlated constants, in
which a search gets lost; a weak pull to the starts, a factor of 1.65 for constants and 5 % for the scale, whose 1.0 is the
published mean, keeps it out of the far ends. Runs are medians over seeds, the same ones at every step. The energy's constants
follow by least squares. Pure: the claims are passed in.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hw.serving_constants import ServingConstants, ServingFit
from hw.spec import HardwareSpec
from policies.serving import Chunked
from replay.serving import ServingRun, serve
from replay.serving_cost import CostTables, cost_tables, decode_step_s
from replay.serving_coverage import published_coverage
from replay.workload import Requests, synthetic
from warehouse.geometry import Geometry

Floats = NDArray[np.float64]

# Name; start, lowest and highest value of what is fitted, and sigma of the pull to the start, on logarithms.
PARAMETERS: dict[str, tuple[float, float, float, float]] = {
    "expert_bandwidth_frac": (0.5, 0.1, 1.0, 0.5),
    "expert_ops_frac": (0.5, 0.1, 1.0, 0.5),
    "attention_ops_frac": (0.4, 0.05, 1.0, 0.5),
    "kv_bandwidth_frac": (0.7, 0.1, 0.8, 0.5),  # above it no attention kernel reads
    "prefill_layer_s": (50e-6, 1e-6, 1e-3, 0.5),
    "decode_layer_s": (50e-6, 1e-6, 1e-3, 0.5),
    "prefill_token_s": (5e-8, 1e-9, 1e-6, 0.5),
    "prefill_iteration_s": (2e-3, 1e-4, 2e-2, 0.5),
    "prefill_correlation": (4.0, 1.0, 50.0, 0.5),
    "length_scale": (1.0, 0.7, 1.3, 0.05),
}
# Steps of the search: seeds per run, size of the first simplex, evaluations.
STAGES = ((6, 0.2, 700), (6, 0.1, 500), (12, 0.06, 350), (40, 0.03, 120))
_PAPER = "layered_prefill"
_ROWS = {512: 1.3, 1024: 1.7, 2048: 2.6}  # Table 2: chunk, requests/s
# Sigma of the metrics of a run, as shares.
_RUN_SIGMAS = {
    "ttft_mean": 0.15,
    "ttft_p99": 0.25,
    "tbt_mean": 0.06,
    "tbt_p99": 0.04,
    "expert_load_per_request": 0.05,
}


@dataclass(frozen=True)
class Fact:
    """A published number. key: of `simulated`; claims: ids, averaged geometrically; target: in SI units; sigma_frac: weight."""

    key: tuple[str, ...]
    claims: tuple[str, ...]
    target: float
    sigma_frac: float


def facts(claims: Iterable[Mapping[str, Any]]) -> list[Fact]:
    """What is fitted on, from the rows of table `claims`. Raises ValueError naming a claim that is missing or not for fitting.

    Where the paper gives a bound or a rough value ("above 0.5 s", "near 0.2 s") a point is chosen: point_frac of it (assumed).
    """
    known = {row["claim_id"]: row for row in claims if row["paper"] == _PAPER}

    def fact(key: tuple[str, ...], ids: list[str], sigma_frac: float, point_frac: float = 1.0) -> Fact:
        for claim in ids:
            if claim not in known or known[claim]["role"] != "calibrate":
                raise ValueError(f"claim {claim} is missing or has another role than calibrate; it may not be fitted on")
        values = [float(known[claim]["value"]) * _SI[known[claim]["unit"]] for claim in ids]
        return Fact(key, tuple(ids), point_frac * float(np.exp(np.mean(np.log(values)))), sigma_frac)

    model = "qwen3-30b-a3b"
    found = [
        fact(("prefill", f"{chunk}"), [f"{_PAPER}/sec-3.2/prefill_time/{model}/prompt-8192-chunk-{chunk}"], sigma, point)
        for chunk, sigma, point in ((512, 0.03, 1.04), (4096, 0.06, 1.075), (8192, 0.05, 0.975))
    ]
    found += [
        fact(("moe_share", f"{n}"), [f"{_PAPER}/sec-5.11/moe_runtime_share/{model}/prompt-{n}-chunk-512"], sigma)
        for n, sigma in ((8192, 0.02), (32768, 0.03))
    ]
    decode_32 = f"{_PAPER}/sec-5.1-table-5/decode_step_time/{model}/batch-32-ctx-4096-tbt-slo-5"
    decode_1 = f"{_PAPER}/public-repository-readme/inter_token_latency_p5/{model}/decode-only-batch-1-ctx-8000"
    found += [fact(("decode", "32", "4096"), [decode_32], 0.12), fact(("decode", "1", "8000"), [decode_1], 0.03)]
    for chunk, rate in _ROWS.items():
        for metric, sigma in _RUN_SIGMAS.items():
            tables = ["table-2", "table-6"] if chunk == 512 and metric != "expert_load_per_request" else ["table-2"]
            ids = [f"{_PAPER}/{table}/{metric}/{model}/arxiv-chunked-chunk-{chunk}-rate-{rate}" for table in tables]
            found.append(fact(("run", f"{chunk}", metric), ids, sigma))
    return found


_SI = {"s": 1.0, "ms": 1e-3, "percent": 1e-2, "GB": 1e9, "mJ": 1e-3}


def simulated(cost: CostTables, length_scale: float, seeds: Iterable[int]) -> dict[tuple[str, ...], float]:
    """Our value of every fact, by key, in SI units; runs are medians over the seeds."""

    def alone(prompt: int, chunk: int) -> ServingRun:
        return serve(Requests(np.zeros(1), np.array([prompt]), np.array([1])), Chunked(chunk), cost)

    found: dict[tuple[str, ...], float] = {("prefill", f"{c}"): float(alone(8192, c).ttft_s[0]) for c in (512, 4096, 8192)}
    for prompt in (8192, 32768):
        run = alone(prompt, 512)
        found["moe_share", f"{prompt}"] = run.seconds_of["moe"] / run.busy_s
    for batch, context in ((32, 4096), (1, 8000)):
        found["decode", f"{batch}", f"{context}"] = decode_step_s(cost, batch, context)
    for chunk, rate in _ROWS.items():
        rows = [_run_metrics(serve(r, Chunked(chunk), cost)) for r in _workloads(rate, length_scale, seeds)]
        for metric in _RUN_SIGMAS:
            found["run", f"{chunk}", metric] = float(np.median([row[metric] for row in rows]))
    return found


def _workloads(rate_per_s: float, length_scale: float, seeds: Iterable[int]) -> list[Requests]:
    return [synthetic("arxiv", rate_per_s, seed, length_scale=length_scale) for seed in seeds]


def _run_metrics(run: ServingRun) -> dict[str, float]:
    return {
        "ttft_mean": float(run.ttft_s.mean()),
        "ttft_p99": float(np.percentile(run.ttft_s, 99)),
        "tbt_mean": run.gap_mean_s,
        "tbt_p99": run.gap_percentile_s(99),
        "expert_load_per_request": run.expert_bytes / len(run.requests),
    }


def calibrate(
    claims: Iterable[Mapping[str, Any]],
    geometry: Geometry,
    machine: HardwareSpec,
    model: str,
    say: Callable[[str], None] = lambda line: None,
) -> ServingFit:
    """The constants that come closest to the published facts. Deterministic; minutes on one core. Needs scipy.

    say: told of the progress. Raises ValueError for claims that may not be fitted on, ImportError without scipy.
    """
    try:
        from scipy.optimize import minimize
    except ImportError as error:
        raise ImportError("fitting needs scipy: pip install 'tokentape[calibrate]'") from error
    rows = list(claims)
    wanted = facts(rows)
    numbers = np.array(list(PARAMETERS.values()))
    (start, low, high), sigma = np.log(numbers[:, :3]).T, numbers[:, 3]

    def cost_of(values: Floats) -> tuple[CostTables, float]:
        named = dict(zip(PARAMETERS, np.exp(np.clip(values, low, high)).tolist(), strict=True))
        length_scale = named.pop("length_scale")
        constants = ServingConstants(**named)
        coverage = published_coverage(rows, constants.prefill_correlation)
        return cost_tables(geometry, machine, constants, coverage), length_scale

    def misses(values: Floats, n_seeds: int) -> float:
        made = simulated(*cost_of(values), range(n_seeds))
        return sum((float(np.log(made[fact.key] / fact.target)) / fact.sigma_frac) ** 2 for fact in wanted)

    def loss_of(values: Floats, n_seeds: int) -> float:
        outside = float((np.maximum(values - high, 0.0) + np.maximum(low - values, 0.0)).sum())
        return misses(values, n_seeds) + float((((values - start) / sigma) ** 2).sum()) + 100.0 * outside

    best = start
    for n_seeds, step, n_evaluations in STAGES:
        simplex = np.vstack([best, best + step * np.eye(best.size)])
        options = {"initial_simplex": simplex, "maxfev": n_evaluations, "xatol": 1e-4, "fatol": 1e-4, "adaptive": True}
        found = minimize(loss_of, best, args=(n_seeds,), method="Nelder-Mead", options=options)
        best = found.x
        say(f"{n_seeds} seeds: loss with the pull {found.fun:.2f} after {found.nfev} evaluations")
    cost, length_scale = cost_of(best)
    n_seeds = STAGES[-1][0]
    loss = misses(best, n_seeds)
    constants, energy_claims = fit_energy(rows, cost, length_scale, range(n_seeds))
    ids = {claim for fact in wanted for claim in fact.claims} | set(energy_claims)
    ids |= {row["claim_id"] for row in rows if row["paper"] == _PAPER and row["metric"] == "expert_coverage"}
    return ServingFit(constants, length_scale, machine.name, model, tuple(sorted(ids)), loss)


def fit_energy(
    claims: Iterable[Mapping[str, Any]], cost: CostTables, length_scale: float, seeds: Iterable[int]
) -> tuple[ServingConstants, tuple[str, ...]]:
    """Static power and energy per byte by least squares on relative errors of the chunked rows' energy per token; the energy per
    operation stays as assumed, since three rows cannot tell the three apart. Returns the ids of the claims used."""
    numbers = tuple(seeds)
    rows = [
        row for row in claims if row["paper"] == _PAPER and row["metric"] == "energy_per_token" and row["role"] == "calibrate"
    ]
    shares, rest = [], []
    for row in rows:
        rate = float(row["setting"].split("rate=")[1])
        chunk = next(c for c, r in _ROWS.items() if r == rate)
        target_j = float(row["value"]) * _SI[row["unit"]]
        runs = [serve(requests, Chunked(chunk), cost) for requests in _workloads(rate, length_scale, numbers)]
        tokens = np.array([(run.requests.n_prompt_tokens + run.requests.n_output_tokens).sum() for run in runs], np.float64)
        per_run = np.array([(run.wall_s, run.moved_bytes, run.ops) for run in runs])
        wall, moved, ops = np.median(per_run / tokens[:, None], axis=0) / target_j
        shares.append((wall, moved))
        rest.append(1.0 - cost.constants.j_per_op * ops)
    static_w, j_per_byte = np.linalg.lstsq(np.array(shares), np.array(rest), rcond=None)[0]
    if static_w < 0 or j_per_byte < 0:
        raise ValueError(f"energy: the fit gives {static_w:.3g} W and {j_per_byte:.3g} J/B; neither can be negative")
    constants = dataclasses.replace(cost.constants, static_w=float(static_w), j_per_byte=float(j_per_byte))
    return constants, tuple(row["claim_id"] for row in rows)
