"""What the Kelle study runs: study.toml, checked and multiplied out, and what it computes with."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from types import GenericAlias
from typing import Any, Literal, get_type_hints

from pydantic import Field

from tokentape.flows.answers import Query, stated
from tokentape.flows.grid import load_hardware
from tokentape.flows.study_file import Grid, Part, StudyFile
from tokentape.policies.kv.refresh import RetentionCurve
from tokentape.policies.names import refuse_unknown
from tokentape.replay.kelle.rows import Cell, Chip, Refresh, Requests, Setup, Variant
from tokentape.replay.kelle.systems import FITS, PROFILE, SYSTEMS, Accounting, Shares, Work, decisions, systems
from tokentape.warehouse import models

PAPER = "kelle"
MEAN_FAILURE = "kelle/7.1/retention_failure_average/four-default-intervals"
COUNTED = GenericAlias(dict, (Literal[tuple(get_type_hints(Accounting))], bool | Literal["final", "mean"]))
VARIED = {of.name: get_type_hints(Variant)[of.name] for of in fields(Variant)} | {"accounting": COUNTED}
OF_WORK = ("batch", "budget_tokens", "n_decode_tokens")


class Group(Grid):
    """Decode steps: a model, a workload and what of it is changed, a system, fields of a variant; all where none is given."""

    FIELDS = VARIED | dict.fromkeys(("model", "workload", "system"), str) | dict.fromkeys(OF_WORK, int)

    role: Literal["calibrate", "predict", "report"] = "report"


class Inside(Grid):
    """Jobs inside the model that fill a table: a KV policy, its parameters and how it stores keys and values, as `tokentape
    evaluate --policy` takes them; data set and lengths, where they are others than the rest's.

    setting: what tells a cache from others of its name; value: the number in it. loses: which groups of bits lose some, at the
    rate `value`. intervals_us: of the groups; is_uniform: one interval for all at which a cache is refreshed as often.
    """

    table: str


class Live(Part):
    """What is measured inside a model. prompt, output: tokens of a window of text; batch: requests of a decode step that is
    costed."""

    model: str
    dataset: str
    seeds: tuple[int, ...]
    prompt: int
    output: int
    batch: int
    grid: tuple[Inside, ...]


class Settings(StudyFile):
    """study.toml. profile: the cost profile; machines: another in place of a shipped one; told: checks that every run says;
    bars: the largest value of a check."""

    SHIPPED = Path(__file__).parent / "study.toml"

    models: tuple[str, ...]
    typical_err_frac: float = Field(ge=0)
    worst_err_frac: float = Field(ge=0)
    profile: str = PROFILE
    machines: dict[str, str] = Field(default={})
    workloads: dict[str, Work]
    refresh: Refresh
    chip: Chip
    requests: Requests
    grid: tuple[Group, ...]
    checks: tuple[Query, ...]
    told: tuple[str, ...]
    bars: dict[str, float]
    answers: tuple[Query, ...]
    live: Live

    def decide(self, row: Mapping[str, Any]) -> dict[str, str]:
        """What the row's system keeps, and how often its cells are refreshed."""
        return decisions(row["system"]) if "system" in row else {}

    @property
    def named_models(self) -> list[str]:
        """Every model that the file names."""
        swept = (given["model"] for group in self.grid for given in group.points(model=self.models))
        return list(dict.fromkeys((*self.models, *swept, self.chip.model, self.requests.model)))

    def points(self, group: Group) -> Iterator[Cell]:
        """Of a group: model, name of the workload and the work, system, and what is changed."""
        for given in group.points(model=self.models, workload=tuple(self.workloads), system=tuple(SYSTEMS)):
            for name, known in (("workload", self.workloads), ("system", SYSTEMS)):
                refuse_unknown(name, given[name], known)
            work = replace(self.workloads[given["workload"]], **{name: given[name] for name in OF_WORK if name in given})
            variant = Variant(**{name: given[name] for name in VARIED if name in given})
            yield given["model"], given["workload"], work, given["system"], variant


def setup(study: Settings, shares: Shares | None = None) -> Setup:
    """What the study computes with. shares: instead of the shipped ones. Raises BadSpec where those are missing."""
    claimed, refresh = stated(PAPER), study.refresh
    refuse_unknown("workload", study.chip.workload, study.workloads)
    mean_frac, intervals_us = claimed[MEAN_FAILURE]["value"], list(refresh.intervals_us.values())
    sensitivity = (variant for group in study.grid if group.series == "sensitivity" for *_, variant in study.points(group))
    return Setup(
        systems=systems(lambda name: load_hardware(study.machines.get(name, name))),
        geometries={name: models.load(name).geometry for name in study.named_models},
        models=study.models,
        workloads=study.workloads,
        shares=shares or FITS.load().constants,
        curves={anchor: RetentionCurve.anchored(anchor, mean_frac, intervals_us) for anchor in refresh.anchors},
        claims=list(claimed.values()),
        refresh=refresh,
        chip=study.chip,
        requests=study.requests,
        sensitivity=tuple({repr(variant): variant for variant in sensitivity}.values()),
        errors=(study.typical_err_frac, study.worst_err_frac),
        profile=study.profile,
    )
