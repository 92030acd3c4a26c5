"""The Kelle study: its cost model swept over systems, models, workloads and what is uncertain, what that says of its numbers, and
what eviction and lost bits cost a live model.

Only claims of role `calibrate` are fitted, by the knobs in hw/fits/kelle.toml (replay/kelle/fit.py). The closed forms take
seconds and are computed anew with every run; the live model takes minutes, and what is measured is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import polars as pl

from tokentape.flows.console import note
from tokentape.flows.systems.kelle import details, live, sweeps
from tokentape.flows.systems.kelle.answers import answers
from tokentape.flows.systems.kelle.checks import checks, recompute_lines
from tokentape.flows.systems.kelle.live_rows import popularity_answer, quality_rows
from tokentape.flows.systems.kelle.pareto import pareto_rows
from tokentape.flows.systems.kelle.settings import Settings
from tokentape.flows.systems.kelle.setup import setup
from tokentape.flows.workers import each, pool_of
from tokentape.warehouse.tape import Store

__all__ = ["Settings", "run"]

# Tables and what makes their rows; the first two are what answers are read from.
TABLES: dict[str, Callable[..., Any]] = {
    "kelle_points": sweeps.points,
    "kelle_requests": sweeps.requests,
    "kelle_recompute": details.recompute,
    "kelle_lifetimes": details.layer_lifetimes,
    "kelle_parts": details.parts,
    "kelle_retention": details.retention,
}


def run(
    store: Store,
    progress: Callable[..., None],
    chosen: Settings | None = None,
    runner: str = "processes",
    workers: int | None = None,
    say: Callable[[str], None] = note,
    in_model: bool = True,
) -> list[dict[str, Any]]:
    """Computes every table, writes it whole, measures what is missing inside the model, and returns the answers.

    The closed forms and their answers are written first. A job inside the live model is one file: an interrupted study goes on
    where it stopped. say: told how the paper's recomputation checks out. in_model: False leaves out what is measured inside.
    """
    study = chosen or Settings.shipped()
    made, inside = setup(study), live.jobs(study) if in_model else []
    total = len(inside) + 1
    progress(0, total, "closed forms")
    rows = {table: list(rows_of(made)) for table, rows_of in TABLES.items()}
    if not study.is_copy:
        rows["kelle_checks"] = checks(made)
    points, requests = (pl.DataFrame(rows[name], infer_schema_length=None) for name in ("kelle_points", "kelle_requests"))
    rows["answers"] = [] if study.is_copy else answers(made, points, requests)
    study.write(store, rows)
    for line in () if study.is_copy else recompute_lines(made):
        say(line)
    if not inside:
        return study.named(rows["answers"])
    found = {}
    for job, of in each(pool_of(runner, workers), partial(_live, store.absolute, study), inside):
        found[job] = of
        progress(len(found), total, str(job))
    measured = {job: found[job] for job in inside if job.table == "quality"}
    replayed = next(of for job, of in found.items() if job.table == "kv_replays")
    rows["answers"] += [] if study.is_copy else [popularity_answer(made, replayed)]
    last = {"kelle_quality": list(quality_rows(measured)), "kelle_pareto": pareto_rows(made, measured)}
    study.write(store, last | {"answers": rows["answers"]})
    progress(total, total, "done")
    return study.named(rows["answers"])


def _live(uri: str, study: Settings, job: live.Job) -> list[dict[str, Any]]:
    return live.run_job(Store(uri), study, job)
