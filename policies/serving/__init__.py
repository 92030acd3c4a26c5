"""Schedulers of a serving engine, one per file. The dict maps the name a person types to the class.

Disaggregated is no scheduler of one engine but two engines in series: see replay/serving/disaggregated.py.
"""

from __future__ import annotations

import dataclasses

from tokentape.policies.serving.chunked import Chunked
from tokentape.policies.serving.continuous import Continuous
from tokentape.policies.serving.disaggregated import Disaggregated
from tokentape.policies.serving.layered import Layered
from tokentape.policies.serving.rule import BatchRule, Scheduler
from tokentape.policies.serving.speculation import Speculation
from tokentape.policies.serving.static import Static

__all__ = [
    "SCHEDULERS",
    "BatchRule",
    "Chunked",
    "Continuous",
    "Disaggregated",
    "Layered",
    "Scheduler",
    "Speculation",
    "Static",
    "scheduler_named",
]

SCHEDULERS: dict[str, type[Static] | type[Continuous] | type[Chunked] | type[Layered]] = {
    "static": Static,
    "orca": Continuous,
    "chunked": Chunked,
    "layered": Layered,
}


def scheduler_named(name: str, **fields: float | str) -> Static | Continuous | Chunked | Layered:
    """A scheduler by name, with some of its fields. Raises ValueError for an unknown name or field, naming what there is."""
    if name not in SCHEDULERS:
        raise ValueError(f"scheduler {name!r} is unknown; choose {', '.join(SCHEDULERS)}")
    kind = SCHEDULERS[name]
    known = [field.name for field in dataclasses.fields(kind)]
    for field in fields:
        if field not in known:
            raise ValueError(f"scheduler {name} has no field {field!r}; it has {', '.join(known)}")
    return kind(**fields)  # type: ignore[arg-type]
