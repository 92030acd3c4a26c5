"""Sweeps of sliced systems over one tape, synthetic or captured: rows of `slicemoe_points` and `warmup_points`.

A tape's rows are one file per table, written when they are complete: an interrupted study goes on at the next tape.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from tokentape.capture.run import CaptureSettings, capture
from tokentape.capture.synthetic.tape import SynthesisSettings, synthesize
from tokentape.flows import sources
from tokentape.flows.grid import load_hardware
from tokentape.flows.scored import scored_trace
from tokentape.flows.study_file import Made
from tokentape.flows.systems.slicemoe.settings import WARM_UPS, Captured, Model, Settings
from tokentape.hw import calibrate
from tokentape.policies.matryoshka import MAT
from tokentape.policies.sliced import BUDGETS, PRECISIONS, ROUTERS, WARMUPS, SlicedCache, SliceMoE
from tokentape.replay.matched import sweep
from tokentape.replay.scores import Scores
from tokentape.replay.slicemoe.cost import PROFILE
from tokentape.replay.slicemoe.replay import replay_sliced
from tokentape.replay.system.routes import slices_of
from tokentape.replay.trace import Trace
from tokentape.replay.windows import window_costs
from tokentape.warehouse import models
from tokentape.warehouse.tape import Store, Tape

ENGINE = ("tokentape.replay.matched", "tokentape.replay.windows")


class Job(NamedTuple):
    """A tape: drawn for a model, or recorded, with a seed."""

    model: Model | Captured
    seed: int

    def __str__(self) -> str:
        return f"{self.model.name}, seed {self.seed}"


@dataclass(frozen=True)
class System:
    """A point of a sweep, as view `slicemoe_points` names it."""

    pair: str
    configuration: str
    tau: float | None = None
    warmup: str = "last_layer"
    router: str = "cache_prior"
    target_frac: float | None = None
    strength: float = 0.0

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


def of_tape(store: Store, study: Settings, job: Job) -> str:
    """Writes what is missing of one tape's rows, and the tape itself where it is missing; what its points are `of`."""
    model, seed = job
    trace_id = _recorded(store, model, seed) if isinstance(model, Captured) else _drawn(store, study, model, seed)
    of = _decided_by(study, store.open(trace_id))
    return study.once(store, of, "slicemoe_points", lambda: _swept(store, study, job, trace_id))


def _swept(store: Store, study: Settings, job: Job, trace_id: str) -> Made:
    model, seed = job
    trace, scores = scored_trace(store, trace_id)
    machine = load_hardware(study.hardware)
    where = {"trace_id": trace_id, "model_id": model.name, "seed": seed, "hardware": machine.name}
    whole_bytes = trace.n_keys * sum(slices_of(trace.geometry, System(study.pair, "high-bit").cache))
    points = dict[tuple[System, int], bool]()  # each once, and whether it is a warm-up
    for grid in (grid for grid in study.grid if grid.is_captured == isinstance(model, Captured)):
        for fields in grid.points():
            share, gb = fields.pop("capacity_frac", 0.0), fields.pop("capacity_gb", 0.0)
            point = System(**fields), round(share * whole_bytes) or round(gb * 1e9)
            points[point] = points.get(point, False) or grid.series == WARM_UPS
    rows, warmups = [], []
    for (system, capacity_bytes), is_warmup in points.items():
        on = (model.low_bit_cost, machine, capacity_bytes, seed)
        (made,) = sweep(trace, scores, system.composed(), system.router, (system.strength,), *on)
        named = {name: getattr(system, name) for name in ("pair", "configuration", "tau", "router", "warmup", "budget")}
        rows.append({**where, "capacity_bytes": capacity_bytes, **named, **asdict(made)})
        if is_warmup:
            warmups += [where | row for row in _windows(study, trace, scores, system, capacity_bytes, seed)]
    return {"warmup_points": warmups, "slicemoe_points": rows}


def _decided_by(study: Settings, tape: Tape) -> str:
    """What a tape's rows are of: the tape, the settings and the code that decide them."""
    settings = study.model_dump_json(exclude={"question", "models", "seeds", "live"})
    machine = load_hardware(study.hardware)
    code = sources.sha256(*ENGINE, fits=calibrate.files_of(machine))
    return f"{tape.trace_id}/{tape.content_sha256}/{settings}/{machine.sha256}/{code}"


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


def _windows(
    study: Settings, trace: Trace, scores: Scores, system: System, capacity_bytes: int, seed: int
) -> list[dict[str, Any]]:
    """A warm-up over growing windows."""
    policy = replace(system.composed(), router=ROUTERS[system.router](strength=system.strength))
    machine = load_hardware(study.hardware)
    result = replay_sliced(trace, scores, policy, machine, capacity_bytes, start="cold", seed=seed, profile=PROFILE)
    named = {"warmup": system.warmup, "budget": system.budget, "strength": system.strength, "capacity_bytes": capacity_bytes}
    return [{**named, **costs} for costs in window_costs(trace, result, study.windows)]
