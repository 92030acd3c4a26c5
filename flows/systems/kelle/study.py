"""The Kelle study: its cost model swept over systems, models, workloads and what is uncertain, what that says of its numbers, and
what eviction and lost bits cost a live model.

Only claims of role `calibrate` are fitted, by the knobs in hw/fits/kelle.toml (replay/kelle/fit.py). The closed forms take
seconds and are computed anew with every run; the live model takes minutes, and what is measured is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tokentape.flows.answers import Row
from tokentape.flows.running import Running
from tokentape.flows.systems.kelle import details, live, sweeps
from tokentape.flows.systems.kelle.answers import answers
from tokentape.flows.systems.kelle.checks import checks, recompute_lines
from tokentape.flows.systems.kelle.live_rows import popularity_answer, quality_rows
from tokentape.flows.systems.kelle.pareto import pareto_rows
from tokentape.flows.systems.kelle.settings import Settings
from tokentape.flows.systems.kelle.setup import setup

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


def run(at: Running) -> list[Row]:
    """The answers. The closed forms are written first. Says how the paper's recomputation checks out."""
    study, inside = at.study, live.jobs(at.study) if at.in_model else []
    at.expect(["closed forms"], inside)
    made = setup(study)
    rows = {table: list(rows_of(made)) for table, rows_of in TABLES.items()}
    if not study.is_copy:
        rows |= {"kelle_checks": checks(made), "answers": answers(made, rows)}
        at.tell(recompute_lines(made))
    at.write(rows)
    at.did("closed forms")
    if not inside:
        return rows.get("answers", [])
    found = dict(at.each(live.run_job, inside))
    measured = {job: found[job] for job in inside if job.table == "quality"}
    replayed = next(of for job, of in found.items() if job.table == "kv_replays")
    told = [] if study.is_copy else [*rows["answers"], popularity_answer(made, replayed)]
    at.write({"kelle_quality": list(quality_rows(measured)), "kelle_pareto": pareto_rows(made, measured), "answers": told})
    return told
