"""A system on a tape and a machine: the serving engine's loop with the experts' slots, at every end of the machine's ranges.

Recorded requests under any arrivals, order and batch. The clock decides what the scheduler sees, so each end is a run of its own.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.hw import profile as profiles
from tokentape.hw.clock import not_counted, power_findings
from tokentape.hw.held import overfull
from tokentape.hw.profile import ENDS, Profile
from tokentape.hw.spec import HardwareSpec
from tokentape.policies import registry
from tokentape.policies.cache import ExpertCache, refuse_incomplete
from tokentape.policies.lru import LRU
from tokentape.policies.resolve import told
from tokentape.policies.slots import System
from tokentape.replay.capacity import total_expert_bytes
from tokentape.replay.passes import fits_of
from tokentape.replay.result import Metric, ReplayResult, ratio
from tokentape.replay.serving.coverage import FixedCoverage
from tokentape.replay.serving.iteration import PARTS, IterationCosts, iteration_costs
from tokentape.replay.serving.run import Limits, ServingRun, rule_of, run_rule
from tokentape.replay.serving.workload import Requests
from tokentape.replay.system import events as ev
from tokentape.replay.system import kv as kept
from tokentape.replay.system.ahead import refuse_prefetch
from tokentape.replay.system.drafts import ROUNDS, VERIFIED
from tokentape.replay.system.experts import ExpertSlots
from tokentape.replay.system.kv import KVSlots
from tokentape.replay.system.recorded import Recorded
from tokentape.replay.system.routes import SlicedSlots
from tokentape.replay.transformer import ACTIVATION
from tokentape.warehouse.at_rest import hash_of_text
from tokentape.warehouse.model_sizes import other_bytes

IDLE = "nothing to do"
BESIDE = {"static": "power drawn all the time", "refresh": "refresh of cells"}  # of energies, beside bytes and operations
_SPENT = {
    "seconds": ("part_s", ""),
    "joules": ("part_j", ""),
}  # metric and resource of what a ledger sums up; else "asked_s" of it


@dataclass(frozen=True, eq=False)
class SystemRun:
    """What a loop did: the requests' times (serving), and the experts' events (slots: totals by MoE layer, iterations, a log)."""

    serving: ServingRun
    slots: ExpertSlots
    kv: KVSlots

    @property
    def joules_of(self) -> dict[str, float]:
        """By part: static power, bytes, operations, refresh of what is held."""
        return {**self.serving.joules_of, "refresh": self.kv.refresh_j}

    def bytes_of(self, column: int) -> float:
        """Of the experts that a column of totals counts."""
        counts = self.slots.totals[:, column] + self.slots.totals[:, column + ev.N_OF_PHASE]
        return float(counts @ np.array(self.slots.sizes, np.float64))

    def total(self, column: int, phase: int | None = None) -> int:
        """Over all layers; phase: 0 events of decodes alone, 1 those with prompts."""
        columns = [column + at * ev.N_OF_PHASE for at in ((0, 1) if phase is None else (phase,))]
        return int(self.slots.totals[:, columns].sum())


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How a system runs. expert_format: of the experts at full width, or recorded: as large as the tape says; dense_format:
    of other weights, where it is another. limits: of KV blocks; max_seqs is the schedule's. seed: of
    caches that draw. losses (MoE layers, E, 4): of experts at 1 to 4 bits, for precision rules."""

    profile: str | Profile = profiles.PHYSICAL
    expert_format: str = "bf16"
    dense_format: str = ""
    limits: Limits | None = None
    seed: int = 0
    losses: NDArray[np.float64] | None = field(default=None, repr=False, compare=False)


def simulate(
    recorded: Recorded,
    requests: Requests,
    system: System,
    machine: HardwareSpec,
    setting: Setting | None = None,
    end: str = "value",
    record: bool = False,
    logs: int = 0,
    keeps_ledger: bool = False,
) -> SystemRun:
    """One run, at one end of the machine's ranges. record: keep every iteration; logs: lookups that are kept, in order.

    keeps_ledger: sums up what every object takes of every resource. Raises ValueError for what the system, tape or machine cannot
    do.
    """
    how = setting or Setting()
    refuse(recorded, system, machine, how)
    geometry = recorded.geometry
    value_format = how.dense_format or geometry.value_format(how.expert_format)
    rule = rule_of(system.schedule, geometry.n_layers)
    kv = KVSlots(recorded, requests, system, machine, rule, end)
    costs = iteration_costs(
        geometry,
        machine,
        FixedCoverage(1.0),
        how.profile,
        how.expert_format,
        events=True,
        end=end,
        fits=fits_of(machine, value_format),
        tracks=kv.track is not None,
        kv_frac=kv.kv_frac,
        keeps_ledger=keeps_ledger,
        dense_format=value_format,
        is_ahead=system.prefetch is not None,
    )
    kv.by_profile = tuple(of.tier or machine.roles.of(role) for role, of in costs.profile.refresh.items())
    has_refresh = costs.profile.static_w is None and not costs.profile.refresh  # that of whole tiers, in the background
    costs = replace(costs, background_w=costs.background_w - kv.replaced_w * has_refresh)
    kind = ExpertSlots if system.sliced is None else SlicedSlots
    slots = kind(recorded, requests, system, costs, end, how.seed, how.losses, logs)
    limits = kv.share(slots, replace(how.limits or Limits(), max_seqs=system.max_seqs))
    slots = _told(slots, rule, costs, limits, kv)
    made = SystemRun(run_rule(requests, rule, costs, limits, record=record, slots=slots, kv=kv), slots, kv)
    slots.refuse_run()
    return made


def refuse(recorded: Recorded, system: System, machine: HardwareSpec, setting: Setting) -> None:
    """Raises ValueError, in one line, for what the loop does not run and what does not fit."""
    if not recorded.geometry.hidden:
        raise ValueError("this tape records no widths and heads; give the model it was taken from with --model")
    if system.schedule is None:
        raise ValueError(f"system {system.name} has no schedule; add schedule = {{ policy = 'orca' }}")
    if not hasattr(system.schedule, "rule"):
        what = f"{type(system.schedule).__name__} is two engines in series, not one loop"
        raise ValueError(f"system {system.name}: {what}; `tokentape serving` has it")
    refuse_prefetch(system)
    tier = machine.tiers[machine.roles.expert_cache or machine.roles.expert_home]
    room = tier.capacity_bytes.value * machine.n_devices
    needed = total_expert_bytes(recorded.geometry, setting.expert_format)
    if not system.room and needed > room:
        raise ValueError(
            f"all experts are {needed / 1e9:.3g} GB, {machine.name} holds {room / 1e9:.3g} GB in its fast tier; "
            "give the system a residency"
        )


def _told(slots: ExpertSlots, rule: Any, costs: IterationCosts, limits: Limits, kv: KVSlots) -> ExpertSlots:
    """With what a run before tells of lookups: all of them to a bound, their counts to a policy with a profile."""
    policy = slots.system.residency
    sees_all = policy is not None and policy.kind == "future"
    frac = getattr(policy, "profile_frac", 0.0)
    if not sees_all and not frac:
        return slots
    refuse_incomplete(policy)
    system, requests = slots.system, slots.requests
    if requests.arrival_s[-1] > 0.0 or limits.kv_blocks is not None:
        what = "a bound needs" if sees_all else f"{type(policy).__name__} counts a share of all lookups: it needs"
        raise ValueError(
            f"system {system.name}: {what} a fixed schedule; give arrivals all at 0, no limit of KV blocks and no share_kv"
        )
    if slots.system.place is not None or slots.system.route is not None:
        what = f"{type(policy).__name__} needs all lookups"
        raise ValueError(f"system {system.name}: {what}, and placements and routers change them; leave place and route out")
    first = replace(slots, system=replace(system, policies={**system.policies, "residency": LRU()}))
    run_rule(requests, rule, costs, limits, slots=first, kv=kv)
    n_lookups, n_events = int(first.how[ev.N_LOOKUPS]), int(first.how[ev.N_EVENTS])
    first = replace(first, logs=n_lookups)
    run_rule(requests, rule, costs, limits, slots=first, kv=kv)
    keys, events = first.log_keys, first.log_events(n_events)
    if not sees_all:
        n_profiled = round(frac * n_events)
        upto = n_lookups if policy.is_bound else int(events[n_profiled])
        counted = np.bincount(keys[:upto], minlength=len(slots.sizes) * slots.recorded.geometry.n_experts).astype(float)
        return replace(slots, profile=(0 if policy.is_bound else n_profiled, counted))
    cache: ExpertCache = slots.cache_of(policy)
    return replace(slots, logs=n_lookups, told=(keys, cache.advance(keys.astype(np.int32), events)))


def run(
    recorded: Recorded,
    requests: Requests,
    system: System,
    machine: HardwareSpec,
    setting: Setting | None = None,
    keeps_ledger: bool = False,
) -> ReplayResult:
    """Settings with a column per decision, metrics with bands, and series by iteration, by request and, where a ledger is kept,
    by what the nominal run's time and energy go to."""
    how = setting or Setting()
    ends = {
        end: simulate(recorded, requests, system, machine, how, end, end == "value", keeps_ledger=keeps_ledger and end == "value")
        for end in ENDS
    }
    made = ends["value"]
    each = {end: _metrics(of) for end, of in ends.items()}
    metrics = {}
    for name, of in each["value"].items():
        band = sorted(each[end][name].value for end in ENDS)
        if not math.isnan(of.value):
            metrics[name] = replace(of, low=band[0], high=band[-1])
    metrics |= {name: of for name, of in made.slots.metrics().items() if not math.isnan(of.value)}
    serving = made.serving
    iterations = serving.iterations
    steps = {
        "pass_id": np.arange(serving.n_iterations),
        "start_s": iterations["start_s"],
        "step_s": iterations["seconds"],
        "n_decodes": iterations["n_decode"],
        "n_prefill_tokens": iterations["n_prefill"],
        "n_lookups": made.slots.of_iteration[:, 0].astype(np.int64),
        "n_hits": made.slots.of_iteration[:, 1].astype(np.int64),
        "backing_bytes": np.rint(made.slots.of_iteration[:, 3]).astype(np.int64),
    }
    after_first = np.maximum(requests.n_output_tokens - 1, 1)
    by_request = {
        "request_id": np.arange(len(requests)),
        "ttft_s": serving.ttft_s,
        "tbt_mean_s": np.where(requests.n_output_tokens > 1, (serving.finish_s - serving.first_token_s) / after_first, np.nan),
        "arrival_s": requests.arrival_s,
        "finish_s": serving.finish_s,
        "n_restarts": serving.n_restarts,
    }
    outside = _outside(recorded, requests, system, machine, made)
    rerouted, ids = metrics.get("rerouted_frac"), made.slots.ids
    if (rerouted and rerouted.value) or (ids is not recorded.ids and np.any(np.sort(ids) != np.sort(recorded.ids))):
        outside.append("open loop: rerouted tokens keep the scores of the natural route")
    settings = {
        "trace_id": recorded.trace_id,
        "origin": recorded.origin,
        "system": system.name,
        "system_sha256": version_of(system),
        **{slot: None if text == "none" else text for slot, text in system.told().items()},
        "is_bound": system.is_bound,
        "hardware": machine.name,
        "hardware_sha256": machine.sha256,
        "profile": made.slots.costs.profile.name,
        "expert_format": how.expert_format if system.sliced is None else system.sliced.cache.name,
        "budget_bytes": made.slots.budget_bytes,
        "capacity_frac": made.slots.budget_bytes / total_expert_bytes(recorded.geometry, how.expert_format),
        "batch": system.max_seqs,
        "seed": how.seed,
        "n_requests": len(requests),
        "is_extrapolated": bool(outside),
        "outside_envelope": "; ".join(outside),
        "assumed": ", ".join(machine.assumed),
    }
    parts = [(*_SPENT.get(what, ("asked_s", what)), of, value) for (of, what), value in spent(made).items() if keeps_ledger]
    named = zip(("metric", "label", "part", "value"), zip(*parts, strict=True), strict=True) if parts else ()
    return ReplayResult(settings, metrics, steps, by_request, parts={name: np.array(column) for name, column in named})


def version_of(system: System) -> str:
    """Hash of what decides, its room for experts left out; of policies of one's own also of their files."""
    roomless = {slot: {name: of for name, of in given.items() if name != "budget"} for slot, given in system.options.items()}
    texts = replace(system, options=roomless).told().items()
    own = (registry.sha256(slot, told(slot, policy)[0]) for slot, policy in system.policies.items())
    return hash_of_text("; ".join([*(f"{slot} {text}" for slot, text in texts if text != "none"), *filter(None, own)]))


def spent(made: SystemRun) -> dict[tuple[str, str], float]:
    """(object, what) of a run that kept a ledger: seconds, which sum to its wall time, joules, to its energy, and seconds that
    it asks of each resource."""
    serving, found = made.serving, dict(made.serving.ledger)
    joules = made.joules_of
    found |= {(BESIDE.get(name, name), "joules"): joules[name] for name in joules if name not in ("bytes", "ops")}
    found[IDLE, "seconds"] = max(0.0, serving.wall_s - serving.busy_s)
    for unit, of_all in (("seconds", serving.busy_s), ("joules", serving.j_of_bytes + serving.j_of_ops)):
        rest = of_all - sum(value for (_, what), value in serving.ledger.items() if what == unit)
        found["draft", unit] = found.get(("draft", unit), 0.0) + rest * (abs(rest) > 1e-9 * of_all)
    return found


def _metrics(made: SystemRun) -> dict[str, Metric]:
    """By name, without bands."""
    serving, lookups, hits = made.serving, made.total(ev.LOOKUPS), made.total(ev.HITS)
    decode, n_out = made.total(ev.LOOKUPS, 0), int(serving.requests.n_output_tokens.sum())
    away, chosen = ([made.total(name, *of) for of in ((), (0,))] for name in (ev.AWAY_TOKENS, ev.TOKEN_EXPERTS))
    joules = sum(made.joules_of.values())
    gaps = serving.n_iterations and serving.gaps.sum()
    found = {
        "total_s": Metric(serving.wall_s, "s"),
        "ttft_mean_s": Metric(float(serving.ttft_s.mean()), "s", denominator="requests"),
        "tbt_mean_s": Metric(serving.gap_mean_s, "s", denominator="times between tokens"),
        "tbt_p99_s": Metric(float(serving.gap_percentiles_s(99)) if gaps else math.nan, "s", denominator="times between tokens"),
        "largest_gap_s": Metric(float(serving.largest_gap_s.max()), "s"),
        "tokens_per_s": Metric(n_out / serving.wall_s, "1/s"),
        "total_energy_j": Metric(joules, "J"),
        "energy_j_per_output_token": Metric(joules / n_out, "J", denominator="output tokens"),
        "n_lookups": Metric(float(lookups), "1"),
        "n_hits": Metric(float(hits), "1"),
        "hit_frac": ratio(hits, lookups, "unique lookups"),
        "hit_frac_decode": ratio(made.total(ev.HITS, 0), decode, "unique lookups"),
        "n_moved": Metric(float(made.total(ev.MOVED)), "experts"),
        "away_frac": ratio(away[0], chosen[0], "token-experts"),
        "away_frac_decode": ratio(away[1], chosen[1], "token-experts"),
        "fetched_bytes_per_token": Metric(made.slots.fetched_by_phase.sum() / n_out, "B", denominator="output tokens"),
        "kv_read_bytes_per_token": Metric(float(made.kv.numbers[kept.READ]) / n_out, "B", denominator="output tokens"),
        "kv_peak_bytes": Metric(float(made.kv.numbers[kept.PEAK]), "B"),
    }
    if made.slots.system.sliced is None:
        of_prompts = made.slots.fetched_by_phase[1] / int(serving.requests.n_prompt_tokens.sum())
        found["fetched_bytes_per_prompt_token"] = Metric(of_prompts, "B", denominator="prompt tokens")
    if made.slots.system.prefetch is not None:
        ahead, used = (made.bytes_of(column) for column in (ev.FORETOLD, ev.USED))
        found["prefetched_bytes"], found["prefetch_used_bytes"] = Metric(ahead, "B"), Metric(used, "B")
        found["prefetch_wasted_bytes"] = Metric(ahead - used, "B")
        found["n_prefetch_hits"] = Metric(float(made.total(ev.USED)), "1")
    if made.slots.rounds:
        n_rounds, n_verified = made.slots.drafted[-1][[ROUNDS, VERIFIED]].tolist()
        found["accepted_mean"] = ratio(serving.n_accepted, n_rounds, "rounds of a request")
        found["verified_mean"] = ratio(n_verified, n_rounds, "rounds of a request")
        found["draft_frac"] = ratio(made.slots.draft_s, serving.busy_s, "busy time")
    found |= {f"{part}_frac": ratio(serving.seconds_of[part], serving.busy_s, "busy time") for part in PARTS}
    if made.kv.refresh_w_per_byte:
        found["refresh_j_per_token"] = Metric(made.kv.refresh_j / n_out, "J", denominator="output tokens")
    return found


def _outside(recorded: Recorded, requests: Requests, system: System, machine: HardwareSpec, made: SystemRun) -> list[str]:
    """What the run leaves out or cannot carry out, one sentence each."""
    roles = machine.roles
    kv = 0.0 if made.kv.shares else float(made.kv.numbers[kept.PEAK])
    budget = made.slots.budget_bytes
    rounds, geometry, expert_format = made.slots.rounds, recorded.geometry, made.slots.costs.expert_format
    drafts = rounds.held_bytes(geometry, expert_format) if rounds else 0.0
    others = other_bytes(geometry, geometry.value_format(expert_format), ACTIVATION) * machine.data_parallel
    home = made.slots.total_bytes * bool(system.room or not roles.expert_cache) + drafts * (not roles.expert_cache)
    found = overfull(machine, {"weights_home": others, "kv_home": kv, "expert_home": home, "expert_cache": budget + drafts})
    n_restarts = int(made.serving.n_restarts.sum())
    found += power_findings(machine, sum(made.joules_of.values()) / made.serving.wall_s) + made.kv.outside(n_restarts)
    if rounds:
        found += rounds.outside(budget, geometry, expert_format)
        if n_restarts:
            found.append(f"{n_restarts} times a request lost its KV and decoded plainly until its next recorded round")
    if not roles.expert_cache and (system.residency is not None or made.slots.is_placed):
        found.append(f"{machine.name} has no tier in front of the experts: they are read from {roles.expert_home}")
    if system.place is not None and not roles.near_compute:
        way = "fetched and not kept" if roles.expert_cache and made.slots.away == ev.IS_STREAMED else "read in place"
        found.append(f"{machine.name} computes nothing near its memory: experts placed there are {way}")
    left_out = f"not counted by the profile: {', '.join(made.slots.costs.uncounted)}" * bool(made.slots.costs.uncounted)
    found += filter(None, [left_out, made.slots.costs.outside, recorded.gaps])
    found += not_counted({}, machine, made.slots.costs.profile, ("kv_home", "kv_cache"))
    if recorded.batch > 1:
        found.append(f"recorded in batches of up to {recorded.batch}, scheduled anew: exact where routing does not see the batch")
    repeats = len(requests) - np.unique(requests.tape_request).size
    if repeats:
        found.append(f"{repeats} requests repeat another, whose experts they share")
    return found
