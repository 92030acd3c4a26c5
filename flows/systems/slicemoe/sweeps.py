"""Sweeps of sliced systems over one tape, synthetic or captured: rows of `slicemoe_points` and `warmup_points`.

A tape's rows are one file per table, written when they are complete: an interrupted study goes on at the next tape.
"""

from math import isnan
from typing import Any, NamedTuple

from tokentape.capture.synthetic.tape import SynthesisSettings, synthesize
from tokentape.flows import sources
from tokentape.flows.grid import load_hardware
from tokentape.flows.study_file import Made
from tokentape.flows.systems.slicemoe.settings import WARM_UPS, Captured, Model, Settings
from tokentape.flows.tapes import composed, scored_trace
from tokentape.hw import calibrate
from tokentape.policies.resolve import Value
from tokentape.policies.sliced import SliceMoE
from tokentape.replay.system.recorded import recorded
from tokentape.replay.system.routes import slices_of
from tokentape.replay.system.slicemoe import early_costs, point_of, steps_of
from tokentape.warehouse import models
from tokentape.warehouse.tape import Store, Tape

ENGINE = ("tokentape.replay.system.slicemoe",)
PULLS = {"cache_prior": "strength", "cumsum": "share_frac"}  # of a router: 0 is stock
MEASURED = (  # metrics of a point
    "kept_gate_mass_frac", "strayed_frac", "high_bit_miss_frac", "critical_per_layer", "decode_step_s",
    "decode_energy_j_per_token", "flash_energy_frac", "early_step_s", "early_energy_j_per_token",
)  # fmt: skip


class Job(NamedTuple):
    """A tape: drawn for a model, or recorded, with a seed. output: tokens of its generations, 0: the study's."""

    model: Model | Captured
    seed: int
    output: int = 0

    def __str__(self) -> str:
        return f"{self.model.name}, seed {self.seed}" + (f", {self.output} tokens" if self.output else "")


class System(NamedTuple):
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
    def policy(self) -> SliceMoE:
        held: dict[str, Value] = {} if self.target_frac is None else {"budget": "hard", "budget.target_frac": self.target_frac}
        critical: dict[str, Value] = {} if self.tau is None else {"precision.tau": self.tau}
        routed: dict[str, Value] = {"router": self.router, f"router.{PULLS[self.router]}": self.strength}
        return composed({"pair": self.pair, "precision": self.configuration, "warmup": self.warmup, **critical, **held, **routed})


def of_tape(store: Store, study: Settings, job: Job) -> str:
    """Writes what is missing of one tape's rows, and the tape itself where it is missing; what its points are `of`."""
    trace_id = _recorded(store, job.model, job.seed) if isinstance(job.model, Captured) else _drawn(store, study, job)
    of = _decided_by(study, store.open(trace_id))
    return study.once(store, of, "slicemoe_points", lambda: _swept(store, study, job, trace_id))


def _swept(store: Store, study: Settings, job: Job, trace_id: str) -> Made:
    model, seed, output = job
    trace, scores = scored_trace(store, trace_id)
    tape, n_steps = recorded(trace, scores=scores), int(steps_of(trace).max())
    machine = load_hardware(study.hardware)
    where = {"trace_id": trace_id, "model_id": model.name, "seed": seed, "hardware": machine.name}
    whole_bytes = trace.n_keys * sum(slices_of(trace.geometry, composed({"pair": study.pair}).cache))
    points = dict[tuple[System, int], bool]()  # each once, and whether it is a warm-up
    for grid in (grid for grid in study.grid if (grid.is_captured, grid.output) == (isinstance(model, Captured), output)):
        for fields in grid.points():
            sizes = round(fields.pop("capacity_frac", 0.0) * whole_bytes), round(fields.pop("capacity_gb", 0.0) * 1e9)
            if min(sizes) != 0 or max(sizes) <= 0:
                raise ValueError(f"series {grid.series}: give a point capacity_gb or capacity_frac, above 0")
            point = System(**fields), max(sizes)
            points[point] = points.get(point, False) or grid.series == WARM_UPS
    rows, warmups = [], []
    for (system, capacity_bytes), is_warmup in points.items():
        found, cost = point_of(trace, tape, system.policy, machine, capacity_bytes, seed)
        of = {**where, "capacity_bytes": capacity_bytes}
        if isnan(found["high_bit_miss_frac"]):
            raise ValueError(f"{job}: no answer is longer than {system.policy.free_steps} tokens, from which misses count")
        named = system._asdict() | {"budget": system.budget}
        rows.append(of | named | {name: found[name] for name in MEASURED})
        if is_warmup:
            of |= {name: named[name] for name in ("warmup", "budget", "strength")}
            windows = (n for n in study.windows if n <= n_steps)
            warmups += [of | {"window_steps": n} | early_costs(trace, cost, n) for n in windows]
    return {"warmup_points": warmups, "slicemoe_points": rows}


def _decided_by(study: Settings, tape: Tape) -> str:
    """What a tape's rows are of: the tape, the settings and the code that decide them."""
    settings = study.model_dump_json(exclude={"question", "models", "seeds", "live", "gains", "pairs", "answers"})
    machine = load_hardware(study.hardware)
    code = sources.sha256(*ENGINE, fits=calibrate.files_of(machine))
    return f"{tape.trace_id}/{tape.content_sha256}/{settings}/{machine.sha256}/{code}"


def _drawn(store: Store, study: Settings, job: Job) -> str:
    length = {"prompt": study.prompt, "output": job.output or study.output}
    drawn = SynthesisSettings(requests=study.requests, seed=job.seed, scores=True, **length)
    return synthesize(job.model.name, models.load(job.model.name).geometry, drawn, store)


def _recorded(store: Store, model: Captured, seed: int) -> str:
    """The seed draws what the model writes: sampled at its own temperature."""
    from tokentape.capture.run import CaptureSettings, capture  # needs torch

    sizes: dict[str, Any] = {"max_requests": model.requests, "max_prompt_tokens": model.prompt, "max_new_tokens": model.output}
    return capture(CaptureSettings(model.name, model.dataset, temperature=1.0, seed=seed, **sizes), store, resume=True)
