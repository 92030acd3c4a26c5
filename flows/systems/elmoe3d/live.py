"""Speculation inside a live model: what drafts are accepted, and tapes of drafting for the machine and for replay.

Rows of `acceptance_points` and `orderings`. A job is one file or one tape; finished ones are skipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokentape.capture import models
from tokentape.capture.orderings import ACCEPTANCE_ORDERINGS, Effort, orderings
from tokentape.capture.plan import CaptureSettings
from tokentape.capture.run import capture as record
from tokentape.capture.speculation.settings import DraftSettings
from tokentape.capture.speculation.study import PAIRS, PointEffort, Setting, settings_of, study_points
from tokentape.flows import sources
from tokentape.flows.speculation import replay_points
from tokentape.flows.systems.elmoe3d.settings import Live, Settings
from tokentape.policies.speculation import POOLS
from tokentape.warehouse.tape import Store

TABLES = ("requests", "tokens", "routing", "scores")
POINTS = "acceptance_points"
REPLAYED = ("tokentape.replay.rounds", "tokentape.policies.speculation")
MEASURED = ("tokentape.capture.speculation.study", "tokentape.capture.orderings", "tokentape.capture.run")


@dataclass(frozen=True)
class Job:
    """What is measured: orderings, bits, a setting of the loop, or a recorded tape of a drafter."""

    what: str
    setting: Setting | None = None
    drafter: str = ""

    def __str__(self) -> str:
        if self.setting is None:
            return f"{self.what} {self.drafter}".rstrip()
        draft = self.setting.draft
        return f"{self.what} {draft.draft} {draft.pool} {draft.pool_frac:g}, batch {self.setting.batch}"


def jobs(study: Settings) -> list[Job]:
    """Everything measured inside the model."""
    live = study.live
    loops = [Job(setting.series, setting) for setting in settings_of(live.pool_fracs, live.batches)]
    return [Job("orderings"), Job("bits"), *loops, *(Job("tape", drafter=name) for name in live.recorded)]


def run_job(store: Store, study: Settings, job: Job) -> None:
    """Measures a job and writes its rows, unless they are there."""
    live = study.live
    if job.what == "tape":
        tape = store.open(record(_recorded(live, job.drafter), store, resume=True))
        of = f"{tape.trace_id}/{tape.content_sha256}/{live.pool_fracs}/{sources.sha256(*REPLAYED)}"
        if job.drafter == "elastic":
            study.once(store, of, POINTS, lambda: {POINTS: replay_points(tape, tuple(POOLS), live.pool_fracs)})
        return
    table = "orderings" if job.what == "orderings" else POINTS
    of = f"{job!r}/{live.model}/{live.seeds}/{_effort(live)}/{sources.sha256(*MEASURED)}"
    study.once(store, of, table, lambda: {table: _measured(live, job)})


def _measured(live: Live, job: Job) -> list[dict[str, Any]]:
    loaded = models.load(models.find(live.model))
    if job.what == "orderings":
        text = Effort(0, live.prompt, live.output, live.whole_windows)
        return orderings(loaded, live.seeds, text, of=ACCEPTANCE_ORDERINGS)
    settings, pairs = ([], PAIRS) if job.setting is None else ([job.setting], ())
    return study_points(loaded, live.seeds, _effort(live), settings, pairs)


def _effort(live: Live) -> PointEffort:
    return PointEffort(live.prompts, live.prompt, live.output, live.whole_windows)


def _recorded(live: Live, drafter: str) -> CaptureSettings:
    return CaptureSettings(
        model=live.model,
        dataset=live.dataset,
        tables=TABLES,
        max_requests=live.recorded_requests,
        max_prompt_tokens=live.prompt,
        max_new_tokens=live.output,
        speculation=DraftSettings(drafter),
    )
