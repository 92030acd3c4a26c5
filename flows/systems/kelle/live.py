"""KV policies and lost bits inside a live model: quality by seed, orderings, how far replay strays, and a tape's attention.

Rows of `quality`, `orderings`, `kv_divergence` and the `kv_*` tables of a replay. A job is one file; finished ones are skipped.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from tokentape.capture import models
from tokentape.capture.kv.divergence import divergence
from tokentape.capture.kv.evaluate import KVRun
from tokentape.capture.kv.orderings import ORDERINGS, WORD_ORDERINGS, Effort, orderings
from tokentape.capture.live.quality import evaluate_inside
from tokentape.capture.plan import CaptureSettings
from tokentape.capture.run import capture as record
from tokentape.flows import kv_tape, sources
from tokentape.flows.inside_model import kv_run
from tokentape.flows.study_file import Made
from tokentape.flows.systems.kelle.settings import Live, Settings
from tokentape.policies.kv.refresh import Intervals
from tokentape.policies.resolve import resolve
from tokentape.replay.kv.replay import replay_kv
from tokentape.warehouse.tape import Store

Row = dict[str, Any]
ENGINES = {  # by the table that they fill
    "quality": ("tokentape.capture.kv.evaluate",),
    "orderings": ("tokentape.capture.kv.orderings",),
    "kv_divergence": ("tokentape.capture.kv.divergence",),
    "kv_replays": ("tokentape.capture.run", "tokentape.replay.kv.replay"),
}


@dataclass(frozen=True)
class Job:
    """What fills one file of `table` and all that decides it.

    series, value: of table kelle_quality; value: the rate or the mean interval. items: windows of text or questions of a seed.
    """

    table: str
    dataset: str
    items: int
    prompt: int
    output: int
    policy: str = ""
    parameters: tuple[tuple[str, str | int | float], ...] = ()
    series: str = ""
    setting: str = ""
    value: float | None = None

    def __str__(self) -> str:
        named = (self.series or self.table, self.dataset, self.policy, self.setting)
        return " ".join([*filter(None, named), *(f"{name}={value}" for name, value in self.parameters)])

    @property
    def run(self) -> KVRun:
        """The policy as it is tried. Raises ValueError for one that is unknown, or parameters that do not fit."""
        lengths = {"prompt_tokens": self.prompt, "decode_tokens": self.output}
        return kv_run(self.policy, {**dict(self.parameters), **lengths}, self.items)

    @property
    def interval_us(self) -> float | None:
        """The one interval for all at which a cache would refresh as often; None where it loses no bits."""
        told = self.run.parameters.get("intervals")
        return Intervals.parse(told).harmonic_mean_us if told else None


def jobs(study: Settings) -> list[Job]:
    """Everything measured inside the model."""
    live = study.live
    usual = {"dataset": live.dataset, "prompt": live.prompt, "output": live.output}
    return [_job(grid.table, {"series": grid.series, **given}) for grid in live.grid for given in grid.points(**usual)]


def _job(table: str, given: dict[str, Any]) -> Job:
    """given: fields of Job, and the policy's parameters."""
    if "loses" in given:
        given["rate"] = ",".join(f"{given['value'] * loss:g}" for loss in given.pop("loses"))
    if "intervals_us" in given:
        intervals_us = given.pop("intervals_us")
        given["value"] = Intervals(*intervals_us).harmonic_mean_us
        told = (given["value"],) if given.pop("is_uniform", False) else intervals_us
        given["intervals"] = ",".join(f"{interval:.8g}" for interval in told)
    own = {field.name: given.pop(field.name) for field in fields(Job) if field.name in given}
    return Job(table, parameters=tuple(given.items()), **own)


def run_job(store: Store, study: Settings, job: Job) -> list[Row]:
    """The job's rows: measured and written, or read where they are there already."""
    live = study.live

    def make() -> Made:
        return _replayed(store, study, job) if job.table == "kv_replays" else {job.table: _measured(live, job)}

    of = study.once(store, f"{job!r}/{live.model}/{live.seeds}/{sources.sha256(*ENGINES[job.table])}", job.table, make)
    return study.rows_of(store, job.table, of) or []


def _measured(live: Live, job: Job) -> list[Row]:
    loaded = models.load(models.find(live.model))
    if job.table == "orderings":
        asked = ORDERINGS if job.dataset == live.dataset else WORD_ORDERINGS
        effort = Effort(job.items, job.prompt, job.output)
        return list(orderings(loaded, live.seeds, effort, dataset=job.dataset, of=asked))
    run = job.run
    if job.table == "kv_divergence":
        return [row for seed in live.seeds for row in divergence(loaded, job.dataset, run, seed)]
    return [evaluate_inside(loaded, job.dataset, run, seed) for seed in live.seeds]


def _replayed(store: Store, study: Settings, job: Job) -> dict[str, list[Row]]:
    """A recorded tape through the policies that are held against their replay, and the bound; by table."""
    settings = CaptureSettings(
        model=study.live.model,
        dataset=job.dataset,
        tables=("requests", "tokens", "attention"),
        max_requests=job.items,
        max_prompt_tokens=job.prompt,
        max_new_tokens=job.output,
    )
    tape = kv_tape.attention_tape(store, record(settings, store, resume=True))
    evicting = [(one.policy, dict(one.parameters)) for one in jobs(study) if one.table == "kv_divergence"]
    policies = [resolve("kv", name, given | dict(job.parameters)) for name, given in (*evicting, ("oracle", {}))]
    found = [replay_kv(tape, policy) for policy in policies]
    return {
        "kv_heads": [row for one in found for row in one.heads],
        "kv_timeline": [row for one in found for row in one.timeline],
        "kv_replays": [one.replay for one in found],
    }
