"""What the Layered Prefill study runs: study.toml, checked and multiplied out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import Field

from tokentape.flows.serving.setup import Point
from tokentape.flows.study_file import Part, StudyFile
from tokentape.replay.serving.metrics import ServiceLevel

PAPER = "layered_prefill"
Params = dict[str, int | float | str | tuple[int, ...]]


class Group(Part):
    """Points of a series: schedulers x rates x cvs.

    schedulers: name and fields; a field with several values is multiplied out. point: the other fields of Point. claims: patterns
    of claim ids that a point answers, with its rate and its scheduler's fields in braces. against: scheduler and rate that it is
    compared with. attainment: over a grid of limits. window: iterations of one run are kept.
    """

    series: str
    schedulers: tuple[Params, ...]
    rates: tuple[float, ...] = ()
    cvs: tuple[float, ...] = (1.0,)
    claims: tuple[str, ...] = ()
    against: Params | None = None
    attainment: bool = False
    window: bool = False
    point: dict[str, Any] = Field(default={})


class Level(Part):
    """A service level. Source: Layered Prefill Table 5."""

    models: tuple[str, ...]
    workloads: tuple[str, ...]
    ttft_s: float
    tbt_s: float


class Sweep(Part):
    """Series of an SLO sweep; last_rate: up to where the paper sweeps."""

    series: str
    model: str
    workload: str
    last_rate: float


class Window(Part):
    """The stretch of a run that is drawn: seed of the run, the moment from which, and for how long."""

    seed: int
    start_s: float
    seconds: float


class Trace(Part):
    """A trace of arrivals: file in the folder of traces, and the rates its requests are scaled to; windows: one per seed."""

    series: str
    file: str
    importer: str
    rates: tuple[float, ...]
    windows: int
    prefix_cache: bool
    schedulers: tuple[Params, ...]


class Settings(StudyFile):
    """study.toml. n_claim_seeds: of points that answer claims; n_seeds: of the others."""

    SHIPPED = Path(__file__).parent / "study.toml"

    n_seeds: int
    n_claim_seeds: int
    ttft_factors: tuple[float, ...]
    tbt_factors: tuple[float, ...]
    window: Window
    levels: tuple[Level, ...]
    sweeps: tuple[Sweep, ...]
    traces: tuple[Trace, ...]
    groups: tuple[Group, ...]

    def level(self, point: Point) -> ServiceLevel | None:
        """The paper's limits for this model and workload; None where it has none."""
        for level in self.levels:
            if point.model in level.models and point.workload in level.workloads:
                return ServiceLevel(level.ttft_s, level.tbt_s)
        return None


@dataclass(frozen=True)
class Job:
    """One point of the study; claims: patterns of the ids that it answers."""

    series: str
    point: Point
    claims: tuple[str, ...] = ()
    against: Point | None = None
    attainment: bool = False
    window: bool = False

    def __str__(self) -> str:
        rate = "" if self.point.rate_per_s is None else f" at {self.point.rate_per_s:g}/s"
        return f"{self.series}: {self.point.scheduler}{rate}"


def jobs(study: Settings) -> list[Job]:
    """Every point, in the order of the file."""
    return [job for group in study.groups for job in _of_group(study, group)]


def _of_group(study: Settings, group: Group) -> Iterator[Job]:
    for scheduler, rate, cv in product(group.schedulers, group.rates or (None,), group.cvs):
        for fields in _multiplied(scheduler):
            n_seeds = study.n_claim_seeds if group.claims else study.n_seeds
            chosen = {"n_seeds": n_seeds, **group.point, "rate_per_s": rate, "cv": cv}
            chosen["arrival"] = chosen.get("arrival", "poisson" if cv == 1.0 else "gamma")
            point = Point.model_validate({**chosen, **_scheduler(fields)})
            against = None
            if group.against:
                other = dict(group.against)
                chosen["rate_per_s"] = other.pop("rate", rate)
                against = Point.model_validate({**chosen, **_scheduler(other)})
            named = {**fields, "rate": f"{rate:g}" if rate else "", "model": point.model, "workload": point.workload}
            claims = tuple(pattern.format(**named) for pattern in group.claims)
            yield Job(group.series, point, claims, against, group.attainment, group.window)


def _scheduler(fields: dict[str, Any]) -> dict[str, Any]:
    return {"scheduler": fields["name"], "params": {name: value for name, value in fields.items() if name != "name"}}


def _multiplied(scheduler: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A scheduler for each value of its fields that are lists."""
    lists = {name: value for name, value in scheduler.items() if isinstance(value, (list, tuple))}
    for values in product(*lists.values()):
        yield {**scheduler, **dict(zip(lists, values, strict=True))}
