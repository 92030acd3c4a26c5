"""The SliceMoE policy inside a live model: quality at every budget, precision schemes, orderings, and how near replay comes.

Rows of `quality`, `orderings` and `fidelity`, every number with the study's seeds. A job is one file; finished ones are skipped.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import product
from typing import Any

import capture
from capture import models
from capture.evaluate import NOT_MEASURED
from capture.evaluate_policy import evaluate_policy
from capture.orderings import Effort, Lab, orderings
from flows.fidelity import compare
from flows.grid import load_hardware, source_sha256
from flows.sliced_policy import inside_model
from flows.systems.slicemoe.settings import NAME, Live, Settings
from policies.sliced import PRECISIONS
from warehouse.results import side_path, write_rows
from warehouse.tape import Store

PRECISION = "precision"  # of table `quality`: experts at one width throughout, no cache


@dataclass(frozen=True)
class Job:
    """What fills one file of one table. parameters: of the policy, but for `schemes` and `orderings`, which have none."""

    table: str
    what: str
    parameters: tuple[tuple[str, Any], ...] = ()
    cache_frac: float = 0.0


def jobs(live: Live) -> list[Job]:
    """Everything measured inside the model, longest first."""
    found = [Job("orderings", "orderings"), Job("quality", "schemes")]
    routed = (("router", "cache_prior"), ("precision", "high-bit"))
    found.append(Job("fidelity", "fidelity", routed, live.fidelity_cache_frac))
    for pair, precision in product(live.pairs, PRECISIONS):
        chosen = (("pair", pair), ("precision", precision))
        held = [(*chosen, ("budget", "hard"), ("budget.target_frac", target)) for target in live.targets]
        found += [Job("quality", "policy", parameters, live.cache_frac) for parameters in (chosen, *held)]
        if precision in ("high-bit", "dbsc"):
            found.append(Job("quality", "policy", chosen, live.spare_cache_frac))
    return found


def run_job(store: Store, study: Settings, job: Job) -> None:
    """Measures a job and writes its rows, unless they are there."""
    of = f"{NAME}/{job}/{study.live.model_dump_json()}/{study.seeds}/{study.hardware}/{source_sha256(capture)}"
    if store.fs.exists(side_path(store, job.table, of)):
        return
    write_rows(store, job.table, _MEASURES[job.what](study, job), of=of)


def _policy(study: Settings, job: Job) -> list[dict[str, Any]]:
    live = study.live
    lengths = {"n_items": live.windows, "prompt_tokens": live.prompt, "decode_tokens": live.output}
    run = inside_model(dict(job.parameters), job.cache_frac, **lengths)
    loaded = models.load(models.find(live.name))
    return [evaluate_policy(loaded, live.dataset, run, seed)[0] for seed in study.seeds]


def _fidelity(study: Settings, job: Job) -> list[dict[str, Any]]:
    live = study.live
    run = inside_model(dict(job.parameters), job.cache_frac, n_items=live.windows)
    return compare(live.name, [live.dataset], run, len(study.seeds), load_hardware(study.hardware), lambda *told: None)


def _schemes(study: Settings, job: Job) -> list[dict[str, Any]]:
    """Whole windows with every routed expert at the low width of a pair, made by each scheme (the paper's Table 1)."""
    live, rows = study.live, []
    loaded = models.load(models.find(live.name))
    size = {"n_items": live.whole_windows, "n_tokens": live.whole_windows * (live.prompt + live.output - 1)}
    with models.suitable_threads(loaded.model):
        for seed in study.seeds:
            lab = Lab(loaded, seed, _effort(live))
            for pair, scheme in [(None, "full"), *product(live.scheme_pairs, live.schemes)]:
                named = json.dumps({"pair": pair, "scheme": scheme}, sort_keys=True)
                measured = {"perplexity": lab.whole(pair, scheme) if pair else lab.whole(), **size}
                where = {"model_id": loaded.source.model_id, "policy": PRECISION, "parameters": named, "dataset": live.dataset}
                rows.append(NOT_MEASURED | where | {"seed": seed} | measured)
    return rows


def _orderings(study: Settings, job: Job) -> list[dict[str, Any]]:
    return orderings(models.load(models.find(study.live.name)), study.seeds, _effort(study.live))


def _effort(live: Live) -> Effort:
    return Effort(live.windows, live.prompt, live.output, live.whole_windows)


_MEASURES = {"policy": _policy, "fidelity": _fidelity, "schemes": _schemes, "orderings": _orderings}
