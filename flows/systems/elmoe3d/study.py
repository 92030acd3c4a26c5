"""The ELMoE-3D study: Table 3 under every fit and hit law, sweeps past it, baselines, energy; what tapes and a live model say.

Constants are read from hw/fits/elmoe3d-*.toml (`tokentape calibrate elmoe3d`); nothing is fitted here but the refits that tell
what a fit without some rows would have predicted. Closed forms and tapes take seconds; the live model, minutes.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from tokentape.flows.answers import Row, answered, bars_held, stated
from tokentape.flows.grid import load_hardware
from tokentape.flows.running import Running
from tokentape.flows.systems.elmoe3d import live, tapes
from tokentape.flows.systems.elmoe3d.answers import HONESTY, MODES, answers
from tokentape.flows.systems.elmoe3d.points import ran, sweep_points, table_points
from tokentape.flows.systems.elmoe3d.settings import PAPER, Settings, setup_of
from tokentape.hw import profile as profiles
from tokentape.hw.elmoe3d_constants import ELMoE3DConstants
from tokentape.replay.elmoe3d.baselines import OURS, energy_rows, platform_rows, platforms, ratios
from tokentape.replay.elmoe3d.cells import cells
from tokentape.replay.elmoe3d.checks import check_rows
from tokentape.replay.elmoe3d.points import Setup, points_of
from tokentape.replay.elmoe3d.rows import TABLE_SERIES, evaluated, intensity_rows, mapping_rows, point_rows
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


def closed_forms(study: Settings, setup: Setup, table: pl.DataFrame, fits: list[ELMoE3DConstants]) -> Rows:
    """Rows of every table that needs no tape. fits: the headline's first."""
    headline, mine, profile = fits[0], ran(setup, table), profiles.load(study.profile)
    past, machines = sweep_points(study, setup, table, headline)
    every = pl.concat([table_points(study, mine, fits), past], how="diagonal_relaxed")
    found = evaluated(every, machines, profile)
    made: Rows = {"elmoe3d_points": point_rows(found, machines), "answers": []}
    if mine.is_empty():  # a copy with other models: Table 3, the mapping and the platforms are of the paper's
        return made
    specs = {OURS: load_hardware(study.machines[study.platforms.ours_gb])}
    specs |= {name: load_hardware(name) for name in study.platforms.baselines}
    ran_on = platforms(study.platforms, specs, setup, mine, headline, list(MODES), profile)
    made |= {
        "elmoe3d_mapping": mapping_rows(points_of(mine, headline), setup),
        "elmoe3d_platforms": platform_rows(ran_on).to_dicts(),
        "elmoe3d_energy": energy_rows(study.platforms, ran_on).to_dicts(),
        "elmoe3d_intensity": intensity_rows(study.platforms, setup, mine, headline, profile),
        "elmoe3d_checks": [],
    }
    if study.is_copy:
        return made
    of_table = found.filter(pl.col("series") == TABLE_SERIES).partition_by("level", "fit", "hit_model", as_dict=True)
    for fit in fits:
        for law in study.hit_models:
            nodes = study.platforms.headline_verify_nodes if fit is headline and law == study.hit_models[0] else None
            at = of_table[fit.level, fit.rows, law]
            made["elmoe3d_checks"] += check_rows(study.bars, stated(PAPER), setup, fit, at, nodes)
    by_law = {law: of_table[headline.level, headline.rows, law] for law in MODES}
    return {**made, "answers": answers(study, table, by_law, ratios(ran_on))}


def _from_tapes(store: Store, study: Settings, setup: Setup, fit: ELMoE3DConstants, points: list[dict[str, Any]]) -> Rows:
    """Misses and unique experts of every tape; adds the points of those that recorded acceptance."""
    tapes.drawn(store, study)
    made: Rows = {"elmoe3d_misses": [], "coverage_points": []}
    for trace_id in tapes.routed(store):
        for name, of in tapes.rows_of(store, study, fit, trace_id).items():
            made[name] += of
        points += tapes.measured_rows(store, study, setup, fit, trace_id)
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
