"""The published numbers that the serving constants are fitted on (Layered Prefill: chunked runs, microbenchmarks), and ours."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokentape.policies.serving import Chunked
from tokentape.replay.serving.client import Client
from tokentape.replay.serving.iteration import IterationCosts
from tokentape.replay.serving.metrics import metrics
from tokentape.replay.serving.run import ServingRun, serve
from tokentape.replay.serving.workload import Requests, synthetic

PAPER = "layered_prefill"
MODES = ("chunked", "long-context")
ROWS = {512: 1.3, 1024: 1.7, 2048: 2.6}  # Table 2: chunk, requests/s
_LONG_RATE = 0.1
# Sigma of the metrics of a run, as shares.
_RUN_SIGMAS = {
    "ttft_mean": 0.15,
    "ttft_p99": 0.25,
    "tbt_mean": 0.06,
    "tbt_p99": 0.04,
    "expert_load_per_request": 0.05,
}
_OURS = {"expert_load_per_request": "expert_bytes_per_request"}  # of those that are no times


@dataclass(frozen=True)
class Fact:
    """A published number. key: of `simulated`; claims: ids, averaged geometrically; target: in SI units; sigma_frac: weight."""

    key: tuple[str, ...]
    claims: tuple[str, ...]
    target: float
    sigma_frac: float

    @property
    def group(self) -> str:
        """What was measured together: a run, or one kind of microbenchmark."""
        return " ".join(self.key[:2]) if self.key[0] == "run" else self.key[0]


def facts(claims: Iterable[Mapping[str, Any]], mode: str = "chunked") -> list[Fact]:
    """What is fitted on, from the rows of table `claims`. mode chunked: claims of role `calibrate` alone; long-context: also the
    chunked run of 30k prompts, which the headline predicts.

    Where the paper gives a bound or a rough value ("above 0.5 s", "near 0.2 s") a point is chosen: point_frac of it (assumed).
    Raises ValueError naming a claim that is missing or not for fitting, and for an unknown mode.
    """
    if mode not in MODES:
        raise ValueError(f"mode {mode!r} is unknown; choose {', '.join(MODES)}")
    known = {row["claim_id"]: row for row in claims if row["paper"] == PAPER}

    def fact(key: tuple[str, ...], ids: list[str], sigma_frac: float, point_frac: float = 1.0, role: str = "calibrate") -> Fact:
        for claim in ids:
            if claim not in known or known[claim]["role"] != role:
                raise ValueError(f"claim {claim} is missing or has another role than {role}; it may not be fitted on")
        values = [float(known[claim]["value"]) * SI[known[claim]["unit"]] for claim in ids]
        return Fact(key, tuple(ids), point_frac * float(np.exp(np.mean(np.log(values)))), sigma_frac)

    model = "qwen3-30b-a3b"
    found = [
        fact(("prefill", f"{chunk}"), [f"{PAPER}/sec-3.2/prefill_time/{model}/prompt-8192-chunk-{chunk}"], sigma, point)
        for chunk, sigma, point in ((512, 0.03, 1.04), (4096, 0.06, 1.075), (8192, 0.05, 0.975))
    ]
    found += [
        fact(("moe_share", f"{n}"), [f"{PAPER}/sec-5.11/moe_runtime_share/{model}/prompt-{n}-chunk-512"], sigma)
        for n, sigma in ((8192, 0.02), (32768, 0.03))
    ]
    decode_32 = f"{PAPER}/sec-5.1-table-5/decode_step_time/{model}/batch-32-ctx-4096-tbt-slo-5"
    decode_1 = f"{PAPER}/public-repository-readme/inter_token_latency_p5/{model}/decode-only-batch-1-ctx-8000"
    found += [fact(("decode", "32", "4096"), [decode_32], 0.12), fact(("decode", "1", "8000"), [decode_1], 0.03)]
    for chunk, rate in ROWS.items():
        for metric, sigma in _RUN_SIGMAS.items():
            tables = ["table-2", "table-6"] if chunk == 512 and metric != "expert_load_per_request" else ["table-2"]
            ids = [f"{PAPER}/{table}/{metric}/{model}/arxiv-chunked-chunk-{chunk}-rate-{rate}" for table in tables]
            found.append(fact(("run", f"{chunk}", metric), ids, sigma))
    if mode == "long-context":
        for metric in ("ttft_mean", "tbt_mean"):
            claim = f"{PAPER}/sec-5.11/{metric}/{model}/30k-prompts-chunked-chunk-512-rate-{_LONG_RATE}"
            found.append(fact(("long", metric), [claim], _RUN_SIGMAS[metric], role="predict"))
    return found


SI = {"s": 1.0, "ms": 1e-3, "percent": 1e-2, "GB": 1e9, "mJ": 1e-3}


def simulated(
    cost: IterationCosts, length_scale: float, seeds: Iterable[int], mode: str = "chunked"
) -> dict[tuple[str, ...], float]:
    """Our value of every fact of a mode, by key, in SI units; runs are medians over the seeds."""
    numbers = tuple(seeds)

    def alone(prompt: int, chunk: int) -> ServingRun:
        return serve(Requests(np.zeros(1), np.array([prompt]), np.array([1])), Chunked(chunk), cost)

    found: dict[tuple[str, ...], float] = {("prefill", f"{c}"): float(alone(8192, c).ttft_s[0]) for c in (512, 4096, 8192)}
    for prompt in (8192, 32768):
        run = alone(prompt, 512)
        found["moe_share", f"{prompt}"] = run.seconds_of["moe"] / run.busy_s
    for batch, context in ((32, 4096), (1, 8000)):
        found["decode", f"{batch}", f"{context}"] = cost.decode_step_s(batch, context)

    def medians(sent: Iterable[Requests], chunk: int, names: Iterable[str]) -> Iterator[tuple[str, float]]:
        runs = [metrics(serve(of, Chunked(chunk), cost, client=Client())) for of in sent]
        return ((name, float(np.median([run[_OURS.get(name, f"{name}_s")].value for run in runs]))) for name in names)

    for chunk, rate in ROWS.items():
        made = medians(workloads(rate, length_scale, numbers), chunk, _RUN_SIGMAS)
        found |= {("run", f"{chunk}", name): value for name, value in made}
    if mode == "long-context":
        sent = [synthetic("30k", _LONG_RATE, seed, of_client=True) for seed in numbers]
        found |= {("long", name): value for name, value in medians(sent, 512, ("ttft_mean", "tbt_mean"))}
    return found


def workloads(rate_per_s: float, length_scale: float, seeds: Iterable[int]) -> list[Requests]:
    """The arXiv requests of a row of Table 2 as the paper's benchmark client sends them, a set per seed."""
    return [synthetic("arxiv", rate_per_s, seed, length_scale=length_scale, of_client=True) for seed in seeds]
