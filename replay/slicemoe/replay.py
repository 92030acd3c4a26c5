"""The sliced expert engine: a tape's scores through a sliced cache on a phone-class machine (SliceMoE sections 3 to 5).

Open loop: the tape's scores are taken as they are. Where a policy reroutes, the model would have gone on differently: results say
so. One sequence at a time; its prompt runs layer by layer, then the warm-up's state, then token by token.

Its paper counts weights alone, and misses add to the step: cost profile `slicemoe`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.hw import profile as profiles
from tokentape.hw.profile import PHYSICAL
from tokentape.hw.spec import HardwareSpec
from tokentape.policies.serving import Continuous
from tokentape.policies.sliced import BUDGETS, PRECISIONS, ROUTERS, WARMUPS, Events, SliceMoE
from tokentape.policies.slots import System
from tokentape.replay import pass_metrics
from tokentape.replay.passes import pass_costs
from tokentape.replay.result import ReplayResult
from tokentape.replay.scores import Scores
from tokentape.replay.semantics import Semantics
from tokentape.replay.serving.iteration import no_costs
from tokentape.replay.serving.run import Limits, run_rule
from tokentape.replay.slicemoe.cost import OTHER_FORMAT, by_layer
from tokentape.replay.slicemoe.metrics import early_metrics, miss_metrics
from tokentape.replay.system.recorded import recorded
from tokentape.replay.system.routes import SlicedSlots, slices_of
from tokentape.replay.trace import PREFILL, Trace

Ints = NDArray[np.int64]


def describe(system: SliceMoE) -> str:
    """The whole composition as JSON; arrays by their digest."""

    def part(names: dict[str, type], made: Any) -> dict[str, Any]:
        name = next((name for name, kind in names.items() if type(made) is kind), type(made).__name__)
        fields = dataclasses.fields(made) if dataclasses.is_dataclass(made) else ()
        return {"name": name, **{field.name: getattr(made, field.name) for field in fields}}

    parts = {
        "router": part(ROUTERS, system.router),
        "cache": dataclasses.asdict(system.cache),
        "precision": part(PRECISIONS, system.precision),
        "budget": part(BUDGETS, system.budget),
        "warmup": part(WARMUPS, system.warmup),
        "free_steps": system.free_steps,
    }
    return json.dumps(parts, sort_keys=True, default=lambda array: hashlib.sha256(array.tobytes()).hexdigest()[:16])


def replay_sliced(
    trace: Trace,
    scores: Scores,
    system: SliceMoE,
    hardware: HardwareSpec | None,
    capacity_bytes: int,
    *,
    start: str = "persistent",
    fetching: str = "blocking",
    seed: int = 0,
    profile: str = PHYSICAL,
) -> ReplayResult:
    """Replays `trace` with its `scores` through `system`; costs it on `hardware` (None: misses and bytes only) by a cost profile.

    capacity_bytes: the cache of all layers' slices. start, fetching: see Semantics. Deterministic. Raises ValueError for scores
    of the top k alone under a policy that needs all, and a batched tape.
    """
    if system.needs_scores and not scores.is_full:
        raise ValueError(
            f"tape {trace.trace_id} holds the chosen experts only; {describe(system)} may route to any expert: record the "
            "tape with scores, or use router lru without a budget"
        )
    semantics, (msb, lsb) = Semantics("global", start=start, fetching=fetching), slices_of(trace.geometry, system.cache)
    events, row_step = _serve(trace, scores, system, capacity_bytes, start == "cold", seed)
    found = by_layer(trace, events)
    total_bytes = trace.n_keys * (msb + lsb)
    metrics = miss_metrics(trace, scores, events, row_step, msb + lsb, system.free_steps)
    timeline: dict[str, NDArray[Any]] = {}
    requests: dict[str, NDArray[Any]] = {}
    outside = ["open loop: rerouted tokens keep the scores of the natural route"] if metrics["rerouted_frac"].value else []
    if hardware is not None:
        _, cost = pass_costs(trace, hardware, semantics, OTHER_FORMAT, profile, found)
        metrics |= pass_metrics.cost_metrics(trace, hardware, cost) | early_metrics(trace, hardware, cost, row_step)
        static = trace.geometry.non_expert_bytes(OTHER_FORMAT)
        n_lookups, n_hits, read, missed, _ = found.sum(axis=2)
        counts = dict(zip(pass_metrics.COUNTS, (n_lookups, n_hits, read + static, missed), strict=True))
        timeline, requests = pass_metrics.timeline(trace, counts, cost), pass_metrics.requests(trace, cost)
        held = {"weights_home": static, "expert_home": total_bytes, "expert_cache": min(capacity_bytes, total_bytes)}
        outside += pass_metrics.outside(trace, hardware, cost, metrics, held)
    settings = {
        "trace_id": trace.trace_id,
        **dataclasses.asdict(semantics),
        "expert_format": system.cache.name,
        "cycle_experts": trace.cycle_experts,
        "origin": trace.origin,
        "policy": "slicemoe",
        "policy_params": describe(system),
        "is_bound": False,
        "hardware": hardware.name if hardware else "",
        "hardware_sha256": hardware.sha256 if hardware else "",
        "profile": profiles.load(profile).name if hardware else "",
        "capacity_bytes": capacity_bytes,
        "capacity_experts": capacity_bytes / (msb + lsb),
        "capacity_frac": capacity_bytes / total_bytes,
        "seed": seed,
        "assumed": ", ".join(hardware.assumed) if hardware else "",
        "is_extrapolated": bool(outside),
        "outside_envelope": "; ".join(outside),
    }
    return ReplayResult(settings, {k: m for k, m in metrics.items() if m.value == m.value}, timeline, requests)


def _serve(trace: Trace, scores: Scores, system: SliceMoE, capacity_bytes: int, is_cold: bool, seed: int) -> tuple[Events, Ints]:
    """Every row's events in the tape's order, and its step in its generation (-1 in prefill): the loop, request by request."""
    request, is_prefill, place = trace.members, trace.pass_kind == PREFILL, np.arange(trace.pass_ids.size)
    if np.any(np.diff(trace.member_offsets) != 1) or np.any(trace.pass_tokens[~is_prefill] != 1):
        raise ValueError(
            f"tape {trace.trace_id} was recorded in batches; --policy slicemoe runs one sequence: capture it with batch 1, or "
            "give --system slicemoe"
        )
    is_new = np.append(True, request[1:] != request[:-1])
    begins = ~is_prefill & (is_new | np.append(False, is_prefill[:-1]))
    if request[is_new].size != np.unique(request).size or request[begins].size != np.unique(request[begins]).size:
        raise ValueError(f"tape {trace.trace_id}: its requests take turns; sliced serving runs one after the other")
    step = np.where(is_prefill, -1, place - np.maximum.accumulate(np.where(begins, place, 0)))
    tape = recorded(trace, scores=scores)
    requests, costs = tape.requests(order=np.argsort(np.argsort(request[is_new]))), no_costs(trace.geometry)
    slots = SlicedSlots(
        tape, requests, System("slicemoe", {"route": system}), costs, seed=seed, is_cold=is_cold, capacity_bytes=capacity_bytes
    )
    run_rule(requests, Continuous().rule(trace.geometry.n_layers), costs, Limits(max_seqs=1), slots=slots)
    slots.refuse_row()
    served = slots.events
    return Events(*(getattr(served, field.name)[tape.row_of] for field in dataclasses.fields(Events))), step[trace.row_pass]
