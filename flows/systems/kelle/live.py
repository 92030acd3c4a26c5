"""KV policies and lost bits inside a live model: quality by seed, orderings, how far replay strays, and a tape's attention.

Rows of `quality`, `orderings`, `kv_divergence` and the `kv_*` tables of a replay: a job is one file; finished ones are skipped.
From them those of `kelle_quality` over seeds, what is costed, and the claim that a tape answers.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from tokentape.capture import models
from tokentape.capture.live.divergence import divergence
from tokentape.capture.live.kv_orderings import ORDERINGS, PAPER_ORDERINGS, WORD_ORDERINGS, Lab
from tokentape.capture.live.quality import Cut, evaluate_inside
from tokentape.capture.live.system import SystemTried
from tokentape.capture.orderings import measured
from tokentape.capture.plan import CaptureSettings
from tokentape.capture.run import capture as record
from tokentape.flows import sources
from tokentape.flows.answers import answer, stated
from tokentape.flows.inside_model import kv_run, sums_of_named
from tokentape.flows.study_file import Made
from tokentape.flows.systems.kelle.settings import PAPER, Live, Settings
from tokentape.flows.tapes import attention_tape
from tokentape.policies.kv.refresh import Intervals
from tokentape.policies.resolve import resolve
from tokentape.replay.kv.replay import replay_kv
from tokentape.warehouse.results import rows_of
from tokentape.warehouse.tape import Store

Row = dict[str, Any]
UNITS = dict.fromkeys(("perplexity", "perplexity_ratio", "acceptance", "accuracy", "recompute_ops"), "1")
UNITS |= {"kl": "nats", "kv_bytes": "B"}
ENGINES = {  # by the table that they fill
    "quality": ("tokentape.capture.live.system",),
    "orderings": ("tokentape.capture.live.kv_orderings",),
    "kv_divergence": ("tokentape.capture.live.divergence",),
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
    def run(self) -> SystemTried:
        """The policy as it is tried. Raises ValueError for one that is unknown, or parameters that do not fit."""
        lengths = {"prompt_tokens": self.prompt, "decode_tokens": self.output}
        return kv_run(self.policy, {**dict(self.parameters), **lengths}, self.items)


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

    beside = evicting(study) if job.table == "kv_replays" else ""
    named = sums_of_named(live.model, job.dataset, job.items, live.seeds, job.table == "quality")
    decided = f"{job!r}/{beside}/{live.model}/{live.seeds}/{named}/{sources.sha256(*ENGINES[job.table])}"
    of = study.once(store, decided, job.table, make)
    return rows_of(store, job.table, of) or []


def _measured(live: Live, job: Job) -> list[Row]:
    loaded = models.load(models.find(live.model))
    if job.table == "orderings":
        others = ORDERINGS if job.dataset == live.dataset else WORD_ORDERINGS
        asked = PAPER_ORDERINGS if job.setting == "paper" else others
        cut = Cut(n_items=job.items, prompt_tokens=job.prompt, decode_tokens=job.output)
        return measured(loaded, asked, partial(Lab, loaded, cut=cut, dataset=job.dataset), live.seeds, dataset=job.dataset)
    run = job.run
    if job.table == "kv_divergence":
        return [row for seed in live.seeds for row in divergence(loaded, job.dataset, run, seed)]
    return [evaluate_inside(loaded, job.dataset, run, seed) for seed in live.seeds]


def evicting(study: Settings) -> list[tuple[str, dict[str, Any]]]:
    """Policies that are held against their replay, with their parameters."""
    return [(one.policy, dict(one.parameters)) for one in jobs(study) if one.table == "kv_divergence"]


def _replayed(store: Store, study: Settings, job: Job) -> dict[str, list[Row]]:
    """A recorded tape through the policies that are held against their replay, and the bound; by table."""
    tables = ("requests", "tokens", "attention")
    settings = CaptureSettings(study.live.model, job.dataset, tables, job.items, job.prompt, job.output)
    tape = attention_tape(store, record(settings, store, resume=True))
    policies = [resolve("kv", name, given | dict(job.parameters)) for name, given in (*evicting(study), ("oracle", {}))]
    found = [replay_kv(tape, policy).tables for policy in policies]
    return {table: [row for one in found for row in one[table]] for table in found[0]}


def quality_rows(measured: Mapping[Job, list[Row]]) -> Iterator[Row]:
    """measured: rows of table `quality` by seed; of a series, the first job is what its perplexities are divided by."""
    references: dict[str, dict[int, float | None]] = {}
    for job, rows in measured.items():
        reference = references.setdefault(job.series, {row["seed"]: row["perplexity"] for row in rows})
        by_seed = [row | {"perplexity_ratio": _over(row["perplexity"], reference[row["seed"]])} for row in rows]
        for metric, unit in UNITS.items():
            values = [row[metric] for row in by_seed if row[metric] is not None]
            if values:
                yield setting_of(job, rows) | {
                    "series": job.series,
                    "metric": metric,
                    "unit": unit,
                    "value": sum(values) / len(values),
                    "low": min(values),
                    "high": max(values),
                }


def tried(measured: Mapping[Job, list[Row]]) -> Iterator[tuple[Any, ...]]:
    """Fields of what is costed (replay/kelle/pareto.py): series `budget`, and fixed point at some interval."""
    for job, rows in measured.items():
        system, stored = job.run.system, job.run.parameters["storage"]
        interval_us = None if system.refresh is None else system.refresh.harmonic_mean_us  # None: no bits are lost
        if job.series == "budget" or (job.series == "refresh" and stored == "int16" and interval_us):
            by_seed = ([row[name] for row in rows] for name in ("perplexity", "kv_bytes"))
            yield setting_of(job, rows), system.kv, interval_us, *by_seed


def setting_of(job: Job, rows: list[Row]) -> dict[str, Any]:
    """What both tables say of a setting."""
    run = job.run
    return {
        **{name: rows[0][name] for name in ("model_id", "dataset", "policy", "parameters")},
        "setting": job.setting,
        "setting_value": job.value,
        "budget_tokens": run.system.kv.budget,
        "storage": run.parameters["storage"],
        "n_seeds": len(rows),
    }


def _over(perplexity: float | None, reference: float | None) -> float | None:
    return None if perplexity is None or reference is None else perplexity / reference


def popularity_answer(study: Settings, tape: Job, replayed: list[Row]) -> Row:
    """How many tokens stay popular in the live model's tape under Kelle's policy; the paper's are of large models."""
    claim = next(claim for claim, row in stated(PAPER).items() if row["metric"] == "popular_token_persistence")
    of = next(row for row in replayed if row["policy"] == "aerp" and json.loads(row["parameters"])["importance"] == "sum")
    budget, model = dict(tape.parameters)["budget"], study.live.model
    how = f"{model} on {tape.dataset}, {tape.items} requests of {tape.prompt} tokens, budget {budget}"
    return answer(claim, 100.0 * of["popular_stays_frac"], how)
