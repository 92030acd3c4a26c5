"""The Kelle study: its cost model swept over systems, models, workloads and what is uncertain, what that says of its numbers, and
what eviction and lost bits cost a live model.

Nothing is fitted to the paper; what heads have in common was counted on a tape (hw/fits/kelle.toml). The closed forms take
seconds and are computed anew with every run; the live model takes minutes, and what is measured is kept.
"""

from collections.abc import Callable, Iterable

from tokentape.flows.answers import Row, answer, answered
from tokentape.flows.running import Running
from tokentape.flows.systems.kelle.settings import PAPER, Settings, setup
from tokentape.replay.kelle import rows as of_views
from tokentape.replay.kelle.derived import errors, quantities
from tokentape.replay.kelle.pareto import Tried, pareto_rows
from tokentape.replay.kelle.ratios import ratios
from tokentape.replay.kelle.rows import Setup
from tokentape.replay.kelle.systems import MODES, Work
from tokentape.warehouse.model_config import from_config

__all__ = ["Settings", "run"]

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
        rows |= {"kelle_checks": checks(study, made), "answers": answers(study, made, rows)}
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


def checks(study: Settings, made: Setup) -> list[Row]:
    """Rows of `kelle_checks`: numbers derived a second way, and errors."""
    found = quantities(made)
    derived = [
        {
            "check": one.check,
            "series": "derived",
            "value": found[one.value],
            "published": found[one.published] if one.published else None,
            "unit": one.unit,
            "how": one.how.format(**found),
        }
        for one in study.derived
        if one.check
    ]
    blank = dict.fromkeys(("setting", "published"))
    rows = [blank | row | {"bar_high": study.bars.get(row["check"])} for row in (*derived, *errors(made))]
    if missing := study.bars.keys() - {row["check"] for row in rows}:
        raise ValueError(f"[bars]: no check is named {missing.pop()}")
    return rows


def told(study: Settings, checks: list[Row]) -> list[str]:
    """The checks that are said by every run, as sentences."""
    said = {one.check for one in study.derived if one.is_told}
    unit = {row["check"]: "" if row["unit"] == "1" else f" {row['unit']}" for row in checks}
    return [
        f"{name}: {row['value']:.3g}{unit[name]} here, {row['published']:.3g}{unit[name]} as published ({row['how']})"
        for row in checks
        if (name := row["check"]) in said
    ]


def answers(study: Settings, made: Setup, rows: dict[str, list[Row]]) -> list[Row]:
    """rows: by view. The paper's ratios of systems, none where nothing fits the DRAM; what is derived; what the rows say. Tables
    2 to 6 need the real models and are not answered."""
    found = []
    derived = quantities(made)
    for mode in MODES:
        steps = made.steps(mode)
        for ratio in ratios(made.claims, steps):
            value, n_cells = steps.value(ratio)
            if n_cells:
                how = f"{ratio.metric}: {ratio}; {n_cells} cells"
                found.append(answer(ratio.claim_id, value, how, mode))
        asked = (one for one in study.derived if one.claim and mode in one.modes)
        found += [answer(f"{PAPER}/{one.claim}", derived[one.value], one.how.format(**derived), mode) for one in asked]
    return [*found, *answered(study.answers, PAPER, rows)]
