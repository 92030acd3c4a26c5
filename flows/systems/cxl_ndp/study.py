"""The GPU-NDP study: decode, requests, memory, bit widths and routing of five models, and what tapes of a live model say.

The knobs are read from hw/fits/cxl-ndp.toml (`tokentape calibrate cxl-ndp`); nothing is fitted here. What is drawn takes half a
minute, a model per process, and is computed anew with every run; tapes and jobs inside the live model are kept.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tokentape.capture.cxl_ndp.orderings import METHODS
from tokentape.flows.answers import Row, answer, answered, stated
from tokentape.flows.cxl_ndp import routing as ndp_routing
from tokentape.flows.running import Running
from tokentape.flows.systems.cxl_ndp import details, live, points, requests, routing
from tokentape.flows.systems.cxl_ndp.checks import checks, summary
from tokentape.flows.systems.cxl_ndp.fit import drawn
from tokentape.flows.systems.cxl_ndp.settings import PAPER, Model, Settings, setup
from tokentape.flows.systems.cxl_ndp.tapes import DRAWN, recorded
from tokentape.replay.cxl_ndp.routing import NDPRouting, joined
from tokentape.replay.cxl_ndp.system import FP16_BYTES
from tokentape.warehouse import models
from tokentape.warehouse.losses import loss_table
from tokentape.warehouse.model_sizes import total_params
from tokentape.warehouse.tape import Store

__all__ = ["Settings", "run"]
Rows = dict[str, list[Row]]
TOGETHER = "all data sets"  # source of the live model's tapes as one


def run(at: Running) -> list[Row]:
    """The answers. What is drawn is written first. Says which bars hold."""
    study, store = at.study, at.store
    inside = live.jobs(study) if at.in_model else []
    at.expect(study.models, inside)
    made: Rows = {} if study.is_copy else {"ndp_accuracy": details.accuracy_rows()}
    for _, of in at.each(of_model, study.models):
        _add(made, of)
    made["answers"] = [] if study.is_copy else answers(study, made)
    made["ndp_checks"] = [] if study.is_copy else checks(study, made)
    at.write(made)
    at.tell([] if study.is_copy else summary(made["ndp_checks"]))
    if not at.in_model:
        return made["answers"]
    losses = live.losses_tape(store, study)
    for method in METHODS:
        where = {"model_id": study.recorded.model, "source": losses, "method": method}
        table, layers = loss_table(store.open(losses), method), store.open(losses).geometry.moe_layers
        _add(made, {"ndp_loss_tables": list(details.loss_rows(table, layers, where))})
    tapes = [ndp_routing.of_tape(store, trace_id) for trace_id in recorded(store, study)]
    for tape in [*tapes, replace(joined(tapes), trace_id=TOGETHER)]:
        _add(made, of_tape(store, study, tape, losses))
    at.write(made)
    dict(at.each(partial(live.run_job, losses), inside))
    return made["answers"]


def answers(study: Settings, made: Rows) -> list[Row]:
    """Table 3's accuracies need the real models and are not answered; mode `short prompts` is the other grid of lengths."""
    footprint, claim = next(one for one in stated(PAPER).items() if one[1]["metric"] == "fp16_footprint")
    counted = FP16_BYTES * total_params(models.load(claim["model"]).geometry) / 1e9
    return [*answered(study.answers, PAPER, made), answer(footprint, counted, "counted from the model's geometry")]


def of_model(store: Store, study: Settings, model: Model) -> Rows:
    """Rows of a model's drawn tapes."""
    made = setup(study, model.name)
    tapes = drawn(made, model)
    where = {"model_id": made.shape.name, "source": DRAWN, "origin": "synthetic"}
    losses = [points.losses_of(made, seed) for seed in tapes]
    stand_in = {"model_id": made.shape.name, "source": DRAWN, "method": "stand-in"}
    bits, table_losses = details.bit_rows(study, made.knobs, list(tapes.values()), losses, stand_in, model.hot_experts)
    first = next(iter(tapes.values()))
    seen = study.recorded
    return {
        "ndp_points": list(points.rows(made, model, tapes)),
        "ndp_requests": list(requests.rows(made, model, tapes)),
        "ndp_hits": list(routing.hit_rows(list(tapes.values()), where, made.knobs, model.hot_experts)),
        "ndp_similarity": list(routing.similarity_rows(list(tapes.values()), where)),
        "ndp_use": list(routing.use_rows(first, where, seen.use_requests, seen.use_bin_steps)) if model.is_swept else [],
        "ndp_lanes": list(details.lanes(made, model, first, losses[0])),
        "ndp_loss_tables": list(details.loss_rows(losses[0], first.layers, stand_in)),
        "ndp_bits": bits,
        "ndp_losses": table_losses,
        "ndp_capacity": list(details.capacities(made, model)),
    }


def of_tape(store: Store, study: Settings, tape: NDPRouting, losses: str) -> Rows:
    """What recorded routing says, and the bits that its prompts give to measured losses. losses: id of their tape."""
    of, measured = study.recorded, store.open(losses)
    where = {"model_id": measured.manifest.model_id, "source": tape.trace_id, "origin": tape.origin}
    knobs = setup(study, study.models[0].name).knobs
    method = {"model_id": where["model_id"], "source": tape.trace_id, "method": METHODS[0]}
    table = loss_table(measured, METHODS[0])
    bits, table_losses = details.bit_rows(study, knobs, [tape], [table], method, of.hot_experts, weighted=False)
    return {
        "ndp_bits": bits,
        "ndp_losses": table_losses,
        "ndp_hits": list(routing.hit_rows([tape], where, knobs, of.hot_experts)),
        "ndp_similarity": list(routing.similarity_rows([tape], where)),
        "ndp_use": list(routing.use_rows(tape, where, of.use_requests, of.use_bin_steps)),
    }


def _add(made: Rows, of: Rows) -> None:
    for name, rows in of.items():
        made.setdefault(name, []).extend(rows)
