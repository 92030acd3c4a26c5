"""The SliceMoE study: sweeps over tapes, the policy inside a live model, and what both say about the paper's numbers.

Only claims of role `calibrate` are fitted: the LRU miss rates, by the tapes' generator (capture/synthetic), and the gains of
DeepSeek-V2-Lite, by the choice of tau among those of the study file. The other model's gains are predicted with that tau.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import polars as pl

from tokentape.flows.grid import load_hardware
from tokentape.flows.systems.slicemoe import live, sweeps
from tokentape.flows.systems.slicemoe.answers import answers, fidelity_answers
from tokentape.flows.systems.slicemoe.operating import operating_points
from tokentape.flows.systems.slicemoe.settings import Settings
from tokentape.flows.workers import each, pool_of
from tokentape.warehouse.tape import Store

__all__ = ["Settings", "run"]


def run(
    store: Store,
    progress: Callable[..., None],
    chosen: Settings | None = None,
    runner: str = "processes",
    workers: int | None = None,
    in_model: bool = True,
) -> list[dict[str, Any]]:
    """Runs what is missing of the study, writes its rows and answers, and returns the answers.

    A job is one file, written when it is complete: an interrupted study goes on where it stopped. in_model: False
    records and measures nothing inside a live model and takes what was measured before.
    """
    study = chosen or Settings.shipped()
    tapes = list(product(study.models, study.seeds))
    recorded = [(study.captured, seed) for seed in study.seeds] if in_model else []
    inside = live.jobs(study) if in_model else []
    n_done, total = 0, len(tapes) + len(recorded) + len(inside)
    progress(0, total, "")
    points: dict[sweeps.Job, pl.DataFrame] = {}
    todo: tuple[tuple[Callable[..., Any], Sequence[sweeps.Job | live.Job]], ...]
    todo = ((sweeps.of_tape, [*tapes, *recorded]), (live.run_job, inside))
    for work, jobs in todo:
        for job, of in each(pool_of(runner, workers), partial(_with, work, store.absolute, study), jobs):
            n_done += 1
            progress(n_done, total, _name(job))
            if not isinstance(job, live.Job) and job in tapes:
                points[job] = pl.DataFrame(study.rows_of(store, "slicemoe_points", of), infer_schema_length=None)
    machine, swept = load_hardware(study.hardware), pl.concat([points[job] for job in tapes], how="vertical_relaxed")
    if study.is_copy:
        return []
    made = answers(study, machine, swept) + fidelity_answers(study, study.rows(store, "fidelity"))
    study.write(store, {"answers": made, "operating_points": operating_points(study, machine, swept)})
    return study.named(made)


def _with(work: Callable[..., Any], uri: str, study: Settings, job: Any) -> Any:
    return work(Store(uri), study, job)


def _name(job: sweeps.Job | live.Job) -> str:
    if isinstance(job, live.Job):
        return str(job)
    model, seed = job
    return f"{model.name}, seed {seed}"
