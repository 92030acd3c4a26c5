"""A study of a published system as it runs: its workers, how far it is, and what it writes."""

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

from tokentape.flows.console import note
from tokentape.flows.grid import begin
from tokentape.flows.study_file import Made
from tokentape.flows.systems import SYSTEMS
from tokentape.flows.workers import each, pool_of
from tokentape.warehouse.tape import Store

Job = TypeVar("Job")
Result = TypeVar("Result")


@dataclass
class Running:
    """study: of its system's `Settings`. show: told how many jobs of how many are done; say: what to know of the results;
    in_model: what takes a live model is measured too; pools: makes the pool of a runner and its workers; plan: of this run, of
    whose files a worker keeps nothing that it read for another."""

    study: Any
    store: Store
    show: Callable[..., None] = lambda *told: None
    runner: str = "processes"
    workers: int | None = None
    pools: Callable[[str, int | None], Executor] = pool_of
    say: Callable[[str], None] = note
    in_model: bool = True
    n_done: int = 0
    total: int = 0
    plan: str = field(default_factory=lambda: uuid4().hex)

    def expect(self, *jobs: Sized) -> None:
        """All that `each` will be given."""
        self.total = sum(map(len, jobs))
        self.show(0, self.total, "")

    def each(self, work: Callable[[Store, Any, Job], Result], jobs: Iterable[Job]) -> Iterator[tuple[Job, Result]]:
        """Jobs and what `work` made of store, study and job, as they finish."""
        at = partial(_at, self.plan, work, self.store.absolute, self.study)
        for job, made in each(self.pools(self.runner, self.workers), at, jobs):
            self.did(job)
            yield job, made

    def did(self, job: object) -> None:
        self.n_done += 1
        self.show(self.n_done, self.total, str(job))

    def write(self, made: Made) -> None:
        self.study.write(self.store, made)

    def tell(self, lines: Sequence[str]) -> None:
        for line in lines:
            self.say(line)


def _at(plan: str, work: Callable[[Store, Any, Job], Result], uri: str, study: Any, job: Job) -> Result:
    begin(plan)
    return work(Store(uri), study, job)


def run(study: Any, store: Store, **how: Any) -> list[dict[str, Any]]:
    """Runs what is missing of a study, by the module of its system; its answers, of a copy none. how: fields of Running.

    A job is one file, written when it is complete: an interrupted study goes on where it stopped.
    """
    answers = importlib.import_module(SYSTEMS[study.system]).run(Running(study, store, **how))
    return [] if study.is_copy else study.named(answers)
