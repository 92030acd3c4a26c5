"""The expert engine: a tape through a cache policy on a memory hierarchy.

Every (pass, layer) looks up the experts its tokens need; a miss fetches the expert from the backing tier. Open loop: the tape's
routing is taken as it is. Each forward pass is one step on the simulated clock: passes run one after the other.
"""

from __future__ import annotations

import dataclasses
import json
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.hw import profile as profiles
from tokentape.hw.profile import PHYSICAL
from tokentape.hw.spec import HardwareSpec
from tokentape.policies.cache import ExpertCache
from tokentape.policies.kernels import kernel
from tokentape.policies.registry import label
from tokentape.replay import pass_metrics
from tokentape.replay.capacity import total_expert_bytes
from tokentape.replay.curve import lru_curve
from tokentape.replay.passes import pass_costs, passes_over_weights
from tokentape.replay.result import Metric, ReplayResult
from tokentape.replay.semantics import Semantics
from tokentape.replay.stream import Stream, stream
from tokentape.replay.trace import DECODE, PREFILL, Trace
from tokentape.warehouse.geometry import FLOAT_FORMATS

Ints = NDArray[np.int64]
ALL_CAPACITIES = "lru-all-capacities"


def policy_params(policy: Any) -> str:
    """The policy's fields as JSON."""
    return json.dumps(dataclasses.asdict(policy) if dataclasses.is_dataclass(policy) else {}, sort_keys=True, default=str)  # type: ignore[arg-type]


def key_sizes(trace: Trace, expert_format: str) -> Ints:
    """(K,) bytes of every expert, layer by layer."""
    return np.repeat(np.array(trace.geometry.expert_bytes(expert_format), np.int64), trace.geometry.n_experts)


def make_cache(
    trace: Trace, policy: Any, semantics: Semantics, capacity_bytes: int, expert_format: str, seed: int
) -> ExpertCache:
    """An empty cache for `trace`; per-layer scope gives every layer an equal share of the bytes.

    Raises ValueError if a per-layer cache cannot hold the top-k experts of one token, unless overflow is kept.
    """
    n_layers, geometry = len(trace.geometry.moe_layers), trace.geometry
    sizes = key_sizes(trace, expert_format)
    if semantics.scope == "global":
        cache_of, capacity = np.zeros(sizes.size, np.int32), np.array([capacity_bytes], np.int64)
    else:
        cache_of = (np.arange(sizes.size) // geometry.n_experts).astype(np.int32)
        capacity = np.full(n_layers, capacity_bytes // n_layers, np.int64)
        needed = geometry.top_k * int(sizes.max())
        if semantics.overflow == "evict" and capacity[0] < needed:
            raise ValueError(
                f"{capacity_bytes} B over {n_layers} layers is {capacity[0]} B per layer, below top-k = {geometry.top_k} "
                f"experts ({needed} B); give at least {needed * n_layers} B, or use scope global"
            )
    keep = semantics.overflow == "keep"
    hits_first = semantics.recency == "hits-first"
    return ExpertCache(policy, sizes, cache_of, capacity, keep_overflow=keep, hits_first=hits_first, seed=seed)


def look_up(cache: ExpertCache, looked_up: Stream, semantics: Semantics) -> NDArray[np.uint8]:
    """(n,) u8 hits of a whole stream; the cache is emptied before every segment but the first.

    A policy with a profile sees none until the events it counts have passed; one that counts the whole tape sees it from the
    start and is a bound.
    """
    hits = np.empty(looked_up.keys.size, np.uint8)
    n_profiled = round(cache.policy.profile_frac * (looked_up.offsets.size - 1)) if cache.policy.kind == "ranked" else 0
    if n_profiled and cache.policy.is_bound:
        cache.profile = _counts(looked_up, n_profiled, cache.sizes.size)
        n_profiled = 0
    stops = np.union1d(looked_up.segments, n_profiled)
    for first, last in pairwise(stops.tolist()):
        keys, bounds = looked_up.between(first, last)
        if first and first in looked_up.segments:
            cache.clear()
        if n_profiled and first == n_profiled:
            cache.profile = _counts(looked_up, n_profiled, cache.sizes.size)
        start = looked_up.offsets[first]
        hits[start : start + keys.size] = cache.advance(keys, None if semantics.lookup == "serial" else bounds)
    return hits


def _counts(looked_up: Stream, n_events: int, n_keys: int) -> NDArray[np.float64]:
    """(K,) f64 lookups of each expert in the first events."""
    return np.bincount(looked_up.keys[: looked_up.offsets[n_events]], minlength=n_keys).astype(np.float64)


def replay(
    trace: Trace,
    policy: Any,
    hardware: HardwareSpec | None,
    semantics: Semantics,
    capacity_bytes: int,
    expert_format: str = "int8-g32",
    seed: int = 0,
    profile: str = PHYSICAL,
) -> ReplayResult:
    """Replays `trace` through `policy`; costs every pass on `hardware` (None: hits and bytes only) by a cost profile.

    Deterministic: equal inputs give equal results. Raises ValueError on a capacity that cannot work (see make_cache).
    """
    looked_up = stream(trace, semantics)
    cache = make_cache(trace, policy, semantics, capacity_bytes, expert_format, seed)
    hits = look_up(cache, looked_up, semantics)
    found = by_layer(trace, looked_up, hits, cache.sizes)
    per_pass = _per_pass(trace, found, expert_format, semantics)
    n_lookups, n_hits, kind = per_pass["n_lookups"], per_pass["n_hits"], trace.pass_kind
    assert n_lookups.sum() == looked_up.keys.size, "a lookup was lost"
    metrics = {
        "n_lookups": Metric(float(n_lookups.sum()), "1"),
        "n_hits": Metric(float(n_hits.sum()), "1"),
        "backing_bytes": Metric(float(per_pass["backing_bytes"].sum()), "B"),
        "hit_frac": _ratio(n_hits, n_lookups, np.ones(kind.size, np.bool_)),
        "hit_frac_decode": _ratio(n_hits, n_lookups, kind == DECODE),
        "hit_frac_prefill": _ratio(n_hits, n_lookups, kind == PREFILL),
    }
    timeline: dict[str, NDArray[Any]] = {}
    requests: dict[str, NDArray[Any]] = {}
    outside: list[str] = []
    total = total_expert_bytes(trace.geometry, expert_format)
    if hardware is not None:
        _, cost = pass_costs(trace, hardware, semantics, expert_format, profile, found)
        metrics |= pass_metrics.cost_metrics(trace, hardware, cost)
        held = {
            "weights_home": trace.geometry.non_expert_bytes(expert_format),
            "expert_home": total,
            "expert_cache": min(capacity_bytes, total),
        }
        outside = pass_metrics.outside(trace, hardware, cost, metrics, held)
        if expert_format in FLOAT_FORMATS and hardware.dtype.startswith("int"):
            outside.append(f"{expert_format} experts on an engine rated for {hardware.dtype}")
        timeline = pass_metrics.timeline(trace, per_pass, cost)
        requests = pass_metrics.requests(trace, cost)
    settings = {
        **_settings(trace, semantics, expert_format),
        "policy": label("residency", policy),
        "policy_params": policy_params(policy),
        "is_bound": bool(policy.is_bound),
        "hardware": hardware.name if hardware else "",
        "hardware_sha256": hardware.sha256 if hardware else "",
        "profile": profiles.load(profile).name if hardware else "",
        "capacity_bytes": capacity_bytes,
        "capacity_experts": capacity_bytes * trace.n_keys / total,
        "capacity_frac": capacity_bytes / total,
        "seed": seed,
        "assumed": ", ".join(hardware.assumed) if hardware else "",
        "is_extrapolated": bool(outside),
        "outside_envelope": "; ".join(outside),
    }
    return ReplayResult(settings, {k: m for k, m in metrics.items() if m.value == m.value}, timeline, requests)


def replay_all_capacities(trace: Trace, semantics: Semantics, expert_format: str = "int8-g32") -> ReplayResult:
    """The whole LRU curve, in experts of equal size, from one pass. No hardware: hits only.

    Raises ValueError where overflow is kept: the curve holds for caches that keep no more than fits.
    """
    if semantics.overflow == "keep":
        raise ValueError("the LRU curve of every capacity holds for overflow evict only; leave lru_curve out or use evict")
    geometry = trace.geometry
    curve = lru_curve(stream(trace, semantics), semantics, len(geometry.moe_layers), geometry.n_experts)
    settings = {
        **_settings(trace, semantics, expert_format),
        "policy": ALL_CAPACITIES,
        "policy_params": "{}",
        "is_bound": False,
        "hardware": "",
        "hardware_sha256": "",
        "profile": "",
        "capacity_bytes": total_expert_bytes(geometry, expert_format),
        "capacity_experts": float(trace.n_keys),
        "capacity_frac": 1.0,
        "seed": 0,
        "assumed": "",
        "is_extrapolated": False,
        "outside_envelope": "",
    }
    series = {
        "capacity_experts": curve.capacity_experts.astype(np.float64),
        "n_lookups": np.full(curve.n_hits.size, curve.n_lookups),
        "n_hits": curve.n_hits,
        "hit_frac": curve.n_hits / curve.n_lookups,
    }
    return ReplayResult(settings, {"n_lookups": Metric(float(curve.n_lookups), "1")}, curves=series)


def _settings(trace: Trace, semantics: Semantics, expert_format: str) -> dict[str, Any]:
    return {
        "trace_id": trace.trace_id,
        **dataclasses.asdict(semantics),
        "expert_format": expert_format,
        "cycle_experts": trace.cycle_experts,
        "origin": trace.origin,
    }


def by_layer(trace: Trace, looked_up: Stream, hits: NDArray[np.uint8], sizes: Ints) -> Ints:
    """(5, passes, MoE layers) i64: lookups, hits, bytes looked up, bytes missed, fetches. A fetch is all that an event misses."""
    n_layers = len(trace.geometry.moe_layers)
    totals = np.zeros((5, trace.pass_ids.size, n_layers), np.int64)
    _add_events(looked_up.keys, looked_up.offsets, looked_up.event_pass, sizes, hits, totals, trace.geometry.n_experts)
    return totals


def _per_pass(trace: Trace, found: Ints, expert_format: str, semantics: Semantics) -> dict[str, Ints]:
    """Lookups, hits, bytes and fetches of every pass, (p,) i64 each."""
    n_lookups, n_hits, looked_up_bytes, backing_bytes, n_fetches = found.sum(axis=2)
    return {
        "n_lookups": n_lookups,
        "n_hits": n_hits,
        "fast_bytes": looked_up_bytes + passes_over_weights(trace, semantics) * trace.geometry.non_expert_bytes(expert_format),
        "backing_bytes": backing_bytes,
        "n_fetches": n_fetches,
    }


@kernel("void(int32[::1], int64[::1], int32[::1], int64[::1], uint8[::1], int64[:, :, ::1], int64)")
def _add_events(keys, offsets, event_pass, sizes, hits, totals, n_experts):  # type: ignore[no-untyped-def]
    """Adds every event to its pass and layer: lookups, hits, bytes looked up, bytes missed, one fetch if anything was missed."""
    for e in range(event_pass.shape[0]):
        p, layer = event_pass[e], keys[offsets[e]] // n_experts
        missed = 0
        for i in range(offsets[e], offsets[e + 1]):
            size = sizes[keys[i]]
            totals[0, p, layer] += 1
            totals[1, p, layer] += hits[i]
            totals[2, p, layer] += size
            if not hits[i]:
                missed += size
        totals[3, p, layer] += missed
        totals[4, p, layer] += missed > 0


def _ratio(hits: Ints, lookups: Ints, where: NDArray[np.bool_]) -> Metric:
    n = int(lookups[where].sum())
    return Metric(hits[where].sum() / n if n else float("nan"), "1", denominator="unique lookups")
