"""The GPU-NDP study: decode, requests, memory, bit widths and routing of five models, and what tapes of a live model say.

The knobs are read from hw/fits/cxl_ndp.toml (`tokentape calibrate cxl_ndp`); nothing is fitted here. What is drawn takes half a
minute, a model per process, and is computed anew with every run; tapes and jobs inside the live model are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from tokentape.capture.cxl_ndp.orderings import METHODS
from tokentape.flows.console import note
from tokentape.flows.cxl_ndp import routing as cxl_ndp_routing
from tokentape.flows.systems.cxl_ndp import details, live, points, requests, routing
from tokentape.flows.systems.cxl_ndp.answers import answers
from tokentape.flows.systems.cxl_ndp.checks import checks, summary
from tokentape.flows.systems.cxl_ndp.fit import drawn
from tokentape.flows.systems.cxl_ndp.settings import Model, Settings, setup
from tokentape.flows.systems.cxl_ndp.tapes import DRAWN, recorded
from tokentape.flows.workers import each, pool_of
from tokentape.replay.cxl_ndp.routing import CXLNDPRouting, joined
from tokentape.warehouse.losses import loss_table
from tokentape.warehouse.tape import Store

__all__ = ["Settings", "run"]
Rows = dict[str, list[dict[str, Any]]]
TOGETHER = "all data sets"  # source of the live model's tapes as one


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

    What is drawn is written first. A job inside the live model is one file or one tape: an interrupted study goes on there.
    say: told which bars hold. in_model: False leaves out what is measured inside the live model.
    """
    study = chosen or Settings.shipped()
    inside = live.jobs(study) if in_model else []
    total = len(study.models) + len(inside)
    progress(0, total, "drawn routing")
    made: Rows = {} if study.is_copy else {"cxl_ndp_accuracy": details.accuracy_rows()}
    for n_done, (model, of) in enumerate(each(pool_of(runner, workers), partial(of_model, study), study.models)):
        progress(n_done + 1, total, model.name)
        _add(made, of)
    made["answers"] = [] if study.is_copy else answers(study, made)
    made["cxl_ndp_checks"] = [] if study.is_copy else checks(study, made)
    study.write(store, made)
    for line in () if study.is_copy else summary(made["cxl_ndp_checks"]):
        say(line)
    if not in_model:
        return study.named(made["answers"])
    n_done = len(study.models)
    progress(n_done, total, "tapes of the live model")
    losses = live.losses_tape(store, study)
    for method in METHODS:
        where = {"model_id": study.recorded.model, "source": losses, "method": method}
        table, layers = loss_table(store.open(losses), method), store.open(losses).geometry.moe_layers
        _add(made, {"cxl_ndp_loss_tables": list(details.loss_rows(table, layers, where))})
    tapes = [cxl_ndp_routing.of_tape(store, trace_id) for trace_id in recorded(store, study)]
    for tape in [*tapes, replace(joined(tapes), trace_id=TOGETHER)]:
        _add(made, of_tape(store, study, tape, losses))
    study.write(store, made)
    for n_measured, (job, _) in enumerate(each(pool_of(runner, workers), partial(_live, store.absolute, study, losses), inside)):
        progress(n_done + n_measured + 1, total, str(job))
    progress(total, total, "done")
    return study.named(made["answers"])


def of_model(study: Settings, model: Model) -> Rows:
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
        "cxl_ndp_points": list(points.rows(made, model, tapes)),
        "cxl_ndp_requests": list(requests.rows(made, model, tapes)),
        "cxl_ndp_hits": list(routing.hit_rows(list(tapes.values()), where, made.knobs, model.hot_experts)),
        "cxl_ndp_similarity": list(routing.similarity_rows(list(tapes.values()), where)),
        "cxl_ndp_use": list(routing.use_rows(first, where, seen.use_requests, seen.use_bin_steps)) if model.is_swept else [],
        "cxl_ndp_lanes": list(details.lanes(made, model, first, losses[0])),
        "cxl_ndp_loss_tables": list(details.loss_rows(losses[0], first.layers, stand_in)),
        "cxl_ndp_bits": bits,
        "cxl_ndp_losses": table_losses,
        "cxl_ndp_capacity": list(details.capacities(made, model)),
    }


def of_tape(store: Store, study: Settings, tape: CXLNDPRouting, losses: str) -> Rows:
    """What recorded routing says, and the bits that its prompts give to measured losses. losses: id of their tape."""
    of, measured = study.recorded, store.open(losses)
    where = {"model_id": measured.manifest.model_id, "source": tape.trace_id, "origin": tape.origin}
    knobs = setup(study, study.models[0].name).knobs
    method = {"model_id": where["model_id"], "source": tape.trace_id, "method": METHODS[0]}
    table = loss_table(measured, METHODS[0])
    bits, table_losses = details.bit_rows(study, knobs, [tape], [table], method, of.hot_experts, weighted=False)
    return {
        "cxl_ndp_bits": bits,
        "cxl_ndp_losses": table_losses,
        "cxl_ndp_hits": list(routing.hit_rows([tape], where, knobs, of.hot_experts)),
        "cxl_ndp_similarity": list(routing.similarity_rows([tape], where)),
        "cxl_ndp_use": list(routing.use_rows(tape, where, of.use_requests, of.use_bin_steps)),
    }


def _live(uri: str, study: Settings, losses: str, job: live.Job) -> None:
    live.run_job(Store(uri), study, losses, job)


def _add(made: Rows, of: Rows) -> None:
    for name, rows in of.items():
        made.setdefault(name, []).extend(rows)
