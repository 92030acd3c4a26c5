"""Runs of a serving point over its seeds: metrics with bands, shares within service levels, and their rows at rest."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.flows.grid import load_hardware
from tokentape.flows.serving.setup import Engine, Point, engine_of, workload_of
from tokentape.policies.serving import Disaggregated
from tokentape.replay.result import Metric
from tokentape.replay.serving.capacity import saturation_rate_per_s
from tokentape.replay.serving.disaggregated import DisaggregatedRun, serve_disaggregated
from tokentape.replay.serving.memory import BLOCK_TOKENS
from tokentape.replay.serving.metrics import Load, ServiceLevel, load_of, metrics, over_runs
from tokentape.replay.serving.run import ServingRun, serve
from tokentape.replay.serving.workload import Requests
from tokentape.warehouse.at_rest import ID_DIGITS
from tokentape.warehouse.tape import Store

Floats = NDArray[np.float64]
# Compared with the point that a point is `against`, seed by seed.
COMPARED = ("ttft_mean_s", "tbt_mean_s", "tbt_p99_s", "e2e_mean_s", "energy_j_per_token", "expert_bytes")
CHANGE = "_change_frac"
ENGINE = tuple(
    f"tokentape.replay.serving.{module}"
    for module in ("run", "disaggregated", "capacity", "metrics", "memory", "experts", "prefix_cache", "window")
)
# What else of a point is told with the scheduler's parameters, where it is not the default.
CHOSEN = (
    "constants", "kv_blocks", "memory_frac", "expert_format", "expert_times", "n_requests", "verify_nodes", "acceptance",
    "draft_s",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Measured:
    """A point's metrics over seeds; outside: why they are extrapolated. grid: share that meets (TTFT limit, TBT limit)."""

    point: Point
    metrics: dict[str, Metric]
    outside: tuple[str, ...]
    ttft_limits_s: Floats = field(default_factory=lambda: np.zeros(0))
    tbt_limits_s: Floats = field(default_factory=lambda: np.zeros(0))
    grid: Floats = field(default_factory=lambda: np.zeros((0, 0)))


def measure(
    store: Store,
    point: Point,
    level: ServiceLevel | None = None,
    against: Point | None = None,
    limits: tuple[Sequence[float], Sequence[float]] = ((), ()),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Measured:
    """Serves the point for every seed. against: the same metrics as changes from another point, on equal seeds. limits: factors
    of the level at which attainment is read. Raises ValueError for a point that cannot be run."""
    if point.n_seeds < 1:
        raise ValueError(f"seeds {point.n_seeds} must be at least 1")
    ttft, tbt = (np.array(limits[i]) * (0.0 if level is None else (level.ttft_s, level.tbt_s)[i]) for i in range(2))
    engine, base = engine_of(store, point), engine_of(store, against) if against else None
    saturation_per_s = _saturation_per_s(store, point, engine)
    found, grids, loads = [], [], []
    for seed in range(point.n_seeds):
        one, run, load = _one(store, point, engine, seed, level)
        if against and base:
            other, _, _ = _one(store, against, base, seed, level)
            one |= {f"{n}{CHANGE}": Metric(one[n].value / other[n].value - 1.0, "1", denominator="of before") for n in COMPARED}
        if engine.limits.kv_blocks is not None:
            one |= {"kv_blocks": Metric(float(engine.limits.kv_blocks), "1", denominator=f"of {BLOCK_TOKENS} tokens")}
        if run is not None and saturation_per_s:
            load = Load(run.requests.rate_per_s, saturation_per_s)
            one |= _distance(load)
        found.append(one)
        loads.append(load)
        if ttft.size and run is not None:
            in_time = (run.ttft_s <= ttft[:, None]).astype(np.float64)
            grids.append(in_time @ (run.largest_gap_s[:, None] <= tbt).astype(np.float64) / len(run.requests))
        progress(seed + 1, point.n_seeds)
    number = {name: metric for name, metric in over_runs(found).items() if math.isfinite(metric.value)}
    grid = np.median(grids, axis=0) if grids else np.zeros((0, 0))
    return Measured(point, number, (*engine.outside, *_saturated(loads)), ttft[: len(grid)], tbt, grid)


def _saturation_per_s(store: Store, point: Point, engine: Engine) -> float | None:
    """Requests per second that leave the engine when all of a run's are there at once; None where that is the point itself."""
    requests = workload_of(store, point, engine.length_scale, 0)
    scheduler = point.scheduled()
    if requests.rate_per_s == float("inf") or isinstance(scheduler, Disaggregated):
        return None
    masks = engine.masks.of(requests) if engine.masks else None
    return saturation_rate_per_s(serve(requests.at_once(), scheduler, engine.cost, engine.limits, masks=masks))


def _distance(load: Load) -> dict[str, Metric]:
    """How far a run's rate lies below saturation, as a share of it; negative beyond."""
    return {
        "saturation_per_s": Metric(load.service_per_s, "1/s"),
        "saturation_distance_frac": Metric(load.distance_frac, "1", denominator="rate at which requests leave that come at once"),
    }


def serve_point(store: Store, point: Point, engine: Engine, seed: int, *, record: bool = False) -> ServingRun:
    """One run of a scheduler of one engine."""
    requests = workload_of(store, point, engine.length_scale, seed)
    scheduler = point.scheduled()
    if isinstance(scheduler, Disaggregated):
        raise ValueError("disaggregated is two engines in series; choose a scheduler of one engine")
    masks = engine.masks.of(requests) if engine.masks else None
    return serve(requests, scheduler, engine.cost, engine.limits, masks=masks, record=record, seed=seed)


def _one(
    store: Store, point: Point, engine: Engine, seed: int, level: ServiceLevel | None
) -> tuple[dict[str, Metric], ServingRun | None, Load | None]:
    scheduler = point.scheduled()
    if isinstance(scheduler, Disaggregated):
        requests = workload_of(store, point, engine.length_scale, seed)
        pair = serve_disaggregated(requests, scheduler, engine.cost, engine.cost, engine.limits, seed)
        return _of_pair(pair, requests), None, load_of(pair.prefill)
    run = serve_point(store, point, engine, seed)
    return metrics(run, level), run, load_of(run)


def _of_pair(pair: DisaggregatedRun, requests: Requests) -> dict[str, Metric]:
    """What can be said of two engines together; times between tokens are the decode engine's."""
    found = {
        "n_requests": Metric(float(len(requests)), "1"),
        "ttft_mean_s": Metric(float(pair.ttft_s.mean()), "s"),
        "ttft_p99_s": Metric(float(np.percentile(pair.ttft_s, 99)), "s"),
        "e2e_mean_s": Metric(float((pair.finish_s - requests.arrival_s).mean()), "s"),
    }
    if pair.decode is not None:
        found["tbt_mean_s"] = Metric(pair.decode.gap_mean_s, "s")
        found["tbt_p99_s"] = Metric(float(pair.decode.gap_percentiles_s(99)), "s")
    return found


def _saturated(loads: Sequence[Load | None]) -> tuple[str, ...]:
    """The median run's words where most runs are saturated."""
    saturated = sorted((load for load in loads if load is not None and load.is_saturated), key=lambda load: load.distance_frac)
    return (str(saturated[len(saturated) // 2]),) if 2 * len(saturated) > len(loads) else ()


def point_id(study: str, series: str, point: Point) -> str:
    """Of all that a person chose; results of newer code or constants replace older ones."""
    return hashlib.sha256(f"{study}/{series}/{point.text}".encode()).hexdigest()[:ID_DIGITS]


def rows_of(study: str, series: str, measured: Measured) -> dict[str, list[dict[str, Any]]]:
    """Rows of serving_points and serving_attainment."""
    point, key = measured.point, point_id(study, series, measured.point)
    itself = {
        "study": study,
        "point_id": key,
        "series": series,
        "model_id": point.model,
        "workload": point.workload + (" with prefix cache" if point.prefix_cache else ""),
        "arrival": point.arrival_text,
        "rate_per_s": point.rate_per_s,
        "scheduler": point.scheduler,
        "policy_params": json.dumps(_params(point), sort_keys=True),
        "hardware": load_hardware(point.hardware).name,
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


def _params(point: Point) -> dict[str, Any]:
    """Of the scheduler, defaults included, and what else is not the default."""
    more = {name: getattr(point, name) for name in CHOSEN}
    plain = Point(scheduler=point.scheduler)
    return vars(point.scheduled()) | {n: v for n, v in more.items() if v != getattr(plain, n)}


def _end(point: Point, value: float | None) -> float | None:
    """An end of a band; one run has none."""
    return value if point.n_seeds > 1 and value is not None and math.isfinite(value) else None
