"""The SliceMoE study: sweeps over tapes, the policy inside a live model, and what both say about the paper's numbers.

Only claims of role `calibrate` are fitted: the LRU miss rates, by the tapes' generator (capture/synthetic), and the gains of
DeepSeek-V2-Lite, by the choice of tau among those of the study file. The other model's gains are predicted with that tau.
"""

from itertools import product
from typing import Any

from tokentape.flows.answers import Row, answered, numbers, queried
from tokentape.flows.grid import load_hardware
from tokentape.flows.running import Running
from tokentape.flows.systems.slicemoe import sweeps
from tokentape.flows.systems.slicemoe.settings import EQUAL_QUALITY, PAPER, Model, Settings
from tokentape.flows.tapes import composed
from tokentape.replay.slicemoe import operating_points
from tokentape.warehouse import models
from tokentape.warehouse.formats import slice_bytes
from tokentape.warehouse.results import rows_of
from tokentape.warehouse.tape import Store

__all__ = ["Settings", "run"]


def run(at: Running) -> list[Row]:
    """The answers; without the live model, by what was measured in it before."""
    study = at.study
    if at.in_model:
        from tokentape.flows.systems.slicemoe import live  # needs torch
    outputs = dict.fromkeys(grid.output for grid in study.grid if not grid.is_captured)
    drawn = [sweeps.Job(*job) for job in product(study.models, study.seeds, outputs)]
    recorded = [sweeps.Job(study.captured, seed) for seed in study.seeds] if at.in_model else []
    inside = live.jobs(study) if at.in_model else []
    at.expect(drawn, recorded, inside)
    ran = dict(at.each(sweeps.of_tape, [*drawn, *recorded]))
    # Tapes that are recorded inside the model are not asked for without it.
    study.only(at.store, "slicemoe_points", ran.values(), lambda of: not at.in_model and of["model_id"] == study.captured.name)
    if at.in_model:
        dict(at.each(live.run_job, inside))
    if study.is_copy:
        return []
    points = [row for job in drawn for row in rows_of(at.store, "slicemoe_points", ran[job]) or ()]
    machine, asked = load_hardware(study.hardware), asked_of(study, points)
    pairs = queried([study.pairs], PAPER, asked)
    geometries = {model.name: models.load(model.name).geometry for model in study.models}
    operating = operating_points(pairs, geometries, machine, composed({"pair": study.pair}).cache)
    made = answered(study.answers, PAPER, asked | {"machines": numbers([machine])}) + live_answers(study, at.store, asked)
    at.write({"answers": made, "operating_points": operating})
    return made


def live_answers(study: Settings, store: Store, asked: dict[str, list[Row]]) -> list[Row]:
    """By what was measured inside the model, now or before."""
    measured = {view: study.rows(store, view) for view in ("fidelity", "quality")}
    if not any(measured.values()):
        return []
    from tokentape.flows.systems.slicemoe import live  # needs torch

    told = {"inside": live.compared(study), "price": [live.price(study)]}
    return answered(study.live_answers, PAPER, asked | measured | told)


def asked_of(study: Settings, points: list[Row]) -> dict[str, list[Row]]:
    """What queries ask, gains among it. points: rows of slicemoe_points of the drawn tapes."""
    warm = study.warmed
    setting: dict[str, Any] = {
        "pair": study.pair,
        "capacities_bytes": [round(gb * 1e9) for gb in study.values(EQUAL_QUALITY, "capacity_gb")],
        **{f"warm_{name}": warm[of] for name, of in (("gb", "capacity_gb"), ("frac", "target_frac"), ("strength", "strength"))},
    }
    asked = {"slicemoe_points": points, "study": [setting], "models": [_sizes(model) for model in study.models]}
    return asked | {"gains": queried([study.gains], PAPER, asked)}


def _sizes(model: Model) -> Row:
    """expert_bytes: at MAT84."""
    geometry = models.load(model.name).geometry
    counted = {"n_layers": len(geometry.moe_layers), "n_experts": geometry.n_experts}
    expert_bytes = sum(slice_bytes(geometry.expert_params, 8, 4))
    return {"model_id": model.name, "calibrates": model.calibrates, "expert_bytes": expert_bytes, **counted}
