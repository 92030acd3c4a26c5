"""The numbers of a sliced replay: misses, precision and kept gate mass; seconds and joules with their bands."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.hw.clock import StepCost
from tokentape.hw.spec import HardwareSpec
from tokentape.policies.sliced import Events
from tokentape.replay.pass_metrics import over
from tokentape.replay.passes import joules_of
from tokentape.replay.result import Metric
from tokentape.replay.scores import Scores
from tokentape.replay.slicemoe.cost import looked_up_by_row
from tokentape.replay.trace import DECODE, Trace

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


def early_metrics(trace: Trace, machine: HardwareSpec, cost: StepCost, row_step: Ints) -> dict[str, Metric]:
    """Of the first decode passes of every generation; and what the experts' home takes of decoding's energy."""
    decode = trace.pass_kind == DECODE
    step = np.full(trace.pass_ids.size, -1, np.int64)
    step[trace.row_pass] = row_step
    early = decode & (step < EARLY_STEPS)
    backing, total = joules_of(cost, machine).get("backing"), float(cost.joules.value[decode].sum())
    flash = float(backing.value[decode].sum()) if backing else 0.0
    return {
        "early_step_s": over(early, np.mean, "s", cost.seconds, f"first {EARLY_STEPS} decode passes"),
        "early_energy_j_per_token": over(early, np.mean, "J", cost.joules, f"first {EARLY_STEPS} decoded tokens"),
        "flash_energy_frac": Metric(flash / total if total else float("nan"), "1", denominator="energy of decoded tokens"),
    }
