"""The Layered Prefill study: schedulers of MoE serving under the paper's loads and others, and what they say about its numbers.

Only claims of role `calibrate` are fitted, by the constants in hw/fits (replay/serving/fit.py).
"""

import fnmatch
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from tokentape.capture.importers.request_traces import import_requests
from tokentape.flows.answers import Query, Row, answered, stated
from tokentape.flows.grid import load_trace
from tokentape.flows.options import folder_named_by
from tokentape.flows.running import Running
from tokentape.flows.serving.setup import Point, engine_of, paper_coverage
from tokentape.flows.study_file import Grid, Part, StudyFile
from tokentape.flows.systems.layered_prefill.points import of_job
from tokentape.hw import serving_fits
from tokentape.replay.serving.coverage_points import error_lines, of_paper, of_tape
from tokentape.replay.serving.facts import PAPER
from tokentape.replay.serving.metrics import ServiceLevel
from tokentape.warehouse import models
from tokentape.warehouse.results import rows_of
from tokentape.warehouse.tape import Store

ARRIVALS = "TOKENTAPE_ARRIVALS"  # names the folder of recorded arrivals
COVERED = "qwen3-30b-a3b"  # the model whose coverage the paper prints


class Group(Grid):
    """Of serving points: fields of Point, and of its scheduler.

    claims: patterns of ids that a point answers, with its fields and `rate` in braces. against: fields of the point that it is
    compared with, where they differ. attainment: over a grid of limits. last_rate: up to where the paper sweeps attainment.
    window: iterations of one run are kept.
    """

    claims: tuple[str, ...] = ()
    against: dict[str, Any] | None = None
    attainment: bool = False
    last_rate: float | None = None
    window: bool = False


class Level(Part):
    """A service level. Source: Layered Prefill Table 5."""

    models: tuple[str, ...]
    workloads: tuple[str, ...]
    ttft_s: float
    tbt_s: float


class Window(Part):
    """The stretch of a run that is drawn: seed of the run, the moment from which, and for how long."""

    seed: int
    start_s: float
    seconds: float


class Trace(Grid):
    """Recorded arrivals: their file in the folder of traces; windows: stretches of it, one per seed."""

    file: str
    importer: str
    windows: int


class Settings(StudyFile):
    """study.toml. served: fields of every point that its grid leaves out. n_claim_seeds: of points that answer claims; n_seeds:
    of the others."""

    SHIPPED = Path(__file__).parent / "study.toml"

    served: dict[str, Any]
    n_seeds: int
    n_claim_seeds: int
    ttft_factors: tuple[float, ...]
    tbt_factors: tuple[float, ...]
    window: Window
    levels: tuple[Level, ...]
    metrics: dict[str, str]
    decode_steps: dict[str, tuple[int, int]]
    drops: dict[str, float]
    holds: dict[str, float]
    traces: tuple[Trace, ...]
    grid: tuple[Group, ...] = Field(min_length=1)
    answers: tuple[Query, ...] = ()

    def level(self, point: Point) -> ServiceLevel | None:
        """The paper's limits for this model and workload; None where it has none."""
        for level in self.levels:
            if point.model in level.models and point.workload in level.workloads:
                return ServiceLevel(level.ttft_s, level.tbt_s)
        return None


@dataclass(frozen=True, eq=False)
class Job:
    """One point of a group; claims: patterns of the ids that it answers."""

    group: Group
    point: Point
    claims: tuple[str, ...] = ()
    against: Point | None = None

    def __str__(self) -> str:
        rate = "" if self.point.rate_per_s is None else f" at {self.point.rate_per_s:g}/s"
        return f"{self.group.series}: {self.point.scheduler}{rate}"


def jobs(study: Settings) -> list[Job]:
    """Every point, in the order of the file."""
    return [job for group in study.grid for job in _of_group(study, group)]


def _of_group(study: Settings, group: Group) -> Iterator[Job]:
    for fields in group.points():
        given = {"n_seeds": study.n_claim_seeds if group.claims else study.n_seeds, **study.served} | fields
        point = point_of(group.series, given)
        engine = {name: value for name, value in given.items() if name in Point.model_fields}
        against = None if group.against is None else point_of(group.series, engine | group.against)
        named = point.model_dump() | point.params | {"rate": f"{point.rate_per_s:g}" if point.rate_per_s else ""}
        try:
            told = tuple(pattern.format(**named) for pattern in group.claims)
        except (LookupError, AttributeError, TypeError, ValueError) as error:
            fields_are = f"fields are {', '.join(named)}"
            raise ValueError(f"series {group.series}: claims {list(group.claims)}: {error}; {fields_are}") from error
        yield Job(group, point, told, against)


def point_of(series: str, fields: dict[str, Any]) -> Point:
    """A point of its own fields and those of its scheduler; gaps between arrivals are Poisson's unless they say otherwise.

    Raises ValueError naming the series and the field that is missing or of another type.
    """
    own = {name: value for name, value in fields.items() if name in Point.model_fields}
    params = {name: value for name, value in fields.items() if name not in own}
    arrival = "poisson" if own.get("cv", 1.0) == 1.0 else "gamma"
    try:
        return Point.model_validate({"arrival": arrival, **own, "params": params}, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"series {series}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def recorded(store: Store, study: Settings) -> tuple[list[Job], list[str]]:
    """Points of every trace that is there, imported into the store, and a line for each that is not."""
    found, missing, place = [], [], folder_named_by(ARRIVALS, "recorded arrivals")
    for trace in study.traces:
        path = place / trace.file if place else Path(trace.file)
        if place is None or not path.is_file():
            missing.append(f"{trace.series}: {path} is not there, its points are left out; set {ARRIVALS} to its folder")
            continue
        served: dict[str, Any] = {"workload": import_requests(path, store, trace.importer), "arrival": "trace"}
        served |= {"windows": trace.windows, "n_seeds": trace.windows, "client": False}
        served = study.served | served
        found += [Job(Group(series=trace.series), point_of(trace.series, fields | served)) for fields in trace.points()]
    return found, missing


def run(at: Running) -> list[Row]:
    """The answers. Says what is left out, and how far each form of coverage is off."""
    study, wanted = at.study, jobs(at.study)
    replayed, missing = recorded(at.store, study)
    at.tell(missing)
    at.expect(wanted, replayed)
    ran = dict(at.each(of_job, [*wanted, *replayed]))
    absent = {trace.series for trace in study.traces} - {job.group.series for job in replayed}
    study.only(at.store, "serving_points", ran.values(), lambda of: of["series"] in absent)
    rows = {job: rows_of(at.store, "serving_points", ran[job]) or [] for job in wanted}
    made = [] if study.is_copy else answers(at.store, study, rows)
    covered = coverage(at.store)
    at.write({"answers": made, "coverage_points": covered})
    at.tell(error_lines(covered))
    return made


def answers(store: Store, study: Settings, points: Mapping[Job, list[Row]]) -> list[Row]:
    """points: rows of serving_points. Raises ValueError for a pattern of the study file that names no claim."""
    lead = {"metric": "slo_clear_advantage_rate", "share": 0.5, "kind": "lead"}  # half of the requests, assumed
    falls = [
        {"metric": m, "share": s, "kind": k} for k, of in (("drop", study.drops), ("hold", study.holds)) for m, s in of.items()
    ]
    metrics = [{"metric": m, "ours": of.lstrip("-"), "sign": -1.0 if of[0] == "-" else 1.0} for m, of in study.metrics.items()]
    served, asked, steps = list[Row](), list[Row](), list[Row]()
    for i, (job, rows) in enumerate(points.items()):
        point = job.point
        of = {
            "job": i,
            "series": job.group.series,
            "words": str(job),
            "is_compared": job.against is not None,
            "last_rate": job.group.last_rate,
        }
        of |= {name: getattr(point, name) for name in ("scheduler", "model", "workload", "n_seeds")}
        of |= {"rate": point.rate_per_s or 0.0, "chunk_tokens": point.params.get("chunk_tokens", 512)}
        served += [of | {name: row[name] for name in ("metric", "value", "low", "high")} for row in rows]
        for pattern in job.claims:
            ids = fnmatch.filter(stated(PAPER), f"{PAPER}/{pattern}")
            if not ids:
                raise ValueError(f"study {study.name}, series {job.group.series}: no claim is named {PAPER}/{pattern}")
            asked += [{"job": i, "claim_id": claim_id} for claim_id in ids]
    for name, (batch, context) in study.decode_steps.items():
        cost = engine_of(store, Point(scheduler="chunked", model=name.split("/")[2], profile=study.served["profile"])).cost
        step = {"batch": batch, "context": context, "seconds": cost.decode_step_s(batch, context)}
        steps.append({"claim_id": f"{PAPER}/{name}", **step})
    covered = engine_of(store, Point(scheduler="chunked", profile=study.served["profile"])).cost.cov_decode[:, 0]
    shares = [{"n": n, "share": share} for n, share in enumerate(covered.tolist())]
    asked = asked or [{"job": -1, "claim_id": ""}]
    made = {"served": served, "asked": asked, "metrics": metrics, "falls": [*falls, lead], "steps": steps, "coverage": shares}
    return answered(study.answers, PAPER, made)


def coverage(store: Store) -> list[Row]:
    """Rows of coverage_points: the paper's table, and every tape of the store."""
    published = paper_coverage(serving_fits.load("h100x2").constants.prefill_correlation)
    rows = of_paper(COVERED, models.load(COVERED).geometry, published)
    for tape in store.readable():
        if tape.has("routing") and tape.geometry.moe_layers:
            rows += of_tape(load_trace(store, tape.trace_id), tape.manifest.model_id, published)
    return rows
