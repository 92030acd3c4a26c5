"""What the priced passes of a tape add up to: seconds and joules of decoding and prefill, a timeline, and requests."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.hw import profile as profiles
from tokentape.hw.clock import Band, not_counted, power_findings
from tokentape.hw.held import overfull, without_cache
from tokentape.replay.passes import PassCosts, floats_on_integers, format_of, passes_over_weights
from tokentape.replay.result import Metric, ReplayResult
from tokentape.replay.semantics import Semantics
from tokentape.replay.trace import DECODE, PREFILL, Trace
from tokentape.replay.transformer import ACTIVATION
from tokentape.warehouse.model_sizes import kv_bytes, other_bytes

Flags = NDArray[np.bool_]


def priced(
    trace: Trace,
    semantics: Semantics,
    per_pass: NDArray[np.int64],
    cost: PassCosts | None,
    metrics: dict[str, Metric],
    settings: dict[str, Any],
    total_bytes: int,
) -> ReplayResult:
    """A replay's result: what its passes cost (None: hits and bytes alone) beside the metrics of its lookups.

    per_pass, cost: see passes.costs_of. settings: those of the policy, capacity_bytes, expert_format and seed among them;
    total_bytes: of all experts.
    """
    outside, capacity_bytes = list[str](), settings["capacity_bytes"]
    timed: dict[str, NDArray[Any]] = {}
    of_requests: dict[str, NDArray[Any]] = {}
    machine = profile = None
    if cost is not None:
        machine, profile = cost.how.machine, profiles.load(cost.how.profile)
        profile.refuse_no_time(float(cost.seconds.value.sum()))
        metrics = metrics | cost_metrics(trace, cost)
        outside += _outside(trace, cost, metrics, total_bytes, capacity_bytes) + not_counted(cost.uncounted, machine, profile)
        outside += cost.not_measured + floats_on_integers(machine, cost.how.weight_format)
        timed, of_requests = _timeline(trace, per_pass, cost), _requests(trace, cost)
    told = {
        "trace_id": trace.trace_id,
        **dataclasses.asdict(semantics),
        "cycle_experts": trace.cycle_experts,
        "origin": trace.origin,
        "hardware": machine.name if machine else "",
        "hardware_sha256": machine.sha256 if machine else "",
        "profile": profile.name if profile else "",
        "capacity_experts": capacity_bytes * trace.n_keys / total_bytes,
        "capacity_frac": capacity_bytes / total_bytes,
        "assumed": ", ".join(machine.assumed) if machine else "",
        "is_extrapolated": bool(outside),
        "outside_envelope": "; ".join(outside),
    }
    return ReplayResult(told | settings, {k: m for k, m in metrics.items() if m.value == m.value}, timed, of_requests)


def cost_metrics(trace: Trace, cost: PassCosts) -> dict[str, Metric]:
    """By name, with bands; energy_*_j: by what spends it."""
    decode, prefill, everything = trace.pass_kind == DECODE, trace.pass_kind == PREFILL, np.ones(trace.pass_ids.size, np.bool_)
    n_decoded = int(trace.pass_tokens[decode].sum())
    metrics = {
        "decode_step_s": over(decode, np.mean, "s", cost.seconds, "decode passes"),
        "decode_step_p99_s": over(decode, lambda s: np.quantile(s, 0.99), "s", cost.seconds),
        "decode_energy_j_per_token": over(decode, lambda j: j.sum() / n_decoded, "J", cost.joules, "decoded tokens"),
        "prefill_s": over(prefill, np.sum, "s", cost.seconds),
        "total_s": over(everything, np.sum, "s", cost.seconds),
        "total_energy_j": over(everything, np.sum, "J", cost.joules),
    }
    metrics |= {f"energy_{part}_j": over(everything, np.sum, "J", band) for part, band in cost.joules_of.items()}
    step = over(decode, np.sum, "s", cost.seconds)
    if n_decoded and step.low and step.high:  # decodes may take no time by a profile of one's own
        metrics["decode_tokens_per_s"] = Metric(n_decoded / step.value, "1/s", n_decoded / step.high, n_decoded / step.low)
    return metrics


def over(where: Flags, of: Callable[..., Any], unit: str, band: Band, denominator: str | None = None) -> Metric:
    """A statistic of the passes `where` at every end; nan over none."""
    if not where.any():
        return Metric(float("nan"), unit)
    value, low, high = (float(of(series[where])) for series in band)
    return Metric(value, unit, low, high, denominator)


def _timeline(trace: Trace, per_pass: NDArray[np.int64], cost: PassCosts) -> dict[str, NDArray[Any]]:
    """The columns of table `steps`: the passes one after the other."""
    seconds, (n_lookups, n_hits, looked_up, missed, _) = cost.seconds.value, per_pass
    others = passes_over_weights(trace, cost.how.semantics) * trace.geometry.non_expert_bytes(cost.how.weight_format)
    return {
        "pass_id": trace.pass_ids,
        "kind": np.where(trace.pass_kind == PREFILL, "prefill", "decode"),
        "n_tokens": trace.pass_tokens,
        "start_s": np.cumsum(seconds) - seconds,
        "step_s": seconds,
        "energy_j": cost.joules.value,
        "n_lookups": n_lookups,
        "n_hits": n_hits,
        "fast_bytes": looked_up + others,
        "backing_bytes": missed,
    }


def _requests(trace: Trace, cost: PassCosts) -> dict[str, NDArray[Any]]:
    """Per request: time to first token (its prefill passes; nan without), mean time between tokens, energy. A batch shares its
    passes, and the tokens that they accept, evenly."""
    batch = np.diff(trace.member_offsets)
    member_pass = np.repeat(np.arange(trace.pass_ids.size), batch)
    ids, index = np.unique(trace.members, return_inverse=True)
    decode = trace.pass_kind[member_pass] == DECODE
    of_pass = cost.seconds.value, cost.joules.value / batch, trace.pass_tokens / batch
    seconds, joules, tokens = (of[member_pass] for of in of_pass)
    decode_s, n_decoded = (np.bincount(index, np.where(decode, of, 0.0), ids.size) for of in (seconds, tokens))
    n_prefill = np.bincount(index, ~decode, ids.size)
    with np.errstate(invalid="ignore"):
        tbt = decode_s / n_decoded
    return {
        "request_id": ids,
        "ttft_s": np.where(n_prefill > 0, np.bincount(index, np.where(decode, 0.0, seconds), ids.size), np.nan),
        "tbt_mean_s": tbt,
        "request_energy_j": np.bincount(index, joules, ids.size),
    }


def _outside(trace: Trace, cost: PassCosts, metrics: Mapping[str, Metric], total_bytes: int, capacity_bytes: int) -> list[str]:
    """What lies outside the range that the costs stand for, one sentence each: tiers that are too small, a power that no machine
    draws, and decisions that the machine cannot carry out. Keys and values are of the longest context in the largest batch."""
    geometry, machine, weight_format = trace.geometry, cost.how.machine, cost.how.weight_format
    others, each = geometry.non_expert_bytes(weight_format), 0
    if geometry.is_counted:
        others = other_bytes(geometry, format_of(geometry, weight_format), ACTIVATION)
        each = kv_bytes(geometry, cost.longest, ACTIVATION, machine.tensor_parallel)
    kv = int(np.diff(trace.member_offsets).max(initial=1)) * each
    experts = {"expert_home": total_bytes, "expert_cache": min(capacity_bytes, total_bytes)}
    found = overfull(machine, {"weights_home": others * machine.data_parallel, **experts, "kv_home": kv})
    found += power_findings(machine, metrics["total_energy_j"].value / metrics["total_s"].value)
    found += without_cache(machine)
    if not geometry.is_counted:
        why = geometry.uncounted or "the tape records no widths and heads"
        found.append(f"attention, the KV cache, kernels and operations are not counted: {why}")
    return found
