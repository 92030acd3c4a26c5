"""What was measured inside the model, over seeds: rows of `kelle_quality`, and the claim that a tape of it answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tokentape.flows.answers import answer, stated
from tokentape.flows.systems.kelle.live import Job, Row
from tokentape.flows.systems.kelle.settings import Settings
from tokentape.replay.kelle.fit import PAPER
from tokentape.replay.kelle.pareto import Tried

UNITS = {"perplexity": "1", "perplexity_ratio": "1", "kl": "nats", "acceptance": "1", "accuracy": "1", "kv_bytes": "B"}


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


def tried(measured: Mapping[Job, list[Row]]) -> Iterator[Tried]:
    """What is costed: series `budget`, and fixed point at some interval."""
    for job, rows in measured.items():
        if job.series == "budget" or (job.series == "refresh" and job.run.storage == "int16" and job.interval_us):
            by_seed = ([row[name] for row in rows] for name in ("perplexity", "kv_bytes"))
            yield Tried(setting_of(job, rows), job.run.policy, job.interval_us, *by_seed)


def setting_of(job: Job, rows: list[Row]) -> dict[str, Any]:
    """What both tables say of a setting."""
    run = job.run
    return {
        **{name: rows[0][name] for name in ("model_id", "dataset", "policy", "parameters")},
        "setting": job.setting,
        "setting_value": job.value,
        "budget_tokens": run.policy.budget,
        "storage": run.storage,
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
