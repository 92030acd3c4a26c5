"""The study of offloading systems: tapes of their models are drawn, and the systems that ship run over them on their machines.

KTransformers' speeds follow from how many experts there are, those of MoE-Infinity also from which: how popular they are is the
generator's default, which no measurement was fitted to. Only claims of role calibrate are fitted (fit.py).
"""

from collections.abc import Mapping
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from tokentape.capture.synthetic.tape import SynthesisSettings, synthesize
from tokentape.flows.answers import Query, Row, answered
from tokentape.flows.running import Running
from tokentape.flows.study import worded
from tokentape.flows.study_file import Grid, Positive, StudyFile
from tokentape.flows.system_grid import asked_of
from tokentape.flows.system_runs import Asked, Workload, room_for, run_asked, tape_of
from tokentape.warehouse import models
from tokentape.warehouse.tables import TABLES
from tokentape.warehouse.tape import Store

PAPER = "offloaders"
OF_RUN = ("system", "machine", "expert_format")
METRICS = ("tbt_mean_s", "ttft_mean_s", "tokens_per_s")  # that claims are answered with


class Drawn(NamedTuple):
    """A tape: fields of its points. top_k: experts of a token, of a model's own number or fewer."""

    model: str
    top_k: Positive
    prompt: Positive
    output: int
    requests: Positive


class Points(Grid):
    """Runs: the fields of a tape, those of a run, and where it stands in the study's figure (flows/study.py)."""

    FIELDS = Drawn.__annotations__ | {"batch": Positive} | dict.fromkeys((*OF_RUN, "panel", "line", "x"), str)
    NEEDED = (*Drawn._fields, "batch", *OF_RUN)


class Settings(StudyFile):
    """study.toml. seed: of the tapes."""

    SHIPPED = Path(__file__).parent / "study.toml"

    seed: int
    grid: tuple[Points, ...]
    answers: tuple[Query, ...]

    @property
    def points(self) -> list[Row]:
        """Fields of every run, with its series and its place."""
        every = (dict(fields, series=grid.series) for grid in self.grid for fields in grid.points())
        return [fields | {"place": place} for place, fields in enumerate(every)]


def run(at: Running) -> list[Row]:
    """The answers; of a copy, none."""
    study = at.study
    tapes = sorted({drawn_of(fields) for fields in study.points}, key=lambda tape: (-tape.prompt * tape.requests, tape))
    at.expect(tapes)
    rows = [row for _, rows in at.each(of_tape, tapes) for row in rows]
    answers = [] if study.is_copy else answered(study.answers, PAPER, {"points": rows})
    shown = [{name: row[name] for name in TABLES["study_points"].columns if name != "study"} for row in rows]
    at.write({"study_points": sorted(shown, key=itemgetter("place")), "answers": answers})
    return answers


def drawn_of(fields: Mapping[str, Any]) -> Drawn:
    """Raises ValueError for a model that there is not, and for more experts of a token than its own."""
    drawn = Drawn(*(fields[name] for name in Drawn._fields))
    own = models.load(drawn.model).geometry.top_k
    if 0 < own < drawn.top_k:
        raise ValueError(f"top_k = {drawn.top_k}: {drawn.model} takes {own} experts of a token, or fewer")
    return drawn


def of_tape(store: Store, study: Settings, tape: Drawn) -> list[Row]:
    """A row per run over a tape: its fields, and the metrics with their ends."""
    trace_id = draw(store, tape, study.seed)
    return [row_of(store, trace_id, fields) for fields in study.points if drawn_of(fields) == tape]


def draw(store: Store, tape: Drawn, seed: int) -> str:
    """Draws the tape, unless the store holds it; its id."""
    geometry = models.load(tape.model).geometry.model_copy(update={"top_k": tape.top_k})
    settings = SynthesisSettings(tape.requests, tape.prompt, tape.output, seed, scores=False)
    return synthesize(tape.model, geometry, settings, store)


def asked_for(store: Store, trace_id: str, fields: Mapping[str, Any]) -> Asked:
    """A point's run: `batch` requests at once, with the room for experts that the GPU has beside weights, keys and values."""
    asked = replace(asked_of({name: fields[name] for name in OF_RUN}, trace_id), workload=Workload(batch=fields["batch"]))
    return replace(asked, budget=f"{room_for(store, asked, tape_of(store, trace_id, None), asked.machine)}B")


def claimed(fields: Mapping[str, Any]) -> str:
    """The setting of the claims that a point answers."""
    return ", ".join((fields["series"], worded(fields, "line"), worded(fields, "x")))


def row_of(store: Store, trace_id: str, fields: Mapping[str, Any]) -> Row:
    """A run as answers and the figure take it: where it stands, and the metrics with their ends."""
    asked = asked_for(store, trace_id, fields)
    result_id, result = run_asked(store, asked)
    ends = {"": "value", "_low": "low", "_high": "high"}
    found = {f"{name}{end}": getattr(result.metrics.get(name), of, None) for name in METRICS for end, of in ends.items()}
    told = {"hardware": asked.hardware.name, "trace_id": trace_id, "seed": 0, "result_id": result_id, "reason": None}
    stands = {name: worded(fields, name) for name in ("panel", "line", "x")}
    return {**fields, **stands, **told, **found, "setting": claimed(fields)}
