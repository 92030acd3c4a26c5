"""The Kelle study: its cost model swept over systems, models, workloads and what is uncertain, what that says of its numbers, and
what eviction and lost bits cost a live model.

Nothing is fitted to the paper; what heads have in common was counted on a tape (hw/fits/kelle.toml). The closed forms take
seconds and are computed anew with every run; the live model takes minutes, and what is measured is kept.
"""

from collections.abc import Callable, Iterable

from tokentape.flows.answers import Row, answered, queried
from tokentape.flows.running import Running
from tokentape.flows.systems.kelle.settings import PAPER, Settings, setup
from tokentape.replay.kelle import rows as of_views
from tokentape.replay.kelle.derived import quantities, ratio_rows
from tokentape.replay.kelle.pareto import Tried, pareto_rows
from tokentape.replay.kelle.rows import Setup
from tokentape.replay.kelle.systems import Work
from tokentape.warehouse.model_config import from_config

__all__ = ["Settings", "run"]
Rows = dict[str, list[Row]]

# Views and what makes their rows, but for the points.
VIEWS: dict[str, Callable[[Setup], Iterable[Row]]] = {
    "kelle_requests": of_views.requests,
    "kelle_recompute": of_views.recompute,
    "kelle_lifetimes": of_views.lifetimes,
    "kelle_parts": of_views.parts,
    "kelle_retention": of_views.retention,
}


def run(at: Running) -> list[Row]:
    """The answers. The closed forms are written first. Says how the paper's recomputation checks out."""
    study = at.study
    if at.in_model:
        from tokentape.capture.models import find  # needs torch, as all that is live
        from tokentape.flows.systems.kelle import live
    inside = live.jobs(study) if at.in_model else []
    at.expect(["closed forms"], inside)
    made = setup(study)
    rows = {"kelle_points": points_of(study, made)} | {view: list(rows_of(made)) for view, rows_of in VIEWS.items()}
    if not study.is_copy:
        known = asked(study, made)
        rows |= {"kelle_checks": checks(study, known), "answers": answered(study.answers, PAPER, rows | known)}
        at.tell(told(study, rows["kelle_checks"]))
    at.write(rows)
    at.did("closed forms")
    if not inside:
        return rows.get("answers", [])
    found = dict(at.each(live.run_job, inside))
    measured = {job: found[job] for job in inside if job.table == "quality"}
    tape = next(job for job in inside if job.table == "kv_replays")
    said = [] if study.is_copy else [*rows["answers"], live.popularity_answer(study, tape, found[tape])]
    of, geometry = study.live, from_config(find(study.live.model).config.to_dict())
    tried = (Tried(*one) for one in live.tried(measured))
    costed = pareto_rows(made, geometry, Work(of.prompt, of.output, of.batch), tried)
    at.write({"kelle_quality": list(live.quality_rows(measured)), "kelle_pareto": costed, "answers": said})
    return said


def points_of(study: Settings, made: Setup) -> list[Row]:
    """Rows of `kelle_points`, series by series; a system that keeps all tokens has one row for all budgets."""
    rows = [row for group in study.grid for row in of_views.swept(made, group.series, group.role, list(study.points(group)))]
    return [*rows, *of_views.swept(made, "sensitivity", "report", of_views.retained(made))]


def asked(study: Settings, made: Setup) -> Rows:
    """What checks and answers ask beside the views."""
    return {
        "quantities": [{"name": name, "value": value} for name, value in quantities(made).items()],
        "ratios": list(ratio_rows(made)),
        "chip": [{"model": made.chip.model, "workload": made.chip.workload}],
        "bars": [{"check": check, "bar_high": most} for check, most in study.bars.items()],
    }


def checks(study: Settings, known: Rows) -> list[Row]:
    """Rows of `kelle_checks`: numbers derived a second way, and errors. known: what is `asked`."""
    rows = queried(study.checks, PAPER, known, "kelle_checks")
    if missing := study.bars.keys() - {row["check"] for row in rows}:
        raise ValueError(f"[bars]: no check is named {missing.pop()}")
    return rows


def told(study: Settings, checks: list[Row]) -> list[str]:
    """The checks that are said by every run, as sentences."""
    said = {row["check"]: row | {"unit": "" if row["unit"] == "1" else f" {row['unit']}"} for row in checks}
    form = "{check}: {value:.3g}{unit} here, {published:.3g}{unit} as published ({how})"
    return [form.format(**said[name]) for name in study.told]
