"""A study: which replays answer a question, as TOML. Shipped ones by name (flows/studies/*.toml), a user's own by path.

Everything is multiplied out: traces x policies (x their seeds) x scopes x capacities x expert formats x hardware. Paths in
the file are relative to it.
"""

from __future__ import annotations

import fnmatch
from pathlib import Path

from pydantic import Field

from tokentape.flows.study_file import Part, parsed
from tokentape.flows.systems import GRIDS, SYSTEMS, grids
from tokentape.hw.profile import PHYSICAL
from tokentape.policies.names import unknown
from tokentape.policies.resolve import resolve


class PolicyEntry(Part):
    """One `[[policies]]` table: name or `file.py:Class`, its parameters, and the seeds where it draws at random."""

    name: str
    params: dict[str, str | int | float | bool] = Field(default={})
    seeds: tuple[int, ...] = Field((0,), min_length=1)


class SemanticsEntry(Part):
    """`[semantics]`: how lookups are made; the scope is listed apart because a study may compare both."""

    lookup: str = "atomic"
    recency: str = "list-order"
    prefill: str = "layer-major"
    start: str = "persistent"
    overflow: str = "evict"
    fetching: str = "blocking"


class Study(Part):
    """A parsed study file."""

    name: str
    question: str
    traces: tuple[str, ...] = ("*",)  # patterns over trace ids
    policies: tuple[PolicyEntry, ...] = Field(min_length=1)
    capacities: tuple[str, ...] = Field(min_length=1)  # as --capacity takes them
    scopes: tuple[str, ...] = Field(min_length=1)  # no default: the two answer different questions
    hardware: tuple[str, ...] = Field(min_length=1)
    expert_formats: tuple[str, ...] = ("auto",)
    profile: str = PHYSICAL  # cost profile, by name or file
    semantics: SemanticsEntry = SemanticsEntry()
    lru_curve: bool = False  # also an LRU of every capacity, hits only


def load(name_or_path: str) -> Study:
    """The study. Raises ValueError naming the file and field, or the nearest name."""
    path = Path(name_or_path)
    if path.suffix != ".toml":
        if name_or_path not in grids():
            raise unknown("study", name_or_path, (*grids(), *SYSTEMS))
        path = GRIDS / f"{name_or_path}.toml"
    study = parsed(Study, path, name=path.stem)
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
