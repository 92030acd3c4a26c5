"""The Kelle study: its cost model swept over systems, models, workloads and what is uncertain, what that says of its numbers, and
what eviction and lost bits cost a live model.

Nothing is fitted to the paper; what heads have in common was counted on a tape (hw/fits/kelle.toml). The closed forms take
seconds and are computed anew with every run; the live model takes minutes, and what is measured is kept.
"""

from __future__ import annotations

from tokentape.flows.answers import Row
from tokentape.flows.running import Running
from tokentape.flows.systems.kelle.closed_forms import VIEWS, answers, checks, points_of, told
from tokentape.flows.systems.kelle.settings import Settings, setup
from tokentape.replay.kelle.pareto import Tried, pareto_rows
from tokentape.replay.kelle.systems import Work
from tokentape.warehouse.model_config import from_config

__all__ = ["Settings", "run"]


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
