"""What the study's points say about the paper's numbers: rows of table `answers`, one per claim and mode.

Mode `paper` counts as the paper's tables do; `physical` stands beside it where the paper's own numbers disagree on the counting.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from tokentape.flows.serving.setup import Point, engine_of
from tokentape.flows.systems.layered_prefill.knees import Values, answer, knee_answers
from tokentape.flows.systems.layered_prefill.settings import PAPER, Job, Settings
from tokentape.replay.serving.cost import decode_step_s
from tokentape.warehouse.load import claims
from tokentape.warehouse.tape import Store

# Of a claim's metric: our metric, in SI units, and its sign.
METRICS: dict[str, tuple[str, float]] = {
    "ttft_mean": ("ttft_mean_s", 1.0),
    "ttft_p95": ("ttft_p95_s", 1.0),
    "ttft_p99": ("ttft_p99_s", 1.0),
    "ttft_tail_read_as_p99": ("ttft_p99_s", 1.0),
    "tbt_mean": ("tbt_mean_s", 1.0),
    "tbt_p99": ("tbt_p99_s", 1.0),
    "tbt_std": ("tbt_std_s", 1.0),
    "e2e": ("e2e_mean_s", 1.0),
    "jain_index": ("jain", 1.0),
    "energy_per_token": ("energy_j_per_token", 1.0),
    "expert_load_per_request": ("expert_bytes_per_request", 1.0),
    "expert_load_total_100req": ("expert_bytes", 1.0),
    "expert_load": ("expert_bytes", 1.0),
    "prefill_time": ("ttft_mean_s", 1.0),
    "moe_runtime_share": ("moe_frac", 1.0),
    "offline_output_throughput": ("output_tokens_per_s", 1.0),
    "energy_change": ("energy_j_per_token_change_frac", 1.0),
    "e2e_change": ("e2e_mean_s_change_frac", 1.0),
    "expert_load_reduction": ("expert_bytes_change_frac", -1.0),
}
# Largest reductions over the compared points.
LARGEST = {
    "expert_load_reduction": "expert_bytes_change_frac",
    "ttft_reduction": "ttft_mean_s_change_frac",
    "e2e_reduction": "e2e_mean_s_change_frac",
    "energy_per_token_reduction": "energy_j_per_token_change_frac",
}
SI = {"s": 1.0, "ms": 1e-3, "percent": 1e-2, "GB": 1e9, "TB": 1e12, "mJ": 1e-3}  # other units: as they are
ONE_MATRIX = "expert_load_total_100req"  # fits the paper only with one of an expert's three matrices counted (docs)
STEP_CLAIMS = {  # of decode-only iterations: batch and context, read off the claim's setting
    f"{PAPER}/sec-5.1-table-5/decode_step_time/qwen3-30b-a3b/batch-32-ctx-4096-tbt-slo-5": (32, 4096),
    f"{PAPER}/sec-5.1-table-5/decode_step_time/gpt-oss-20b/batch-32-ctx-4096-tbt-slo-5": (32, 4096),
    f"{PAPER}/public-repository-readme/inter_token_latency_p5/qwen3-30b-a3b/decode-only-batch-1-ctx-8000": (1, 8000),
}


def answers(store: Store, study: Settings, wanted: Sequence[Job], points: Sequence[pl.DataFrame]) -> list[dict[str, Any]]:
    """Rows of table `answers`. points: rows of serving_points of each job, in order. Raises ValueError for a pattern of the study
    file that names no claim."""
    stated = {row["claim_id"]: row for row in claims().to_pylist() if row["paper"] == PAPER}
    values = [values_of(frame) for frame in points]
    rows: list[dict[str, Any]] = []
    for job, found in zip(wanted, values, strict=True):
        for pattern in job.claims:
            ids = fnmatch.filter(stated, f"{PAPER}/{pattern}")
            if not ids:
                raise ValueError(f"study {study.name}, series {job.series}: no claim is named {PAPER}/{pattern}")
            rows += [row for claim_id in ids for row in _of_point(stated[claim_id], job, found)]
    rows += _largest(stated, wanted, values)
    rows += _steps(store, stated)
    rows += knee_answers(study, stated, wanted, values)
    return rows


def values_of(frame: pl.DataFrame) -> Values:
    """Metric -> value, low, high."""
    return {m: (v, low, high) for m, v, low, high in frame.select("metric", "value", "low", "high").iter_rows()}


def _of_point(claim: Mapping[str, Any], job: Job, found: Values) -> Iterator[dict[str, Any]]:
    metric, sign = METRICS[claim["metric"]]
    unit = sign / SI.get(claim["unit"], 1.0)
    ends = [None if end is None else end * unit for end in found[metric]]
    where = f"{job.point.n_seeds} seeds" if job.point.n_seeds > 1 else "one run"
    how = f"{metric}, {job}, {where}"
    if claim["metric"] == ONE_MATRIX:
        yield answer(
            claim, [None if end is None else end / 3.0 for end in ends], f"{how}; one of an expert's three matrices counted"
        )
        yield answer(claim, ends, f"{how}; whole experts counted", mode="physical")
    else:
        yield answer(claim, ends, how)


def _largest(
    stated: Mapping[str, Mapping[str, Any]], wanted: Sequence[Job], values: Sequence[Values]
) -> Iterator[dict[str, Any]]:
    """The abstract's largest reductions, over all points that are compared with another."""
    compared = [(job, found) for job, found in zip(wanted, values, strict=True) if job.against]
    for claim in stated.values():
        if claim["location"] != "Abstract" or not compared:
            continue
        metric = LARGEST[claim["metric"]]
        job, found = min(compared, key=lambda pair: pair[1][metric][0])
        ends = [None if end is None else -end / SI[claim["unit"]] for end in found[metric]]
        yield answer(claim, ends, f"most over the compared points: {job}, {job.point.model}")


def _steps(store: Store, stated: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Decode-only iterations, and Table 1 itself, which the engine reads."""
    for claim_id, (batch, context) in STEP_CLAIMS.items():
        model = claim_id.split("/")[3]
        cost = engine_of(store, Point(scheduler="chunked", model=model)).cost
        ends = (decode_step_s(cost, batch, context) / SI[stated[claim_id]["unit"]], None, None)
        yield answer(stated[claim_id], ends, f"an iteration of {batch} decodes at {context} tokens of context")
    cost = engine_of(store, Point(scheduler="chunked")).cost
    for claim in stated.values():
        if claim["metric"] == "expert_coverage":
            n = int(claim["setting"].split("batch")[1].lstrip(">="))
            ends = (float(cost.cov_decode[n, 0]) / SI[claim["unit"]], None, None)
            yield answer(claim, ends, "an input: the engine reads this table")
