"""The Kelle study: its cost model swept over systems, models, workloads and what is uncertain, what that says of its numbers, and
what eviction and lost bits cost a live model.

Only claims of role `calibrate` are fitted, by the knobs in hw/fits/kelle.toml (replay/kelle/fit.py). The closed forms take
seconds and are computed anew with every run; the live model takes minutes, and what is measured is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tokentape.capture.models import find
from tokentape.flows.answers import Row, answer, answered
from tokentape.flows.running import Running
from tokentape.flows.study_file import Made
from tokentape.flows.systems.kelle import live
from tokentape.flows.systems.kelle.live_rows import popularity_answer, quality_rows, tried
from tokentape.flows.systems.kelle.settings import Settings, setup
from tokentape.replay.kelle import derived, details, points
from tokentape.replay.kelle.checks import checks, recompute_lines
from tokentape.replay.kelle.fit import PAPER
from tokentape.replay.kelle.pareto import pareto_rows
from tokentape.replay.kelle.setup import Setup
from tokentape.replay.kelle.work import Work
from tokentape.warehouse.geometry import from_config
from tokentape.warehouse.tables import TABLES

__all__ = ["Settings", "run"]

# Views and what makes their rows, but for the points.
VIEWS: dict[str, Callable[[Setup], Iterable[Row]]] = {
    "kelle_requests": points.requests,
    "kelle_recompute": details.recompute,
    "kelle_lifetimes": details.layer_lifetimes,
    "kelle_parts": details.parts,
    "kelle_retention": details.retention,
}


def points_of(study: Settings, made: Setup) -> list[Row]:
    """Rows of `kelle_points`, series by series; a system that keeps all tokens has one row for all budgets."""
    rows = [row for group in study.grid for row in points.swept(made, group.series, group.role, list(study.points(group)))]
    rows += points.swept(made, "sensitivity", "report", points.retained(made))
    return list({tuple(row[name] for name in TABLES["kelle_points"].key): row for row in rows}.values())


def answers(study: Settings, made: Setup, rows: Made) -> list[Row]:
    """rows: by view. Tables 2 to 6 need the real models and are not answered."""
    found = (*derived.of_ratios(made, study.modes), *derived.of_sizes(made))
    return [*(answer(*one) for one in found), *answered(study.answers, PAPER, rows, study.modes)]


def run(at: Running) -> list[Row]:
    """The answers. The closed forms are written first. Says how the paper's recomputation checks out."""
    study, inside = at.study, live.jobs(at.study) if at.in_model else []
    at.expect(["closed forms"], inside)
    made = setup(study)
    rows = {"kelle_points": points_of(study, made)} | {view: list(rows_of(made)) for view, rows_of in VIEWS.items()}
    if not study.is_copy:
        rows |= {"kelle_checks": checks(made), "answers": answers(study, made, rows)}
        at.tell(recompute_lines(made))
    at.write(rows)
    at.did("closed forms")
    if not inside:
        return rows.get("answers", [])
    found = dict(at.each(live.run_job, inside))
    measured = {job: found[job] for job in inside if job.table == "quality"}
    tape = next(job for job in inside if job.table == "kv_replays")
    told = [] if study.is_copy else [*rows["answers"], popularity_answer(study, tape, found[tape])]
    of, geometry = study.live, from_config(find(study.live.model).config.to_dict())
    costed = pareto_rows(made, geometry, Work(of.prompt, of.output, of.batch), tried(measured))
    at.write({"kelle_quality": list(quality_rows(measured)), "kelle_pareto": costed, "answers": told})
    return told
