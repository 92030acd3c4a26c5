"""SliceMoE's points over a tape: the loop serves it one sequence after the other, each from an empty cache, and its passes are
priced as any replay's.

Its paper counts weights alone, and misses add to the step: cost profile `slicemoe`.
"""

import numpy as np

from tokentape.hw.spec import HardwareSpec
from tokentape.hw.work import Floats, Ints
from tokentape.policies.serving import Continuous
from tokentape.policies.sliced import SliceMoE
from tokentape.policies.slots import System
from tokentape.replay.pass_metrics import cost_metrics
from tokentape.replay.passes import PassCosts, Pricing, costs_of
from tokentape.replay.semantics import Semantics
from tokentape.replay.serving.iteration import no_costs
from tokentape.replay.serving.run import Limits, run_rule
from tokentape.replay.slicemoe import OTHER_FORMAT, PROFILE
from tokentape.replay.system.recorded import Recorded
from tokentape.replay.system.routes import SlicedSlots
from tokentape.replay.trace import DECODE, Trace

EARLY_STEPS = 10  # the window in which a warm-up shows (SliceMoE Fig. 10)


def point_of(
    trace: Trace, tape: Recorded, policy: SliceMoE, machine: HardwareSpec, capacity_bytes: int, seed: int = 0
) -> tuple[dict[str, float], PassCosts]:
    """Numbers of the policy on a tape of one sequence after the other, by name, and what every pass costs. capacity_bytes: of
    the cache of all layers' slices. Raises ValueError for scores of the top k alone under a policy that needs all."""
    slots = served(tape, policy, capacity_bytes, seed)
    found = found_in(trace, slots)
    by_part = ((at, part, found[:, at]) for at, part in trace.parts)
    _, cost = costs_of(trace, by_part, Pricing(machine, Semantics("global", start="cold"), OTHER_FORMAT, PROFILE))
    decode = trace.pass_kind == DECODE
    flash = float(cost.joules_of["backing"].value[decode].sum()) if "backing" in cost.joules_of else 0.0
    numbers = {name: metric.value for name, metric in (slots.metrics() | cost_metrics(trace, cost)).items()}
    early = early_costs(trace, cost, EARLY_STEPS)
    numbers |= {"early_step_s": early["decode_step_s"], "early_energy_j_per_token": early["decode_energy_j_per_token"]}
    return numbers | {"flash_energy_frac": flash / float(cost.joules.value[decode].sum())}, cost


def served(tape: Recorded, policy: SliceMoE, capacity_bytes: int, seed: int = 0) -> SlicedSlots:
    """The tape's requests through the loop, one after the other, on no clock. Raises ValueError as the loop does."""
    system, costs = System("slicemoe", {"route": policy}, {"residency": {"start": "cold"}}), no_costs(tape.geometry)
    slots = SlicedSlots(tape, tape.requests(), system, costs, seed=seed, capacity_bytes=capacity_bytes)
    run_rule(slots.requests, Continuous().rule(tape.geometry.n_layers), costs, Limits(max_seqs=1), slots=slots)
    slots.refuse_run()
    return slots


def found_in(trace: Trace, slots: SlicedSlots) -> Floats:
    """(5, passes, MoE layers) as passes.costs_of takes them. A fetch is all that one layer of a pass misses."""
    shape, events, rows = (trace.pass_ids.size, len(trace.geometry.moe_layers)), slots.events, slots.recorded.row_of
    at = np.ravel_multi_index((trace.row_pass.astype(np.int64), trace.row_layer), shape)
    n_hits = events.n_lookups - (1 - events.msb_hit.astype(np.int64)).sum(axis=1)
    counted = (events.n_lookups, n_hits, events.dram_bytes, events.flash_bytes)
    sums = [np.bincount(at, of[rows], shape[0] * shape[1]).reshape(shape) for of in counted]  # exact below 2**53
    return np.stack([*sums, sums[3] > 0])


def early_costs(trace: Trace, cost: PassCosts, n_steps: int) -> dict[str, float]:
    """Mean seconds and joules of a decoded token over the first steps of every generation: where a warm-up shows."""
    step = steps_of(trace)
    early = (step > 0) & (step <= n_steps)
    means = (float(of.value[early].mean()) for of in (cost.seconds, cost.joules))
    return dict(zip(("decode_step_s", "decode_energy_j_per_token"), means, strict=True))


def steps_of(trace: Trace) -> Ints:
    """(passes,) which step of its generation a decode is, from 1; 0 of a prompt."""
    place = np.arange(trace.pass_ids.size)
    return place - np.maximum.accumulate(np.where(trace.pass_kind == DECODE, -1, place))
