"""The numbers of a sliced replay: misses, precision and kept gate mass; seconds and joules with their bands."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.hw.clock import Band, StepCost, power_findings
from tokentape.hw.spec import HardwareSpec
from tokentape.policies.sliced import Events
from tokentape.replay.result import Metric
from tokentape.replay.scores import Scores
from tokentape.replay.slicemoe.cost import OTHER_FORMAT, looked_up_by_row
from tokentape.replay.trace import DECODE, PREFILL, Trace
from tokentape.warehouse.geometry import Geometry
from tokentape.warehouse.model_sizes import static_bytes

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
EARLY_STEPS = 10  # the window in which a warm-up shows (SliceMoE Fig. 10)


def miss_metrics(
    trace: Trace, scores: Scores, events: Events, row_step: Ints, high_bytes: int, free_steps: int
) -> dict[str, Metric]:
    """What was hit, missed, computed low and rerouted; in decode, after the free steps where misses are meant."""
    k, decode, counted = events.ids.shape[1], row_step >= 0, row_step >= free_steps
    gates = np.take_along_axis(scores.gates, events.ids.astype(np.int64), axis=1)
    row = np.repeat(np.arange(decode.size), np.diff(trace.offsets))
    ideal = np.bincount(row, scores.gates[row, trace.ids], decode.size)[decode].sum()
    natural = np.zeros(scores.gates.shape, np.bool_)
    natural[row, trace.ids] = True
    stayed = np.take_along_axis(natural, events.ids.astype(np.int64), axis=1)[decode]
    low_mass = (gates * (1 - events.is_high))[decode].sum()

    def share(part: Any, whole: Any, of: str) -> Metric:
        return Metric(float(part) / float(whole) if whole else float("nan"), "1", denominator=of)

    n_needed = int(events.lsb_needed[decode].sum())
    looked_up = looked_up_by_row(trace, events)
    n_hits = int(looked_up.sum()) - int((1 - events.msb_hit.astype(np.int64)).sum())
    return {
        "n_lookups": Metric(float(looked_up.sum()), "1"),
        "n_hits": Metric(float(n_hits), "1"),
        "backing_bytes": Metric(float(events.flash_bytes.sum()), "B"),
        "hit_frac": share(n_hits, looked_up.sum(), "MSB slice lookups"),
        "hit_frac_decode": share(events.msb_hit[decode].sum(), decode.sum() * k, "MSB slice lookups"),
        "high_bit_miss_frac": share(
            events.flash_bytes[counted].sum(), counted.sum() * k * high_bytes, "accesses x high-bit expert bytes"
        ),
        "critical_frac": share(n_needed, decode.sum() * k, "accesses"),
        "critical_per_layer": share(n_needed, decode.sum(), "decoded tokens x layers"),
        "degraded_frac": share(events.degraded[decode].sum(), n_needed, "critical accesses"),
        "kept_gate_mass_frac": share(gates[decode].sum(), ideal, "gate mass of the natural route"),
        "low_bit_mass_frac": share(low_mass, ideal, "gate mass of the natural route"),
        "rerouted_frac": share((~stayed).sum(), stayed.size, "accesses"),
    }


def _over(where: Flags, band: Band, unit: str, per: float = 1.0, denominator: str | None = None) -> Metric:
    """The band's sum over the passes `where`, divided by `per`; nan over none."""
    if not where.any():
        return Metric(float("nan"), unit)
    value, low, high = (float(series[where].sum()) / per for series in (band.value, band.low, band.high))
    return Metric(value, unit, low, high, denominator)


def decode_metrics(trace: Trace, cost: StepCost, row_step: Ints) -> dict[str, Metric]:
    """Of the decode passes, one token each; early: the first steps of every generation."""
    decode = trace.pass_kind == DECODE
    step = np.full(trace.pass_ids.size, -1, np.int64)
    step[trace.row_pass] = row_step
    early = decode & (step < EARLY_STEPS)
    n, n_early = int(decode.sum()), int(early.sum())
    metrics = {
        "decode_step_s": _over(decode, cost.seconds, "s", n, "decode passes"),
        "decode_energy_j_per_token": _over(decode, cost.joules, "J", n, "decoded tokens"),
        "early_step_s": _over(early, cost.seconds, "s", n_early, f"first {EARLY_STEPS} decode passes"),
        "early_energy_j_per_token": _over(early, cost.joules, "J", n_early, f"first {EARLY_STEPS} decoded tokens"),
        "total_s": _over(decode, cost.seconds, "s"),
        "total_energy_j": _over(decode, cost.joules, "J"),
        **{f"energy_{part}_j": _over(decode, band, "J") for part, band in cost.joules_of.items()},
    }
    metrics["flash_energy_frac"] = _flash_share(decode, cost)
    mean = metrics["decode_step_s"]
    if mean.low is not None and mean.high is not None:
        metrics["decode_tokens_per_s"] = Metric(1.0 / mean.value, "1/s", 1.0 / mean.high, 1.0 / mean.low)
    return metrics


def _flash_share(where: Flags, cost: StepCost) -> Metric:
    """What reads of the backing tier take of the energy; nan over no passes."""
    total = float(cost.joules.value[where].sum())
    flash = float(cost.joules_of["backing"].value[where].sum()) if "backing" in cost.joules_of else 0.0
    return Metric(flash / total if total else float("nan"), "1", denominator="energy of decoded tokens")


def prefill_metrics(trace: Trace, cost: StepCost) -> dict[str, Metric]:
    """Of the prefill passes, and the totals with them in: physical mode only."""
    prefill, everything = trace.pass_kind == PREFILL, np.ones(trace.pass_ids.size, np.bool_)
    return {
        "prefill_s": _over(prefill, cost.seconds, "s"),
        "prefill_energy_j": _over(prefill, cost.joules, "J"),
        "total_s": _over(everything, cost.seconds, "s"),
        "total_energy_j": _over(everything, cost.joules, "J"),
        **{f"energy_{part}_j": _over(everything, band, "J") for part, band in cost.joules_of.items()},
    }


def timeline_of(trace: Trace, per_pass: dict[str, Ints], cost: StepCost, costed: Flags) -> dict[str, NDArray[Any]]:
    """The columns of table `timeline` over the costed passes, one after the other."""
    seconds = cost.seconds.value[costed]
    return {
        "pass_id": trace.pass_ids[costed],
        "kind": np.where(trace.pass_kind == PREFILL, "prefill", "decode")[costed],
        "n_tokens": trace.pass_tokens[costed],
        "start_s": np.cumsum(seconds) - seconds,
        "step_s": seconds,
        "energy_j": cost.joules.value[costed],
        **{name: per_pass[name][costed] for name in ("n_lookups", "n_hits", "fast_bytes", "backing_bytes")},
    }


def requests_of(trace: Trace, cost: StepCost) -> dict[str, NDArray[Any]]:
    """The columns of table `request_metrics`: one request per pass."""
    ids, index = np.unique(trace.members, return_inverse=True)
    decode, seconds = trace.pass_kind == DECODE, cost.seconds.value
    with np.errstate(invalid="ignore"):
        tbt = np.bincount(index, np.where(decode, seconds, 0.0)) / np.bincount(index, decode)
    return {
        "request_id": ids,
        "ttft_s": np.bincount(index, np.where(decode, 0.0, seconds)),
        "tbt_mean_s": tbt,
        "request_energy_j": np.bincount(index, cost.joules.value),
    }


def outside_envelope(
    geometry: Geometry, hardware: HardwareSpec, capacity_bytes: int, expert_bytes: int, n_keys: int, power_w: float
) -> list[str]:
    """What lies outside the range the costs stand for, one sentence each."""
    findings, fast = [], hardware.tiers[hardware.fast].capacity_bytes.value * hardware.n_devices
    needed = min(capacity_bytes, n_keys * expert_bytes) + static_bytes(geometry, OTHER_FORMAT)
    if needed > fast:
        findings.append(f"cache and other weights ({needed / 1e9:.3g} GB) do not fit {hardware.fast} ({fast / 1e9:.3g} GB)")
    if hardware.backing and n_keys * expert_bytes > hardware.tiers[hardware.backing].capacity_bytes.value:
        findings.append(f"the experts ({n_keys * expert_bytes / 1e9:.3g} GB) do not fit {hardware.backing}")
    return findings + power_findings(hardware, power_w)
