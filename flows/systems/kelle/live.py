"""KV policies and lost bits inside a live model: quality by seed, orderings, how far replay strays, and a tape's attention.

Rows of `quality`, `orderings`, `kv_divergence` and the `kv_*` tables of a replay. A job is one file; finished ones are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tokentape.capture import models
from tokentape.capture.kv.divergence import divergence
from tokentape.capture.kv.evaluate import KVRun, evaluate_kv
from tokentape.capture.kv.orderings import ORDERINGS, WORD_ORDERINGS, Effort, orderings
from tokentape.capture.plan import CaptureSettings
from tokentape.capture.run import capture as record
from tokentape.flows import kv_tape, sources
from tokentape.flows.inside_model import kv_run
from tokentape.flows.study_file import Made
from tokentape.flows.systems.kelle.settings import Cache, Live, Settings
from tokentape.policies.kv import KELLE
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

    def of(self, cache: Cache, **more: Any) -> Job:
        """The same for a cache."""
        changed = {"policy": cache.policy, "parameters": tuple(cache.parameters.items()), "setting": cache.setting}
        return replace(self, **(changed | more))


def jobs(study: Settings) -> list[Job]:
    """Everything measured inside the model, longest first. In a series of `quality` the first is what others are held against."""
    live = study.live
    text = Job("orderings", live.dataset, live.orderings.items, live.prompt, live.output)
    other = replace(text, dataset=live.orderings.other, items=live.orderings.other_items)
    budgeted = list(_series_of_budgets(live))
    tape = Job("kv_replays", live.dataset, live.tape.items, live.tape.prompt, live.tape.output)
    return [text, other, *budgeted, *_refreshed(live), *_errors(live), *_diverging(live), tape]


def _series_of_budgets(live: Live) -> Iterator[Job]:
    for series, of in (("budget", live.budget), ("recall", live.recall)):
        job = Job("quality", of.dataset, of.items, live.prompt, live.output, series=series)
        for cache in live.caches:
            tried = [cache.at(budget) for budget in of.budgets] if cache.is_budgeted else [cache]
            yield from (job.of(one) for one in tried)


def _refreshed(live: Live) -> Iterator[Job]:
    of = live.refresh
    job = Job("quality", live.dataset, of.items, live.prompt, live.output, series="refresh").of(of.cache)

    def stored(word: str, **lost: str) -> tuple[tuple[str, str | int | float], ...]:
        return (*job.parameters, ("storage", word), *lost.items())

    yield replace(job, parameters=stored(of.words[0], rate="0"), setting="no losses")
    for n, word in enumerate(of.words):
        for intervals_us in of.intervals_us[: 1 if n else None]:
            mean_us = Intervals(*intervals_us).harmonic_mean_us
            for setting, given in (("2DRP", intervals_us), ("uniform", (mean_us,))):
                told = ",".join(f"{interval:.8g}" for interval in given)
                yield replace(job, parameters=stored(word, intervals=told), setting=setting, value=mean_us)


def _errors(live: Live) -> Iterator[Job]:
    of = live.errors
    job = Job("quality", live.dataset, of.items, live.prompt, of.output, series="errors").of(of.cache)
    yield replace(job, parameters=(*job.parameters, ("rate", "0")), setting="none", value=0.0)
    for setting, loses in of.groups.items():
        for rate in of.rates:
            told = ",".join(f"{rate * loss:g}" for loss in loses)
            yield replace(job, parameters=(*job.parameters, ("rate", told)), setting=setting, value=rate)


def _diverging(live: Live) -> Iterator[Job]:
    of = live.divergence
    job = Job("kv_divergence", live.dataset, of.items, of.prompt, of.output)
    return (job.of(cache) for cache in _evicting(live, of.budget))


def _evicting(live: Live, budget: int) -> Iterator[Cache]:
    """Caches that differ in what they retain, whatever the storage."""
    return (cache.at(budget) for cache in live.caches if cache.is_budgeted and cache.policy != KELLE)


def run_job(store: Store, study: Settings, job: Job) -> list[Row]:
    """The job's rows: measured and written, or read where they are there already."""
    live = study.live

    def make() -> Made:
        return _replayed(store, live, job) if job.table == "kv_replays" else {job.table: _measured(live, job)}

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
    return [evaluate_kv(loaded, job.dataset, run, seed) for seed in live.seeds]


def _replayed(store: Store, live: Live, job: Job) -> dict[str, list[Row]]:
    """A recorded tape through every policy and the bound; by table, the one that completes the job last."""
    settings = CaptureSettings(
        model=live.model,
        dataset=job.dataset,
        tables=("requests", "tokens", "attention"),
        max_requests=job.items,
        max_prompt_tokens=job.prompt,
        max_new_tokens=job.output,
    )
    tape = kv_tape.attention_tape(store, record(settings, store, resume=True))
    caches = [*_evicting(live, live.tape.budget), Cache(policy="oracle").at(live.tape.budget)]
    found = [replay_kv(tape, resolve("kv", cache.policy, cache.parameters)) for cache in caches]
    return {
        "kv_heads": [row for one in found for row in one.heads],
        "kv_timeline": [row for one in found for row in one.timeline],
        "kv_replays": [one.replay for one in found],
    }
