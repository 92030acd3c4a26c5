"""The SliceMoE study: sweeps over tapes, the policy inside a live model, and what both say about the paper's numbers.

Only claims of role `calibrate` are fitted: the LRU miss rates, by the tapes' generator (capture/synthetic), and the gains of
DeepSeek-V2-Lite, by the choice of tau among those of the study file. The other model's gains are predicted with that tau.
"""

from __future__ import annotations

from itertools import product

import polars as pl

from tokentape.flows.answers import Row, stated
from tokentape.flows.grid import load_hardware
from tokentape.flows.running import Running
from tokentape.flows.systems.slicemoe import live, sweeps
from tokentape.flows.systems.slicemoe.answers import PAPER, answers, fidelity_answers, swept_of, tau_of
from tokentape.flows.systems.slicemoe.settings import Settings
from tokentape.replay.slicemoe.gains import operating_points
from tokentape.warehouse import models

__all__ = ["Settings", "run"]


def run(at: Running) -> list[Row]:
    """The answers; without the live model, by what was measured in it before."""
    study = at.study
    drawn = [sweeps.Job(*job) for job in product(study.models, study.seeds)]
    recorded = [sweeps.Job(study.captured, seed) for seed in study.seeds] if at.in_model else []
    inside = live.jobs(study) if at.in_model else []
    at.expect(drawn, recorded, inside)
    ran = dict(at.each(sweeps.of_tape, [*drawn, *recorded]))
    dict(at.each(live.run_job, inside))
    if study.is_copy:
        return []
    points = (pl.DataFrame(study.rows_of(at.store, "slicemoe_points", ran[job]), infer_schema_length=None) for job in drawn)
    machine, swept = load_hardware(study.hardware), swept_of(study, pl.concat(points, how="vertical_relaxed"))
    made = answers(study, machine, swept) + fidelity_answers(study, study.rows(at.store, "fidelity"))
    geometries = {model.name: models.load(model.name).geometry for model in study.models}
    operating = operating_points(swept, tau_of(study, swept), geometries, machine, stated(PAPER))
    at.write({"answers": made, "operating_points": operating})
    return made
