"""Inside the live model: losses of every expert's replicas, and perplexity with and without the selector. One job, one file."""

from __future__ import annotations

from dataclasses import dataclass

from flows.systems.cxl_ndp.settings import Settings
from warehouse.tape import Store


@dataclass(frozen=True)
class Job:
    """What is measured."""

    what: str

    def __str__(self) -> str:
        return self.what


def jobs(study: Settings) -> list[Job]:
    """Everything measured inside the model."""
    return []


def run_job(store: Store, study: Settings, job: Job) -> None:
    """Measures a job and writes its rows, unless they are there."""
