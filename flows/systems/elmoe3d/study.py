"""The ELMoE-3D study: Table 3 under every fit and hit law, sweeps past it, baselines, energy; what tapes and a live model say.

Constants are read from hw/fits/elmoe3d-*.toml (`tokentape calibrate elmoe3d`); nothing is fitted here but the refits that tell
what a fit without some rows would have predicted. Closed forms and tapes take seconds; the live model, minutes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tokentape.flows.console import note
from tokentape.flows.systems.elmoe3d import live, tapes
from tokentape.flows.systems.elmoe3d.answers import HONESTY, MODES, answers
from tokentape.flows.systems.elmoe3d.live_answers import live_answers
from tokentape.flows.systems.elmoe3d.platforms import Ran, energy_rows, platform_rows, platform_runs, ratios
from tokentape.flows.systems.elmoe3d.points import ran, rows, rows_of, sweep_jobs, table_jobs
from tokentape.flows.systems.elmoe3d.settings import Settings, setup_of
from tokentape.flows.systems.elmoe3d.tables import check_rows, intensity_rows, mapping_rows
from tokentape.flows.workers import each, pool_of
from tokentape.hw.elmoe3d_constants import ELMoE3DConstants
from tokentape.replay.elmoe3d.cells import Cell, Setup, cells
from tokentape.replay.elmoe3d.points import as_points
from tokentape.replay.elmoe3d.timing import evaluate
from tokentape.warehouse.load import claims
from tokentape.warehouse.tape import Store

__all__ = ["Settings", "run"]
Rows = dict[str, list[dict[str, Any]]]


def run(
    store: Store,
    progress: Callable[..., None],
    chosen: Settings | None = None,
    runner: str = "processes",
    workers: int | None = None,
    say: Callable[[str], None] = note,
    in_model: bool = True,
) -> list[dict[str, Any]]:
    """Runs what is missing of the study, writes its rows and answers, and returns the answers.

    The closed forms are written first. A job inside the live model is one file: an interrupted study goes on where it stopped.
    say: told the errors against the paper and what to know before trusting them. in_model: False measures nothing inside the
    live model and takes what was measured before.
    """
    study = chosen or Settings.shipped()
    setup, table, fits = setup_of(study), cells(claims().to_pylist()), study.load_fits()
    inside = live.jobs(study) if in_model else []
    total = len(inside) + 2
    progress(0, total, "closed forms")
    made = closed_forms(study, setup, table, list(fits.values()))
    study.write(store, made)
    for line in () if study.is_copy else summary(study, made["elmoe3d_checks"]):
        say(line)
    for n_done, (job, _) in enumerate(each(pool_of(runner, workers), partial(_live, store.absolute, study), inside)):
        progress(n_done + 1, total, str(job))
    progress(total - 1, total, "tapes")
    made |= _from_tapes(store, study, setup, fits[study.headline], made["elmoe3d_points"])
    made["answers"] += [] if study.is_copy else live_answers(study, study.rows(store, live.POINTS))
    study.write(store, made)
    progress(total, total, "done")
    return study.named(made["answers"])


def _live(uri: str, study: Settings, job: live.Job) -> None:
    live.run_job(Store(uri), study, job)


def closed_forms(study: Settings, setup: Setup, table: list[Cell], fits: list[ELMoE3DConstants]) -> Rows:
    """Rows of every table that needs no tape. fits: the headline's first."""
    headline, mine = fits[0], ran(setup, table)
    jobs = table_jobs(study, setup, mine, fits)
    found, made = {}, []
    checked: list[dict[str, Any]] = []
    n = max(1, len(mine))
    for i in range(0, len(jobs), n):  # one fit and one law at a time
        of = jobs[i : i + n]
        outcome, fit, law = evaluate(as_points([job.point for job in of])), of[0].fit, of[0].point.hit_model
        if fit is headline:
            found[law] = outcome
        made += rows(of, outcome)
        is_main = fit is headline and law == study.hit_models[0]
        checked += [] if study.is_copy else check_rows(study, setup, table, fit, law, outcome, is_main)
    made += rows_of(list(sweep_jobs(study, setup, table, headline)))
    if not mine:  # a copy with other models: Table 3, the mapping and the platforms are of the paper's
        return {"elmoe3d_points": made, "answers": []}
    by_law = _platforms(study, setup, mine, headline)
    every = [one for of in by_law.values() for one in of]
    return {
        "elmoe3d_points": made,
        "elmoe3d_mapping": list(mapping_rows(setup, mine, headline)),
        "elmoe3d_platforms": list(platform_rows(every)),
        "elmoe3d_energy": list(energy_rows(study, every)),
        "elmoe3d_intensity": list(intensity_rows(study, setup, mine, headline)),
        "elmoe3d_checks": checked,
        "answers": [] if study.is_copy else answers(study, table, found, {law: list(ratios(of)) for law, of in by_law.items()}),
    }


def _platforms(study: Settings, setup: Setup, table: list[Cell], fit: ELMoE3DConstants) -> dict[str, list[Ran]]:
    """By hit model, under every number of verified nodes."""
    return {
        law: [one for nodes in study.platforms.verify_nodes for one in platform_runs(study, setup, table, fit, law, nodes)]
        for law in MODES
    }


def _from_tapes(store: Store, study: Settings, setup: Setup, fit: ELMoE3DConstants, points: list[dict[str, Any]]) -> Rows:
    """Misses and unique experts of every tape; adds the points of those that recorded acceptance."""
    tapes.drawn(store, study)
    made: Rows = {"elmoe3d_misses": [], "coverage_points": []}
    for trace_id in tapes.routed(store):
        for name, of in tapes.rows_of(store, study, fit, trace_id).items():
            made[name] += of
        measured = tapes.measured_jobs(store, study, setup, fit, trace_id)
        if measured:
            points += rows_of(measured)
    return made


def summary(study: Settings, checked: list[dict[str, Any]]) -> list[str]:
    """What was reached against what counts as reproduced, at the headline, and the sentence that belongs beside it."""
    name = study.load_fits()[study.headline]
    law = study.hit_models[0]
    at = [row for row in checked if (row["level"], row["fit"], row["hit_model"]) == (name.level, name.rows, law)]
    held = [row for row in at if row["bar_low"] is not None]
    missed = [row["block"] for row in held if not row["bar_low"] <= row["value"] <= row["bar_high"]]
    errors = {row["block"]: row["value"] for row in at}
    ar, sd = errors["Phi_AR error, open rows, mean"], errors["Phi_SD error, predicted open rows, mean"]
    bars = f"{len(held) - len(missed)} of {len(held)} bars held" + (f"; not: {', '.join(missed)}" if missed else "")
    return [f"{study.headline}: Phi_AR off by {ar:.1%} on open rows, Phi_SD by {sd:.1%} on predicted ones; {bars}", HONESTY]
