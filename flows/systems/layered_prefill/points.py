"""One point of the study at rest: its metrics, its attainment grid, and the stretch of a run that is drawn."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from tokentape.flows import sources
from tokentape.flows.serving.points import ENGINE, point_id, rows_of, served
from tokentape.flows.serving.setup import fits_of, sums_of_named
from tokentape.flows.study_file import Rows
from tokentape.replay.serving.measure import measure
from tokentape.replay.serving.window import window
from tokentape.warehouse.tape import Store

if TYPE_CHECKING:
    from tokentape.flows.systems.layered_prefill.study import Job, Settings


def of_job(store: Store, study: Settings, job: Job) -> str:
    """Writes what is missing of a point's rows; what they are `of`: all that decides them."""
    level, points = study.level(job.point), (job.point, job.against) if job.against else (job.point,)
    more = (level, study.ttft_factors, study.tbt_factors) if job.group.attainment else level
    texts = job.point.text, job.against.text if job.against else ""
    decided = (job.group.series, *texts, str(more), str(study.window) if job.group.window else "")
    code = sources.sha256(*ENGINE, fits=tuple(chain(*map(fits_of, points))))

    def make() -> dict[str, Rows]:
        factors = (study.ttft_factors, study.tbt_factors) if job.group.attainment else ((), ())
        against = served(store, job.against) if job.against else None
        found = measure(served(store, job.point), job.point.n_seeds, level, against, factors)
        made: dict[str, Rows] = dict(rows_of(study.name, job.group.series, job.point, found))
        return made | (windows(store, study, job) if job.group.window else {})

    named = chain(*(sums_of_named(store, point) for point in points))
    return study.once(store, f"{'/'.join((*decided, *named))}/{code}", "serving_points", make)


def windows(store: Store, study: Settings, job: Job) -> dict[str, Rows]:
    """Iterations, requests and tokens of a stretch of one run."""
    run = served(store, job.point).run(study.window.seed, record=True)
    where = {"point_id": point_id(study.name, job.group.series, job.point)}
    found = window(run, study.window.start_s, study.window.seconds)
    names = ("serving_iterations", "serving_spans", "serving_tokens")
    return {name: [where | row for row in rows] for name, rows in zip(names, found, strict=True)}
