"""A serving point as it is served, and its rows at rest."""

import json
import math
from typing import Any

import numpy as np
import polars as pl

from tokentape.flows.grid import load_hardware
from tokentape.flows.serving.setup import Point, engine_of, workload_of
from tokentape.replay.serving.measure import Engine, Measured, Served
from tokentape.warehouse.at_rest import hash_of_text
from tokentape.warehouse.tape import Store

ENGINE = (
    *(f"tokentape.replay.serving.{module}" for module in ("measure", "iteration", "window", "engine_logs")),
    "tokentape.hw.serving_fits",
)
# What else of a point is told with the scheduler's parameters, where it is not the default.
CHOSEN = (
    "client", "kv_blocks", "memory_frac", "max_seqs", "expert_format", "expert_times", "n_requests", "verify_nodes", "acceptance",
    "draft_s", "expert_placement", "fit", "fits", "engine",
)  # fmt: skip


def served(store: Store, point: Point, engine: Engine | None = None) -> Served:
    """The point's load on its engine, or on one that is there already. Raises ValueError for a point that cannot be run."""
    of = engine or engine_of(store, point)
    return Served(point.scheduled(), of, lambda seed: workload_of(store, point, of.length_scale, seed, of.tokens_of_text))


def request_times(load: Served, n_seeds: int) -> pl.DataFrame:
    """Of every request of every seed its lengths and times, in seconds."""
    of_seeds = []
    for seed in range(n_seeds):
        run = load.run(seed)
        of = {name: getattr(run.requests, name) for name in ("arrival_s", "n_prompt_tokens", "n_output_tokens")}
        names = ("n_cached_tokens", "started_s", "first_token_s", "finish_s", "largest_gap_s", "n_restarts")
        of |= {name: getattr(run, name) for name in names}
        of_seeds.append(pl.DataFrame({"seed": np.full(len(run.requests), seed), "request": np.arange(len(run.requests)), **of}))
    return pl.concat(of_seeds)


def point_id(study: str, series: str, point: Point) -> str:
    """Of all that a person chose; results of newer code or constants replace older ones."""
    return hash_of_text(f"{study}/{series}/{point.text}")


def rows_of(study: str, series: str, point: Point, measured: Measured) -> dict[str, list[dict[str, Any]]]:
    """Rows of serving_points and serving_attainment."""
    key, plain = point_id(study, series, point), Point(scheduler=point.scheduler)
    more = {name: value for name in CHOSEN if (value := getattr(point, name)) != getattr(plain, name)}
    itself = {
        "study": study,
        "point_id": key,
        "series": series,
        "model_id": point.model,
        "workload": point.workload + (" with prefix cache" if point.prefix_cache else ""),
        "arrival": point.arrival_text,
        "rate_per_s": point.rate_per_s,
        "scheduler": point.scheduler,
        "policy_params": json.dumps(vars(point.scheduled()) | more, sort_keys=True),
        "hardware": load_hardware(point.hardware).name,
        "profile": point.profile,
        "coverage": point.coverage,
        "n_seeds": point.n_seeds,
        "outside_envelope": "; ".join(measured.outside) or None,
    }
    points = [
        {**itself, "metric": name, "unit": m.unit, "value": m.value, "low": _end(point, m.low), "high": _end(point, m.high)}
        for name, m in measured.metrics.items()
    ]
    attainment = [
        {"study": study, "point_id": key, "ttft_limit_s": ttft, "tbt_limit_s": tbt, "attained_frac": float(measured.grid[i, j])}
        for i, ttft in enumerate(measured.ttft_limits_s.tolist())
        for j, tbt in enumerate(measured.tbt_limits_s.tolist())
    ]
    return {"serving_points": points, "serving_attainment": attainment}


def _end(point: Point, value: float | None) -> float | None:
    """An end of a band; one run has none."""
    return value if point.n_seeds > 1 and value is not None and math.isfinite(value) else None
