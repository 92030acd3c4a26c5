"""The SliceMoE study: sweeps on synthetic tapes, systems matched at equal quality, and what that says about the paper's numbers.

Only claims of role `calibrate` are fitted: the LRU miss rates, by the tapes' generator (capture/synthetic), and the gains of
DeepSeek-V2-Lite, by the choice of tau among those of the study file. The other model's gains are predicted with that tau.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import BaseModel, ConfigDict

from capture.synthetic.tape import SynthesisSettings, synthesize
from flows.grid import load_hardware, source_sha256
from flows.slicemoe_answers import answers
from hw.spec import HardwareSpec
from policies.matryoshka import MAT
from policies.sliced import BUDGETS, PRECISIONS, WARMUPS, SlicedCache, SliceMoE
from replay.matched import sweep
from replay.scores import Scores, scores_from_table
from replay.sliced import slices_of
from replay.trace import Trace, trace_from_tables
from warehouse import models
from warehouse.results import side_path, write_rows
from warehouse.tape import Store

NAME = "slicemoe"
FILE = Path(__file__).parent / "systems" / "slicemoe.toml"
BASELINE = ("high-bit", None, "last_layer")
CONFIGURATIONS = ("high-bit", "low-bit", "amat")  # those whose precision has no tau


class Model(BaseModel):
    """A model of the study. low_bit_cost: quality lost where all mass is at the low width."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str
    low_bit_cost: float
    calibrates: bool


class Settings(BaseModel):
    """flows/systems/slicemoe.toml."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    question: str
    hardware: str
    pair: str
    capacities_gb: tuple[float, ...]
    seeds: tuple[int, ...]
    requests: int
    prompt: int
    output: int
    strengths: tuple[float, ...]
    taus: tuple[float, ...]
    quality_frac: float
    anchor_cached_frac: float
    prior_strength: float
    warmup_target_frac: float
    warmup_capacity_gb: float
    models: tuple[Model, ...]


@dataclass(frozen=True)
class System:
    """One line of a sweep, as table `sliced_points` names it."""

    configuration: str
    tau: float | None
    warmup: str
    target_frac: float | None = None

    @property
    def budget(self) -> str:
        return "none" if self.target_frac is None else f"hard {self.target_frac:g}"

    def composed(self, pair: MAT) -> SliceMoE:
        """The policy; the sweep puts the router in."""
        precision = PRECISIONS[self.configuration](**({} if self.tau is None else {"tau": self.tau}))
        budget = BUDGETS["none"]() if self.target_frac is None else BUDGETS["hard"](target_frac=self.target_frac)
        cache = SlicedCache(bits_high=pair.high, bits_low=pair.low)
        return SliceMoE(cache=cache, precision=precision, budget=budget, warmup=WARMUPS[self.warmup]())


def settings() -> Settings:
    """The study as shipped."""
    return Settings.model_validate(tomllib.loads(FILE.read_text(encoding="utf-8")))


def run(store: Store, progress: Callable[..., None], chosen: Settings | None = None) -> list[dict[str, Any]]:
    """Runs what is missing of the study, writes its points and answers, and returns the answers.

    A tape's points are one file, written when they are complete: an interrupted study goes on at the next tape.
    """
    study = chosen or settings()
    machine = load_hardware(study.hardware)
    todo = [(model, seed) for model in study.models for seed in study.seeds]
    points = []
    for i, (model, seed) in enumerate(todo):
        progress(i, len(todo), f"{model.name}, seed {seed}")
        points.append(_points(store, study, machine, model, seed))
    progress(len(todo), len(todo), "")
    made = answers(study, machine, pl.concat(points, how="vertical_relaxed"))
    write_rows(store, "answers", made, of=NAME)
    return made


def _points(store: Store, study: Settings, machine: HardwareSpec, model: Model, seed: int) -> pl.DataFrame:
    """All sweeps over one tape; read where an earlier run of the same code and settings made them."""
    drawn = SynthesisSettings(requests=study.requests, prompt=study.prompt, output=study.output, seed=seed, scores=True)
    trace_id = synthesize(model.name, models.load(model.name).geometry, drawn, store)
    of = f"{NAME}/{trace_id}/{study.model_dump_json(exclude={'models', 'seeds'})}/{machine.sha256}/{source_sha256()}"
    path = side_path(store, "sliced_points", of)
    if store.fs.exists(path):
        with store.fs.open(path, "rb") as handle:
            return pl.read_parquet(handle)
    trace, scores = _read(store, trace_id)
    where = {"study": NAME, "trace_id": trace_id, "model_id": model.name, "seed": seed, "hardware": machine.name}
    rows = []
    for system, strengths, capacity_bytes in _sweeps(study, trace):
        made = sweep(
            trace, scores, system.composed(MAT.parse(study.pair)), strengths, model.low_bit_cost, machine, capacity_bytes, seed
        )
        named = {name: getattr(system, name) for name in ("configuration", "tau", "warmup", "budget")}
        rows += [{**where, "capacity_bytes": capacity_bytes, **named, **asdict(point)} for point in made]
    write_rows(store, "sliced_points", rows, of=of)
    return pl.DataFrame(rows, infer_schema_length=None)


def _read(store: Store, trace_id: str) -> tuple[Trace, Scores]:
    tape = store.open(trace_id)
    trace = trace_from_tables(trace_id, tape.geometry, tape.manifest.origin, tape.read("routing"), tape.read("passes"))
    return trace, scores_from_table(trace, tape.read("scores"), tape.manifest.score_rule, tape.manifest.score_params)


def _sweeps(study: Settings, trace: Trace) -> list[tuple[System, tuple[float, ...], int]]:
    """Every sweep of one tape: system, strengths, cache bytes."""
    sliced = [System("dbsc", tau, warmup) for tau in study.taus for warmup in ("last_layer", "pcw")]
    systems = [System(name, None, "last_layer") for name in CONFIGURATIONS] + sliced
    found = [(system, study.strengths, round(gb * 1e9)) for gb in study.capacities_gb for system in systems]
    held = [System("dbsc", study.taus[0], warmup, study.warmup_target_frac) for warmup in WARMUPS]
    found += [(system, (study.prior_strength,), round(study.warmup_capacity_gb * 1e9)) for system in held]
    expert_bytes = sum(slices_of(trace.geometry, SlicedCache(*_widths(study))))
    anchor_bytes = round(study.anchor_cached_frac * trace.n_keys * expert_bytes)
    return [*found, (System(*BASELINE), (0.0, study.prior_strength), anchor_bytes)]


def _widths(study: Settings) -> tuple[int, int]:
    pair = MAT.parse(study.pair)
    return pair.high, pair.low
