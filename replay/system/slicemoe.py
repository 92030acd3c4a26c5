"""SliceMoE over a tape as a replay: the loop runs it one sequence after the other, and its passes are priced as any replay's.

Open loop: the tape's scores are taken as they are. Where a policy reroutes, the model would have gone on differently: results say
so. A prompt runs layer by layer, then the warm-up's state, then token by token. Its paper counts weights alone, and misses add to
the step: cost profile `slicemoe`.
"""

import dataclasses
import hashlib
import json

import numpy as np

from tokentape.hw.profile import PHYSICAL
from tokentape.hw.spec import HardwareSpec
from tokentape.hw.work import Floats, Ints
from tokentape.policies.matryoshka import MAT
from tokentape.policies.resolve import told
from tokentape.policies.serving import Continuous
from tokentape.policies.sliced import Events, SliceMoE
from tokentape.policies.sliced.strayed import low_error_frac, strayed
from tokentape.policies.slots import System
from tokentape.replay.pass_metrics import over, priced
from tokentape.replay.passes import PassCosts, Pricing, costs_of
from tokentape.replay.result import Metric, ReplayResult, ratio
from tokentape.replay.scores import Scores
from tokentape.replay.semantics import Semantics
from tokentape.replay.serving.iteration import no_costs
from tokentape.replay.serving.run import Limits, run_rule
from tokentape.replay.slicemoe import OTHER_FORMAT
from tokentape.replay.system.recorded import recorded
from tokentape.replay.system.routes import SlicedSlots, slices_of
from tokentape.replay.trace import DECODE, PREFILL, Trace

EARLY_STEPS = 10  # the window in which a warm-up shows (SliceMoE Fig. 10)


def describe(system: SliceMoE) -> str:
    """The whole composition as JSON, as `--param` takes it; arrays by their digest."""
    params = told("system", system)[1]
    return json.dumps(params, sort_keys=True, default=lambda array: hashlib.sha256(array.tobytes()).hexdigest()[:16])


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
    semantics, expert_bytes = Semantics("global", start=start, fetching=fetching), sum(slices_of(trace.geometry, system.cache))
    events, step = serve(trace, scores, system, capacity_bytes, start == "cold", seed)
    found = found_in(trace, events)
    by_part = ((at, part, found[:, at]) for at, part in trace.parts)
    per_pass, cost = costs_of(trace, by_part, Pricing(hardware, semantics, OTHER_FORMAT, profile) if hardware else None)
    metrics = _miss_metrics(trace, scores, events, step[trace.row_pass], expert_bytes, system)
    metrics |= _early_metrics(trace, cost, step) if cost else {}
    settings = {
        "policy": "slicemoe",
        "policy_params": describe(system),
        "is_bound": False,
        "expert_format": system.cache.name,
        "capacity_bytes": capacity_bytes,
        "seed": seed,
    }
    is_open = ["open loop: rerouted tokens keep the scores of the natural route"] * bool(metrics["rerouted_frac"].value)
    return priced(trace, semantics, per_pass, cost, metrics, settings, trace.n_keys * expert_bytes, is_open)


def found_in(trace: Trace, events: Events) -> Floats:
    """(5, passes, MoE layers) as passes.costs_of takes them. A fetch is all that one layer of a pass misses."""
    shape = (trace.pass_ids.size, len(trace.geometry.moe_layers))
    at = np.ravel_multi_index((trace.row_pass.astype(np.int64), trace.row_layer), shape)
    n_hits = events.n_lookups - (1 - events.msb_hit.astype(np.int64)).sum(axis=1)
    counted = (events.n_lookups, n_hits, events.dram_bytes, events.flash_bytes)
    sums = [np.bincount(at, of, shape[0] * shape[1]).reshape(shape) for of in counted]  # exact below 2**53
    return np.stack([*sums, sums[3] > 0])


def serve(trace: Trace, scores: Scores, system: SliceMoE, capacity_bytes: int, is_cold: bool, seed: int) -> tuple[Events, Ints]:
    """Every row's events in the tape's order, and every pass's step in its generation (-1 in prefill): the loop, request by
    request. Raises ValueError as the loop does, and for a tape that is not of one sequence after the other."""
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
    slots.refuse_run()
    served = slots.events
    return Events(*(getattr(served, field.name)[tape.row_of] for field in dataclasses.fields(Events))), step


def _miss_metrics(
    trace: Trace, scores: Scores, events: Events, row_step: Ints, high_bytes: int, system: SliceMoE
) -> dict[str, Metric]:
    """What was hit, missed, computed low and rerouted; in decode, after the free steps where misses are meant."""
    k, decode, counted = events.ids.shape[1], row_step >= 0, row_step >= system.free_steps
    gates = np.take_along_axis(scores.gates, events.ids.astype(np.int64), axis=1)
    row = np.repeat(np.arange(decode.size), np.diff(trace.offsets))
    ideal = np.bincount(row, scores.gates[row, trace.ids], decode.size)[decode].sum()
    natural = np.zeros(scores.gates.shape, np.bool_)
    natural[row, trace.ids] = True
    stayed = np.take_along_axis(natural, events.ids.astype(np.int64), axis=1)[decode]
    low_error = low_error_frac(MAT(system.cache.bits_high, system.cache.bits_low), trace.geometry.is_glu)
    error = strayed(scores.gates[decode], natural[decode], events.ids[decode], events.is_high[decode] == 0, low_error)

    n_needed, n_lookups = int(events.lsb_needed[decode].sum()), int(events.n_lookups.sum())
    n_hits = n_lookups - int((1 - events.msb_hit.astype(np.int64)).sum())
    return {
        "n_lookups": Metric(float(n_lookups), "1"),
        "n_hits": Metric(float(n_hits), "1"),
        "backing_bytes": Metric(float(events.flash_bytes.sum()), "B"),
        "hit_frac": ratio(n_hits, n_lookups, "MSB slice lookups"),
        "hit_frac_decode": ratio(events.msb_hit[decode].sum(), decode.sum() * k, "MSB slice lookups"),
        "high_bit_miss_frac": ratio(
            events.flash_bytes[counted].sum(), counted.sum() * k * high_bytes, "accesses x high-bit expert bytes"
        ),
        "critical_frac": ratio(n_needed, decode.sum() * k, "accesses"),
        "critical_per_layer": ratio(n_needed, decode.sum(), "decoded tokens x layers"),
        "degraded_frac": ratio(events.degraded[decode].sum(), n_needed, "critical accesses"),
        "kept_gate_mass_frac": ratio(gates[decode].sum(dtype=np.float64), ideal, "gate mass of the natural route"),
        "strayed_frac": ratio(error.sum(), error.size, "decoded tokens x layers, each by its squared output"),
        "rerouted_frac": ratio((~stayed).sum(), stayed.size, "accesses"),
    }


def _early_metrics(trace: Trace, cost: PassCosts, step: Ints) -> dict[str, Metric]:
    """Of the first decode passes of every generation; and what the experts' home takes of decoding's energy."""
    decode = trace.pass_kind == DECODE
    early = decode & (step < EARLY_STEPS)
    backing, total = cost.joules_of.get("backing"), float(cost.joules.value[decode].sum())
    flash = float(backing.value[decode].sum()) if backing else 0.0
    return {
        "early_step_s": over(early, np.mean, "s", cost.seconds, f"first {EARLY_STEPS} decode passes"),
        "early_energy_j_per_token": over(early, np.mean, "J", cost.joules, f"first {EARLY_STEPS} decoded tokens"),
        "flash_energy_frac": ratio(flash, total, "energy of decoded tokens"),
    }
