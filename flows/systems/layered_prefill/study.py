"""The Layered Prefill study: schedulers of MoE serving under the paper's loads and others, and what they say about its numbers.

Only claims of role `calibrate` are fitted, by the constants in hw/fits (replay/serving/fit.py). A point is one file, written when
it is complete: an interrupted study goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import polars as pl

from tokentape.flows.console import note
from tokentape.flows.systems.layered_prefill import traces
from tokentape.flows.systems.layered_prefill.answers import answers
from tokentape.flows.systems.layered_prefill.coverage import coverage_rows, error_lines
from tokentape.flows.systems.layered_prefill.points import of_job
from tokentape.flows.systems.layered_prefill.settings import Job, Settings, jobs
from tokentape.flows.workers import each, pool_of
from tokentape.hw import serving_constants
from tokentape.warehouse.tape import Store

__all__ = ["Settings", "run"]


def run(
    store: Store,
    progress: Callable[..., None],
    chosen: Settings | None = None,
    runner: str = "processes",
    workers: int | None = None,
    say: Callable[[str], None] = note,
    in_model: bool = True,
) -> list[dict[str, Any]]:
    """Runs what is missing of the study, writes its rows and answers, and returns the answers. say: told what is left
    out, and how far each form of coverage is off. in_model: nothing is measured inside a live model here."""
    study = chosen or Settings.shipped()
    wanted = jobs(study)
    replayed, missing = traces.jobs(store, study)
    for line in missing:
        say(line)
    numbered = list(enumerate([*wanted, *replayed]))
    total = len(numbered)
    progress(0, total, "")
    points: dict[int, pl.DataFrame] = {}
    for n_done, ((number, job), of) in enumerate(each(pool_of(runner, workers), partial(_work, store.absolute, study), numbered)):
        points[number] = pl.DataFrame(study.rows_of(store, "serving_points", of), infer_schema_length=None)
        progress(n_done + 1, total, str(job))
    made = [] if study.is_copy else answers(store, study, wanted, [points[number] for number in range(len(wanted))])
    study.write(store, {"answers": made})
    correlation = serving_constants.load("h100x2").constants.engine.prefill_correlation
    covered = coverage_rows(store, correlation)
    study.write(store, {"coverage_points": covered})
    for line in error_lines(covered):
        say(line)
    return study.named(made)


def _work(uri: str, study: Settings, numbered: tuple[int, Job]) -> str:
    return of_job(Store(uri), study, numbered[1])
