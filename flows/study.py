"""A study: which replays answer a question, as TOML. Shipped ones by name (flows/studies/*.toml), a user's own by path.

Everything is multiplied out: traces x policies (x their seeds) x scopes x capacities x expert formats x hardware, and every
`[[grid]]` of systems. Paths in the file are relative to it.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from tokentape.flows.console import brief
from tokentape.flows.study_file import Grid, Part, own_name, parsed
from tokentape.flows.systems import GRIDS, SYSTEMS, grids
from tokentape.hw.profile import PHYSICAL
from tokentape.policies.names import refuse_unknown, unknown
from tokentape.policies.resolve import resolve
from tokentape.policies.slots import SLOTS
from tokentape.replay.semantics import CHOICES, Semantics

OF_REPLAYS = ("policies", "capacities", "scopes", "hardware")
OF_TEXT = ("trace", "system", "machine", "budget", "model", "expert_format", "profile")
OF_PARTS = ("machine", "workload", *SLOTS)  # whose own fields are given as "machine.links.pcie.peak_bytes_per_s", "kv.budget"


class PolicyEntry(Part):
    """One `[[policies]]` table: name or `file.py:Class`, its parameters, and the seeds where it draws at random."""

    name: str
    params: dict[str, str | int | float | bool] = Field(default={})
    seeds: tuple[int, ...] = Field((0,), min_length=1)


class Points(Grid):
    """`[[grid]]`: runs of systems, by what `compare` takes and by fields of their parts. panel, line, x: where a run stands in
    the study's figure, in which "{residency.budget}" is that field."""

    FIELDS = dict.fromkeys(OF_TEXT, str) | dict.fromkeys(("panel", "line", "x", *SLOTS, *(f"{of}.FIELD" for of in OF_PARTS)), Any)
    NEEDED = ("system", "machine")

    @classmethod
    def is_field(cls, name: str) -> bool:
        part, dot, _ = name.partition(".")
        return name in cls.FIELDS or (bool(dot) and part in OF_PARTS)


def given_of(point: Mapping[str, Any], part: str) -> dict[str, Any]:
    """A point's fields of a part, by their names within it."""
    return {name.removeprefix(f"{part}."): value for name, value in point.items() if name.startswith(f"{part}.")}


def worded(point: Mapping[str, Any], field: str) -> str:
    """A point's panel, line or x. Raises ValueError for a field in it that the point does not have."""

    def value(of: re.Match[str]) -> str:
        if of[1] not in point:
            raise ValueError(f"{field} = {point[field]!r}: the point has no {of[1]}, only {', '.join(point)}")
        if isinstance(number := point[of[1]], float) and "_bytes" in of[1]:
            return brief("B", number)
        return Path(text).stem if (text := str(point[of[1]])).endswith(".toml") else text

    return re.sub(r"\{([^}]+)\}", value, str(point.get(field, "")))


class Study(Part):
    """A parsed study file: replays of policies, or runs of systems."""

    name: str
    question: str
    traces: tuple[str, ...] = Field(("*",), min_length=1)  # patterns over trace ids
    policies: tuple[PolicyEntry, ...] = ()
    capacities: tuple[str, ...] = ()  # as --capacity takes them
    scopes: tuple[str, ...] = ()  # no default: the two answer different questions
    hardware: tuple[str, ...] = ()
    expert_formats: tuple[str, ...] = Field(("auto",), min_length=1)
    profile: str = PHYSICAL  # cost profile, by name or file
    semantics: dict[str, str] = Field({})  # how lookups are made; scopes are listed apart because a study may compare both
    lru_curve: bool = False  # also an LRU of every capacity, hits only
    grid: tuple[Points, ...] = ()

    @model_validator(mode="after")
    def _whole(self) -> Self:
        missing = [name for name in OF_REPLAYS if not getattr(self, name)]
        if missing and not (self.grid and len(missing) == len(OF_REPLAYS)):
            raise ValueError(f"{missing[0]} is missing; replays need {', '.join(OF_REPLAYS)}, runs of systems a [[grid]]")
        for name in self.semantics:
            refuse_unknown("word of [semantics]", name, CHOICES.keys() - {"scope"})
        Semantics("global", **self.semantics)
        return self

    def on(self, traces: tuple[str, ...]) -> Study:
        """The study on these tapes, in place of those that it and its grids name."""
        grid = (of.model_copy(update={"each": tuple({**fields, "trace": traces} for fields in of.each)}) for of in self.grid)
        return self.model_copy(update={"traces": traces, "grid": tuple(grid)})

    def points(self) -> Iterator[dict[str, Any]]:
        """Fields of every run of a system, with its series; `trace`: a pattern."""
        for grid in self.grid:
            yield from ({"series": grid.series, **point} for point in grid.points(trace=self.traces))


def load(name_or_path: str) -> Study:
    """The study. Raises ValueError naming the file and field, or the nearest name."""
    path = Path(name_or_path)
    if path.suffix != ".toml":
        if name_or_path not in grids():
            raise unknown("study", name_or_path, (*grids(), *SYSTEMS))
        path = GRIDS / f"{name_or_path}.toml"
    study = parsed(Study, path, name=path.stem)
    if path.resolve().parent != GRIDS:
        own_name(path, study.name)
    for entry in study.policies:
        resolve("residency", entry.name, entry.params)
    return study


def matching(patterns: tuple[str, ...], trace_ids: list[str]) -> list[str]:
    """Traces that fit any pattern (`*`, `*math*`, the start of an id), in their order. Raises ValueError if none does."""
    hits = [i for i in trace_ids if any(fnmatch.fnmatchcase(i, p) or i.startswith(p) for p in patterns)]
    if not hits:
        there = (
            f"there are {', '.join(trace_ids)}"
            if trace_ids
            else "the store is empty: run `tokentape capture` or `tokentape import`"
        )
        raise ValueError(f"no tape fits {', '.join(patterns)}; {there}")
    return hits
