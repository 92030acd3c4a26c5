"""The expert engine: a tape through a cache policy on a memory hierarchy.

Every (pass, layer) looks up the experts its tokens need; a miss fetches the expert from the backing tier. Open loop: the tape's
routing is taken as it is. Each forward pass is one step on the simulated clock: passes run one after the other.
"""

import dataclasses
import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.hw.profile import PHYSICAL
from tokentape.hw.spec import HardwareSpec
from tokentape.hw.work import Floats
from tokentape.policies.cache import UNTOLD, ExpertCache, needs_of
from tokentape.policies.kernels import kernel, uint32, uint64
from tokentape.policies.protocol import GIVEN
from tokentape.policies.registry import name_of
from tokentape.replay.capacity import total_expert_bytes
from tokentape.replay.curve import lru_curve
from tokentape.replay.pass_metrics import priced
from tokentape.replay.passes import Pricing, costs_of
from tokentape.replay.result import Metric, ReplayResult, ratio
from tokentape.replay.semantics import Semantics
from tokentape.replay.stream import Stream, stream
from tokentape.replay.trace import DECODE, PREFILL, Trace

ALL_CAPACITIES = "lru-all-capacities"


def policy_params(policy: Any) -> str:
    """The policy's fields as JSON."""
    return json.dumps(dataclasses.asdict(policy) if dataclasses.is_dataclass(policy) else {}, sort_keys=True, default=str)  # type: ignore[arg-type]


def make_cache(
    trace: Trace, policy: Any, semantics: Semantics, capacity_bytes: int, expert_format: str, seed: int
) -> ExpertCache:
    """An empty cache for `trace`; per-layer scope gives every layer an equal share of the bytes.

    Raises ValueError if a per-layer cache cannot hold the top-k experts of one token, unless overflow is kept.
    """
    n_layers, geometry = len(trace.geometry.moe_layers), trace.geometry
    sizes, per_layer, keep = geometry.expert_bytes(expert_format), semantics.scope == "per-layer", semantics.overflow == "keep"
    room, needed = capacity_bytes // n_layers, geometry.top_k * max(sizes)
    if per_layer and not keep and room < needed:
        raise ValueError(
            f"{capacity_bytes} B over {n_layers} layers is {room} B per layer, below top-k = {geometry.top_k} "
            f"experts ({needed} B); give at least {needed * n_layers} B, or use scope global"
        )
    how = {"keep_overflow": keep, "hits_first": semantics.recency == "hits-first", "seed": seed}
    return ExpertCache.of_layers(policy, sizes, geometry.n_experts, capacity_bytes, per_layer=per_layer, **how)


def look_up(cache: ExpertCache, looked_up: Stream, semantics: Semantics) -> NDArray[np.uint8]:
    """(n,) u8 hits of a whole stream; the cache is emptied before every segment but the first.

    A policy with a profile sees none until the events it counts have passed; one that counts the whole tape sees it from the
    start and is a bound.
    """
    hits = np.empty(looked_up.keys.size, np.uint8)
    n_profiled = round(cache.policy.profile_frac * (looked_up.offsets.size - 1)) if cache.policy.kind == "ranked" else 0
    seen_from = 0 if cache.policy.is_bound else n_profiled
    for first, last in pairwise(np.union1d(looked_up.segments, seen_from).tolist()):
        keys, bounds = looked_up.between(first, last)
        if first and first in looked_up.segments:
            cache.clear()
        if n_profiled and first == seen_from:
            counted = np.bincount(looked_up.keys[: looked_up.offsets[n_profiled]], minlength=cache.sizes.size)
            cache.see(counted.astype(float))
        start = looked_up.offsets[first]
        here = slice(start, start + keys.size)
        told = (looked_up.told.get(name, UNTOLD)[here] for name in GIVEN)
        hits[here] = cache.advance(keys, None if semantics.lookup == "serial" else bounds, *told)
    return hits


def replay(
    trace: Trace,
    policy: Any,
    hardware: HardwareSpec,
    semantics: Semantics,
    capacity_bytes: int,
    expert_format: str = "int8-g32",
    seed: int = 0,
    profile: str = PHYSICAL,
    kept: Stream | None = None,
) -> ReplayResult:
    """Replays `trace` through `policy`; costs every pass on `hardware` by a cost profile.

    kept: the trace's stream under `semantics`, where many replays share it; None: made here, a part at a time.
    Deterministic: equal inputs give equal results. Raises ValueError on a capacity that cannot work (see make_cache).
    """
    found = looked_up(trace, policy, semantics, capacity_bytes, expert_format, seed, kept)
    per_pass, cost = costs_of(trace, found, Pricing(hardware, semantics, expert_format, profile))
    (n_lookups, n_hits, _, missed, _), kind = per_pass, trace.pass_kind
    metrics = {
        "n_lookups": Metric(float(n_lookups.sum()), "1"),
        "n_hits": Metric(float(n_hits.sum()), "1"),
        "backing_bytes": Metric(float(missed.sum()), "B"),
    }
    for name, passes in (("", kind >= 0), ("_decode", kind == DECODE), ("_prefill", kind == PREFILL)):
        metrics[f"hit_frac{name}"] = ratio(n_hits[passes].sum(), n_lookups[passes].sum(), "unique lookups")
    settings = {
        "policy": name_of("residency", policy),
        "policy_params": policy_params(policy),
        "is_bound": bool(policy.is_bound),
        "expert_format": expert_format,
        "capacity_bytes": capacity_bytes,
        "seed": seed,
    }
    return priced(trace, semantics, per_pass, cost, metrics, settings, total_expert_bytes(trace.geometry, expert_format))


def replay_all_capacities(trace: Trace, semantics: Semantics, expert_format: str = "int8-g32") -> ReplayResult:
    """The whole LRU curve, in experts of equal size, from one pass. No hardware: hits only.

    Raises ValueError where overflow is kept: the curve holds for caches that keep no more than fits.
    """
    if semantics.overflow == "keep":
        raise ValueError("the LRU curve of every capacity holds for overflow evict only; leave lru_curve out or use evict")
    geometry = trace.geometry
    curve = lru_curve(stream(trace, semantics), semantics, len(geometry.moe_layers), geometry.n_experts)
    total = total_expert_bytes(geometry, expert_format)
    of_policy = {"policy": ALL_CAPACITIES, "policy_params": "{}", "is_bound": False, "seed": 0}
    settings = of_policy | {"capacity_bytes": total, "expert_format": expert_format}
    metrics = {"n_lookups": Metric(float(curve.n_lookups), "1")}
    made = priced(trace, semantics, np.zeros((5, 0), np.int64), None, metrics, settings, total)
    series = {
        "capacity_experts": curve.capacity_experts.astype(np.float64),
        "n_lookups": np.full(curve.n_hits.size, curve.n_lookups),
        "n_hits": curve.n_hits,
        "hit_frac": curve.n_hits / curve.n_lookups,
    }
    return dataclasses.replace(made, curves=series)


def needs_whole(policy: Any, semantics: Semantics) -> bool:
    """Whether a tape is looked up all at once: for its future, for what is counted of it beforehand, or for its cold starts."""
    return bool(policy.kind == "future" or getattr(policy, "profile_frac", 0.0) or semantics.start == "cold")


def looked_up(
    trace: Trace,
    policy: Any,
    semantics: Semantics,
    capacity_bytes: int,
    expert_format: str,
    seed: int,
    kept: Stream | None = None,
) -> Iterator[tuple[slice, Trace, Floats]]:
    """Part by part: which passes, the trace of them, and (5, passes, MoE layers), exact below 2**53: lookups, hits, bytes looked
    up and missed, fetches. A fetch is all that an event misses. kept: see `replay`."""
    cache, needs = make_cache(trace, policy, semantics, capacity_bytes, expert_format, seed), needs_of(policy)
    assert trace.read is None or not needs_whole(policy, semantics), "the tape is to be held whole"
    whole = [(slice(0, trace.pass_ids.size), trace)]
    for at, part in whole if needs_whole(policy, semantics) else trace.parts:
        keys = stream(part, semantics, needs) if kept is None else kept if part is trace else kept.of(at)
        totals = np.zeros((5, part.pass_ids.size, len(trace.geometry.moe_layers)))
        hits = look_up(cache, keys, semantics)
        _add_events(keys.keys, keys.offsets, keys.event_pass, cache.sizes, hits, totals, trace.geometry.n_experts)
        assert totals[0].sum() == keys.keys.size, "a lookup was lost"
        yield at, part, totals


@kernel("void(int32[::1], int64[::1], int32[::1], int64[::1], uint8[::1], float64[:, :, ::1], int64)")
def _add_events(keys, offsets, event_pass, sizes, hits, totals, n_experts):  # type: ignore[no-untyped-def]
    """Adds every event to its pass and layer: lookups, hits, bytes looked up, bytes missed, one fetch if anything was missed.
    Experts of a layer are of one size."""
    for e in range(event_pass.shape[0]):
        first, n = uint32(keys[uint64(offsets[e])]), offsets[e + 1] - offsets[e]
        p, layer, size, n_hits = uint64(event_pass[e]), uint64(first // uint32(n_experts)), sizes[first], 0
        for i in range(uint64(offsets[e]), uint64(offsets[e + 1])):
            n_hits += hits[i]
        totals[0, p, layer] += n
        totals[1, p, layer] += n_hits
        totals[2, p, layer] += n * size
        totals[3, p, layer] += (n - n_hits) * size
        totals[4, p, layer] += n_hits < n
