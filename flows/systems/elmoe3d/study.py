"""The ELMoE-3D study: Table 3 under every fit and hit law, sweeps past it, baselines, energy; what tapes and a live model say.

Constants are read from hw/fits/elmoe3d-*.toml (`tokentape calibrate elmoe3d`); nothing is fitted here but the refits that tell
what a fit without some rows would have predicted. Closed forms and tapes take seconds; the live model, minutes.
"""

from __future__ import annotations

from typing import Any

from tokentape.flows.answers import Row, answered, bars_held, stated
from tokentape.flows.grid import load_hardware
from tokentape.flows.running import Running
from tokentape.flows.systems.elmoe3d import live, tapes
from tokentape.flows.systems.elmoe3d.answers import HONESTY, MODES, answers
from tokentape.flows.systems.elmoe3d.points import ran, sweep_jobs, table_jobs
from tokentape.flows.systems.elmoe3d.settings import PAPER, Settings, setup_of
from tokentape.hw import profile as profiles
from tokentape.hw.elmoe3d_constants import ELMoE3DConstants
from tokentape.replay.elmoe3d.baselines import OURS, Ran, energy_rows, platform_rows, platform_runs, ratios
from tokentape.replay.elmoe3d.cells import Cell, Setup, cells
from tokentape.replay.elmoe3d.points import as_points
from tokentape.replay.elmoe3d.rows import rows, rows_of
from tokentape.replay.elmoe3d.tables import check_rows, intensity_rows, mapping_rows
from tokentape.replay.elmoe3d.timing import evaluate
from tokentape.replay.elmoe3d.work import findings
from tokentape.warehouse.load import claims
from tokentape.warehouse.tape import Store

__all__ = ["Settings", "run"]
Rows = dict[str, list[dict[str, Any]]]


def run(at: Running) -> list[Row]:
    """The answers; without the live model, by what was measured in it before. The closed forms are written first.

    Says the errors against the paper, and what to know before trusting them.
    """
    study, inside = at.study, live.jobs(at.study) if at.in_model else []
    at.expect(["closed forms"], inside, ["tapes"])
    setup, table, fits = setup_of(study), cells(claims().to_pylist()), study.load_fits()
    made = closed_forms(study, setup, table, list(fits.values()))
    at.write(made)
    beside = [said for machine in setup.machines.values() for said in findings(machine)]
    at.tell([*([] if study.is_copy else summary(study, made["elmoe3d_checks"])), *dict.fromkeys(beside)])
    at.did("closed forms")
    dict(at.each(live.run_job, inside))
    made |= _from_tapes(at.store, study, setup, fits[study.headline], made["elmoe3d_points"])
    made["answers"] += [] if study.is_copy else live_answers(study, study.rows(at.store, live.POINTS))
    at.write(made)
    at.did("tapes")
    return made["answers"]


def live_answers(study: Settings, points: list[Row]) -> list[Row]:
    """points: rows of acceptance_points; without those of the pools their claim stays open."""
    return answered(study.answers, PAPER, {live.POINTS: points})


def closed_forms(study: Settings, setup: Setup, table: list[Cell], fits: list[ELMoE3DConstants]) -> Rows:
    """Rows of every table that needs no tape. fits: the headline's first."""
    headline, mine, profile = fits[0], ran(setup, table), profiles.load(study.profile)
    jobs = table_jobs(study, setup, mine, fits)
    every_job = [*jobs, *sweep_jobs(study, setup, table, headline)]
    all_found = evaluate(as_points([job.point for job in every_job]), profile)
    made, found = rows(every_job, all_found), {}
    checked: list[dict[str, Any]] = []
    n = max(1, len(mine))
    for i in range(0, len(jobs), n):  # one fit and one law at a time
        outcome, fit, law = all_found.of(slice(i, i + n)), jobs[i].fit, jobs[i].point.hit_model
        if fit is headline:
            found[law] = outcome
        nodes = study.platforms.headline_verify_nodes if fit is headline and law == study.hit_models[0] else None
        if not study.is_copy:
            checked += check_rows(study.bars, stated(PAPER), setup, table, fit, law, outcome, nodes)
    if not mine:  # a copy with other models: Table 3, the mapping and the platforms are of the paper's
        return {"elmoe3d_points": made, "answers": []}
    every = platforms(study, setup, mine, headline)
    by_law = {law: list(ratios([one for one in every if one.hit_model == law])) for law in MODES}
    return {
        "elmoe3d_points": made,
        "elmoe3d_mapping": list(mapping_rows(setup, mine, headline)),
        "elmoe3d_platforms": list(platform_rows(every)),
        "elmoe3d_energy": list(energy_rows(study.platforms, every)),
        "elmoe3d_intensity": list(intensity_rows(study.platforms, setup, mine, headline, profile)),
        "elmoe3d_checks": checked,
        "answers": [] if study.is_copy else answers(study, table, found, by_law),
    }


def platforms(study: Settings, setup: Setup, table: list[Cell], fit: ELMoE3DConstants) -> list[Ran]:
    """By hit model, under every number of verified nodes."""
    of, profile = study.platforms, profiles.load(study.profile)
    specs = {OURS: load_hardware(study.machines[of.ours_gb])} | {name: load_hardware(name) for name in of.baselines}
    runs = platform_runs(of, specs, setup, table, fit, list(MODES), profile)
    order = {law: i for i, law in enumerate(MODES)}
    return sorted(runs, key=lambda one: (order[one.hit_model], of.verify_nodes.index(one.verify_nodes)))


def _from_tapes(store: Store, study: Settings, setup: Setup, fit: ELMoE3DConstants, points: list[dict[str, Any]]) -> Rows:
    """Misses and unique experts of every tape; adds the points of those that recorded acceptance."""
    tapes.drawn(store, study)
    made: Rows = {"elmoe3d_misses": [], "coverage_points": []}
    for trace_id in tapes.routed(store):
        for name, of in tapes.rows_of(store, study, fit, trace_id).items():
            made[name] += of
        measured = tapes.measured_jobs(store, study, setup, fit, trace_id)
        if measured:
            points += rows_of(measured, study.profile)
    return made


def summary(study: Settings, checked: list[dict[str, Any]]) -> list[str]:
    """What was reached against what counts as reproduced, at the headline, and the sentence that belongs beside it."""
    name = study.load_fits()[study.headline]
    law = study.hit_models[0]
    at = [row for row in checked if (row["level"], row["fit"], row["hit_model"]) == (name.level, name.rows, law)]
    errors = {row["block"]: row["value"] for row in at}
    ar, sd = errors["Phi_AR error, open rows, mean"], errors["Phi_SD error, predicted open rows, mean"]
    off = f"{study.headline}: Phi_AR off by {ar:.1%} on open rows, Phi_SD by {sd:.1%} on predicted ones"
    return [f"{off}; {bars_held(at, 'block')}", HONESTY]
