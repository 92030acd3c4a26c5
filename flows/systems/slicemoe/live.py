"""The SliceMoE policy inside a live model: quality at every budget, precision schemes, orderings, and how near replay comes.

Rows of `quality`, `orderings` and `fidelity`, every number with the study's seeds. A job is one file; finished ones are skipped.
"""

import json
from dataclasses import dataclass, fields
from functools import partial
from itertools import product
from typing import Any

from tokentape.capture import measure, models, orderings
from tokentape.capture.evaluate import quality_row
from tokentape.capture.live.quality import Cut, evaluate_inside
from tokentape.capture.orderings import Effort, Lab, measured
from tokentape.flows import sources
from tokentape.flows.fidelity import compare
from tokentape.flows.grid import load_hardware
from tokentape.flows.inside_model import sliced_run, sums_of_named
from tokentape.flows.systems.slicemoe.settings import Inside, Settings
from tokentape.replay.slicemoe import decode_cost
from tokentape.warehouse.tape import Store

ENGINES = {  # by what is measured
    "policy": ("tokentape.capture.live.system",),
    "fidelity": ("tokentape.capture.live.system", "tokentape.replay.slicemoe"),
    "schemes": ("tokentape.capture.orderings",),
    "orderings": ("tokentape.capture.orderings",),
}
PRECISION = "precision"  # of table `quality`: experts at one width throughout, no cache


@dataclass(frozen=True)
class Job:
    """What fills one file of `table`, measured in the study's live model with its seeds. effort: how much of which text a seed
    reads (docs/closed_loop.md).

    parameters, cache_frac: of the policy; schemes and orderings have their own. name: in the project's claims.
    """

    table: str
    what: str
    effort: Effort
    parameters: tuple[tuple[str, Any], ...] = ()
    cache_frac: float = 0.0
    name: str = ""

    def __str__(self) -> str:
        return " ".join([self.what, self.effort.dataset, *(str(value) for _, value in self.parameters)])


def jobs(study: Settings) -> list[Job]:
    """Everything measured inside the model."""
    return [_job(study, grid, given) for grid in study.live.grid for given in grid.points(items=study.live.windows)]


def _job(study: Settings, grid: Inside, given: dict[str, Any]) -> Job:
    live, name, cache_frac = study.live, given.pop("name", ""), given.pop("cache_frac", 0.0)
    text = {"n_items": given.pop("items"), "prompt_tokens": live.prompt, "decode_tokens": live.output}
    effort = Effort(n_whole=live.whole_windows, dataset=given.pop("dataset", live.dataset), **text)
    return Job(grid.table, grid.series, effort, tuple(given.items()), cache_frac, name)


def compared(study: Settings) -> list[dict[str, Any]]:
    """What is replayed and measured in the live model, with its name in the project's claims and `parameters` of its rows."""
    return [
        {
            "name": job.name,
            "model": study.live.name,
            "dataset": job.effort.dataset,
            "cache_frac": job.cache_frac,
            "parameters": json.dumps(sliced_run(dict(job.parameters), job.cache_frac).parameters, sort_keys=True),
        }
        for job in jobs(study)
        if job.what == "fidelity"
    ]


def price(study: Settings) -> dict[str, float | str]:
    """What a step of the live model takes on the study's machine, straight lines in the bytes that it moves: energy_j and step_s
    without any, and each per_dram_byte and per_flash_byte; and the model's dtype."""
    loaded = models.load(models.find(study.live.name))
    geometry = measure.geometry(loaded.model)
    machine, many = load_hardware(study.hardware), 1e6
    none, read, missed = (decode_cost(geometry, machine, *moved, 0.0) for moved in ((0.0, 0.0), (many, 0.0), (0.0, many)))
    found: dict[str, float | str] = {"dtype": loaded.dtype}
    for name, of in (("energy_j", "joules"), ("step_s", "seconds")):
        base, dram, flash = (float(getattr(cost, of).value[0]) for cost in (none, read, missed))
        found |= {name: base, f"{name}_per_dram_byte": (dram - base) / many, f"{name}_per_flash_byte": (flash - base) / many}
    return found


def run_job(store: Store, study: Settings, job: Job) -> None:
    """Measures a job and writes its rows, unless they are there."""
    machine = load_hardware(study.hardware)
    schemes = (study.live.schemes, study.live.scheme_pairs) if job.what == "schemes" else ()
    model, effort = study.live.name, job.effort
    named = sums_of_named(model, effort.dataset, effort.n_items, study.seeds, job.what == "policy")
    of = f"{model}/{study.seeds}/{job!r}/{schemes}/{machine.sha256}/{named}/{sources.sha256(*ENGINES[job.what])}"
    study.once(store, of, job.table, lambda: {job.table: _MEASURES[job.what](study, job)})


def _policy(study: Settings, job: Job) -> list[dict[str, Any]]:
    cut = {of.name: getattr(job.effort, of.name) for of in fields(Cut)}
    run = sliced_run(dict(job.parameters), job.cache_frac, **cut)
    loaded = models.load(models.find(study.live.name))
    return [evaluate_inside(loaded, job.effort.dataset, run, seed) for seed in study.seeds]


def _fidelity(study: Settings, job: Job) -> list[dict[str, Any]]:
    run = sliced_run(dict(job.parameters), job.cache_frac, n_items=job.effort.n_items)
    return compare(study.live.name, [job.effort.dataset], run, study.seeds, load_hardware(study.hardware), lambda *told: None)


def _schemes(study: Settings, job: Job) -> list[dict[str, Any]]:
    """Whole windows with every routed expert at the low width of a pair, made by each scheme (the paper's Table 1)."""
    effort, rows = job.effort, []
    loaded = models.load(models.find(study.live.name))
    size = {"n_items": effort.n_whole, "n_tokens": effort.n_whole * (effort.prompt_tokens + effort.decode_tokens - 1)}
    with models.suitable_threads(loaded.model):
        for seed in study.seeds:
            lab = Lab(loaded, seed, effort=effort)
            for pair, scheme in [(None, "full"), *product(study.live.scheme_pairs, study.live.schemes)]:
                scores = {"perplexity": lab.whole(pair, scheme) if pair else lab.whole(), **size}
                rows.append(quality_row(loaded, PRECISION, {"pair": pair, "scheme": scheme}, effort.dataset, seed, scores))
    return rows


def _orderings(study: Settings, job: Job) -> list[dict[str, Any]]:
    loaded = models.load(models.find(study.live.name))
    return measured(loaded, orderings.ORDERINGS, partial(Lab, loaded, effort=job.effort), study.seeds, dataset=job.effort.dataset)


_MEASURES = {"policy": _policy, "fidelity": _fidelity, "schemes": _schemes, "orderings": _orderings}
