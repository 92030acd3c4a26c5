"""A serving study's point as every engine of this room returns it: what ran, with every parameter, and its metrics over seeds."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

from hw.spec import HardwareSpec
from policies.serving import SCHEDULERS, Scheduler
from replay.result import Metric, ReplayResult
from replay.serving import Limits, ServingRun, serve
from replay.serving_cost import CostTables
from replay.serving_metrics import ServiceLevel, load_of, metrics, over_runs
from replay.workload import Requests

# Of an expert cache, which a serving engine with all weights in fast memory has none of.
_NO_CACHE = dict.fromkeys(("scope", "lookup", "recency", "prefill", "start", "overflow", "fetching"), "")


def replay_serving(
    workload: Callable[[int], Requests],
    scheduler: Scheduler,
    cost: CostTables,
    hardware: HardwareSpec,
    seeds: Sequence[int] = range(40),
    limits: Limits | None = None,
    level: ServiceLevel | None = None,
    load_accounting: str = "full",
    trace_id: str | None = None,
) -> ReplayResult:
    """Serves workload(seed) for every seed; metrics are medians with 5 to 95 % bands. Deterministic.

    trace_id: the tape that holds the requests, which the warehouse asks for; else where they are from. outside_envelope says
    where coverage is another model's, and where the queue grows without bound. Raises ValueError for a machine that the costs
    were not made for.
    """
    if hardware.name != cost.machine:
        raise ValueError(f"the costs are those of {cost.machine}, not of {hardware.name}; make them for one machine")
    limits = limits or Limits()
    runs = [serve(workload(seed), scheduler, cost, limits, seed=seed) for seed in seeds]
    found = over_runs([metrics(run, level, load_accounting) for run in runs])
    outside = [cost.outside] if cost.outside else []
    saturated = _saturated(runs)
    if saturated:
        outside.append(saturated)
    name = next((name for name, kind in SCHEDULERS.items() if type(scheduler) is kind), type(scheduler).__name__)
    parts = {
        "scheduler": dataclasses.asdict(scheduler) if dataclasses.is_dataclass(scheduler) else {},
        "limits": dataclasses.asdict(limits),
        "constants": dataclasses.asdict(cost.constants),
        "load_accounting": load_accounting,
        "speculation": dataclasses.asdict(cost.speculation) if cost.speculation else None,
        "rate_per_s": _rate(runs),
        "seeds": list(seeds),
    }
    geometry, requests = cost.geometry, runs[0].requests
    settings: dict[str, Any] = {
        "trace_id": trace_id or requests.origin,
        **_NO_CACHE,
        "expert_format": cost.expert_format,
        "cycle_experts": len(geometry.moe_layers) * geometry.top_k,
        "origin": "synthetic" if requests.origin.startswith("synthetic") else "imported",
        "policy": name,
        "policy_params": json.dumps(parts, sort_keys=True),
        "is_bound": False,
        "hardware": hardware.name,
        "hardware_sha256": hardware.sha256,
        "capacity_bytes": 0,
        "capacity_experts": 0.0,
        "capacity_frac": 0.0,
        "seed": seeds[0],
        "assumed": ", ".join(hardware.assumed),
        "is_extrapolated": bool(outside),
        "outside_envelope": "; ".join(outside),
    }
    return ReplayResult(settings, {name: metric for name, metric in found.items() if _is_number(metric)})


def _rate(runs: Sequence[ServingRun]) -> float | None:
    """Median of the seeds' arrival rates; None where all requests come at once (JSON knows no infinity)."""
    rates = sorted(run.requests.rate_per_s for run in runs)
    middle = rates[len(rates) // 2]
    return middle if middle < float("inf") else None


def _saturated(runs: Sequence[ServingRun]) -> str:
    """The median run's words where most runs are saturated; else empty."""
    loads = [load for load in map(load_of, runs) if load is not None and load.is_saturated]
    return str(sorted(loads, key=lambda load: load.distance_frac)[len(loads) // 2]) if 2 * len(loads) > len(runs) else ""


def _is_number(metric: Metric) -> bool:
    return metric.value == metric.value
