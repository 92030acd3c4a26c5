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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hw.serving_constants import ServingConstants, ServingFit
from hw.spec import HardwareSpec
from policies.serving import Chunked
from replay.serving import serve
from replay.serving_cost import CostTables, cost_tables
from replay.serving_coverage import published_coverage
from replay.serving_facts import PAPER, ROWS, SI, facts, simulated, workloads
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
# Fitted too where long prompts are.
LONG_CONTEXT = {"kv_frac_per_decode": (0.2, 0.01, 1.0, 0.5)}
# Steps of the search: seeds per run, size of the first simplex, evaluations.
STAGES = ((6, 0.2, 700), (6, 0.1, 500), (12, 0.06, 350), (40, 0.03, 120))


def calibrate(
    claims: Iterable[Mapping[str, Any]],
    geometry: Geometry,
    machine: HardwareSpec,
    model: str,
    mode: str = "chunked",
    say: Callable[[str], None] = lambda line: None,
) -> ServingFit:
    """The constants that come closest to the published facts. Deterministic; minutes on one core. Needs scipy.

    mode: long-context fits the limit of the KV bandwidth at small batches too, on one run more (see facts); it is not the
    headline. say: told of the progress. Raises ValueError for claims that may not be fitted on, ImportError without scipy.
    """
    try:
        from scipy.optimize import minimize
    except ImportError as error:
        raise ImportError("fitting needs scipy: pip install 'tokentape[calibrate]'") from error
    rows = list(claims)
    wanted = facts(rows, mode)
    parameters = PARAMETERS | (LONG_CONTEXT if mode == "long-context" else {})
    numbers = np.array(list(parameters.values()))
    (start, low, high), sigma = np.log(numbers[:, :3]).T, numbers[:, 3]

    def cost_of(values: Floats) -> tuple[CostTables, float]:
        named = dict(zip(parameters, np.exp(np.clip(values, low, high)).tolist(), strict=True))
        length_scale = named.pop("length_scale")
        constants = ServingConstants(**named)
        coverage = published_coverage(rows, constants.prefill_correlation)
        return cost_tables(geometry, machine, constants, coverage), length_scale

    def misses(values: Floats, n_seeds: int) -> float:
        made = simulated(*cost_of(values), range(n_seeds), mode)
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
    ids |= {row["claim_id"] for row in rows if row["paper"] == PAPER and row["metric"] == "expert_coverage"}
    return ServingFit(constants, length_scale, machine.name, model, mode, tuple(sorted(ids)), loss)


def fit_energy(
    claims: Iterable[Mapping[str, Any]], cost: CostTables, length_scale: float, seeds: Iterable[int]
) -> tuple[ServingConstants, tuple[str, ...]]:
    """Static power and energy per byte by least squares on relative errors of the chunked rows' energy per token; the energy per
    operation stays as assumed, since three rows cannot tell the three apart. Returns the ids of the claims used."""
    numbers = tuple(seeds)
    rows = [row for row in claims if row["paper"] == PAPER and row["metric"] == "energy_per_token" and row["role"] == "calibrate"]
    shares, rest = [], []
    for row in rows:
        rate = float(row["setting"].split("rate=")[1])
        chunk = next(c for c, r in ROWS.items() if r == rate)
        target_j = float(row["value"]) * SI[row["unit"]]
        runs = [serve(requests, Chunked(chunk), cost) for requests in workloads(rate, length_scale, numbers)]
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
