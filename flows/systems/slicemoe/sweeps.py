"""Sweeps of sliced systems over one tape, synthetic or captured: rows of `slicemoe_points` and `warmup_points`.

A tape's rows are one file per table, written when they are complete: an interrupted study goes on at the next tape.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

from tokentape.capture.run import CaptureSettings, capture
from tokentape.capture.synthetic.tape import SynthesisSettings, synthesize
from tokentape.flows import sources
from tokentape.flows.grid import load_hardware
from tokentape.flows.scored import scored_trace
from tokentape.flows.systems.slicemoe.settings import Captured, Model, Settings
from tokentape.hw import calibrate
from tokentape.policies.matryoshka import MAT
from tokentape.policies.sliced import BUDGETS, PRECISIONS, ROUTERS, WARMUPS, SlicedCache, SliceMoE
from tokentape.replay.matched import sweep
from tokentape.replay.scores import Scores
from tokentape.replay.slicemoe.replay import replay_sliced, slices_of
from tokentape.replay.trace import Trace
from tokentape.replay.windows import window_costs
from tokentape.warehouse import models
from tokentape.warehouse.results import has_rows
from tokentape.warehouse.tape import Store, Tape

ENGINE = ("tokentape.replay.matched", "tokentape.replay.windows")
CONFIGURATIONS = ("high-bit", "low-bit", "amat")  # those whose precision has no tau
Job = tuple[Model | Captured, int]  # and the seed of its tape


@dataclass(frozen=True)
class System:
    """One line of a sweep, as table `slicemoe_points` names it."""

    pair: str
    configuration: str
    tau: float | None = None
    warmup: str = "last_layer"
    router: str = "cache_prior"
    target_frac: float | None = None

    @property
    def budget(self) -> str:
        return "none" if self.target_frac is None else f"hard {self.target_frac:g}"

    @property
    def cache(self) -> SlicedCache:
        pair = MAT.parse(self.pair)
        return SlicedCache(bits_high=pair.high, bits_low=pair.low)

    def composed(self) -> SliceMoE:
        """The policy; the sweep puts the router in."""
        precision = PRECISIONS[self.configuration](**({} if self.tau is None else {"tau": self.tau}))
        budget = BUDGETS["none"]() if self.target_frac is None else BUDGETS["hard"](target_frac=self.target_frac)
        return SliceMoE(cache=self.cache, precision=precision, budget=budget, warmup=WARMUPS[self.warmup]())


Sweep = tuple[System, tuple[float, ...], int]  # strengths of the router, bytes of the cache


def of_tape(store: Store, study: Settings, job: Job) -> str:
    """Writes what is missing of one tape's rows, and the tape itself where it is missing; what its points are `of`."""
    model, seed = job
    trace_id = _recorded(store, model, seed) if isinstance(model, Captured) else _drawn(store, study, model, seed)
    of = _decided_by(study, store.open(trace_id))
    if has_rows(store, "slicemoe_points", of):
        return of
    trace, scores = scored_trace(store, trace_id)
    machine = load_hardware(study.hardware)
    where = {"trace_id": trace_id, "model_id": model.name, "seed": seed, "hardware": machine.name}
    warmups = [] if isinstance(model, Captured) else [{**where, **row} for row in _warmups(study, trace, scores, seed)]
    rows = []
    for system, strengths, capacity_bytes in _sweeps(study, model, trace):
        made = sweep(
            trace, scores, system.composed(), system.router, strengths, model.low_bit_cost, machine, capacity_bytes, seed
        )
        named = {name: getattr(system, name) for name in ("pair", "configuration", "tau", "router", "warmup", "budget")}
        rows += [{**where, "capacity_bytes": capacity_bytes, **named, **asdict(point)} for point in made]
    study.write(store, {"warmup_points": warmups, "slicemoe_points": rows}, of, last="slicemoe_points")
    return of


def _decided_by(study: Settings, tape: Tape) -> str:
    """What a tape's rows are of: the tape, the settings and the code that decide them."""
    settings = study.model_dump_json(exclude={"question", "models", "seeds", "live"})
    machine = load_hardware(study.hardware)
    code = sources.sha256(*ENGINE, fits=calibrate.files_of(machine))
    return f"{study.name}/{tape.trace_id}/{tape.content_sha256}/{settings}/{machine.sha256}/{code}"


def _drawn(store: Store, study: Settings, model: Model, seed: int) -> str:
    drawn = SynthesisSettings(requests=study.requests, prompt=study.prompt, output=study.output, seed=seed, scores=True)
    return synthesize(model.name, models.load(model.name).geometry, drawn, store)


def _recorded(store: Store, model: Captured, seed: int) -> str:
    """The seed draws what the model writes: sampled at its own temperature."""
    settings = CaptureSettings(
        model=model.name,
        dataset=model.dataset,
        max_requests=model.requests,
        max_prompt_tokens=model.prompt,
        max_new_tokens=model.output,
        temperature=1.0,
        seed=seed,
    )
    return capture(settings, store, resume=True)


def _sweeps(study: Settings, model: Model | Captured, trace: Trace) -> list[Sweep]:
    """Every sweep of one tape, each once."""
    if isinstance(model, Captured):
        whole_bytes = trace.n_keys * sum(slices_of(trace.geometry, System(study.pairs[0], "high-bit").cache))
        capacities = [round(share * whole_bytes) for share in model.capacities_frac]
        return [s for capacity, pair in product(capacities, study.pairs) for s in _unheld(study, pair, capacity)]
    capacities = [round(gb * 1e9) for gb in study.capacities_gb]
    found = [s for capacity, pair in product(capacities, study.pairs) for s in _unheld(study, pair, capacity)]
    baseline, dbsc = System(study.pairs[0], "high-bit"), System(study.pairs[0], "dbsc", study.taus[0])
    held_bytes, prior = round(study.held_capacity_gb * 1e9), (study.prior_strength,)
    for target_frac in study.targets:
        found.append((replace(baseline, target_frac=target_frac), (0.0, *prior), held_bytes))
        found += [
            (replace(s, target_frac=target_frac), prior, held_bytes) for s in (replace(baseline, configuration="low-bit"), dbsc)
        ]
    held = replace(dbsc, target_frac=study.warmup_target_frac)
    found += [(replace(held, warmup=warmup), prior, held_bytes) for warmup in WARMUPS]
    expert_bytes = sum(slices_of(trace.geometry, baseline.cache))
    found.append((baseline, (0.0, *prior), round(study.anchor_cached_frac * trace.n_keys * expert_bytes)))
    return list(dict.fromkeys(found))


def _unheld(study: Settings, pair: str, capacity_bytes: int) -> list[Sweep]:
    """Every system without a budget, at one pair of widths and one cache."""
    systems = [System(pair, name) for name in CONFIGURATIONS]
    systems += [System(pair, "dbsc", tau, warmup) for tau in study.taus for warmup in ("last_layer", "pcw")]
    cumsum = System(pair, "high-bit", router="cumsum")
    return [*((system, study.strengths, capacity_bytes) for system in systems), (cumsum, study.shares, capacity_bytes)]


def _warmups(study: Settings, trace: Trace, scores: Scores, seed: int) -> list[dict[str, Any]]:
    """DBSC under the warm-ups' budget from every initial state, over growing windows."""
    held = System(study.pairs[0], "dbsc", study.taus[0], target_frac=study.warmup_target_frac)
    capacity_bytes, machine = round(study.held_capacity_gb * 1e9), load_hardware(study.hardware)
    rows = []
    for warmup in WARMUPS:
        policy = replace(replace(held, warmup=warmup).composed(), router=ROUTERS["cache_prior"](strength=study.prior_strength))
        result = replay_sliced(trace, scores, policy, machine, capacity_bytes, start="cold", seed=seed)
        named = {"warmup": warmup, "budget": held.budget, "strength": study.prior_strength, "capacity_bytes": capacity_bytes}
        rows += [{**named, **costs} for costs in window_costs(trace, result, study.windows)]
    return rows
