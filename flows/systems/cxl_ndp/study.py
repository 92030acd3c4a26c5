"""The GPU-NDP study: decode, requests, memory, bit widths and routing of five models, and what tapes of a live model say.

Times are those of hw/profiles/cxl_ndp.toml (`tokentape calibrate cxl_ndp`); nothing is fitted here. What is drawn takes half a
minute, a model per process, and is computed anew with every run; tapes and jobs inside the live model are kept.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from tokentape import warehouse
from tokentape.flows.answers import Row, answered, bars_held, queried
from tokentape.flows.running import Running
from tokentape.flows.systems.cxl_ndp import points
from tokentape.flows.systems.cxl_ndp import routing as cxl_ndp_routing
from tokentape.flows.systems.cxl_ndp.settings import PAPER, Model, Settings, setup
from tokentape.hw.work import Floats
from tokentape.replay.cxl_ndp.bit_losses import bit_rows, loss_rows
from tokentape.replay.cxl_ndp.hits import hits_over_seeds, similarity_over_seeds, use_rows
from tokentape.replay.cxl_ndp.lanes import lanes
from tokentape.replay.cxl_ndp.prefill import request_rows
from tokentape.replay.cxl_ndp.routing import CXLNDPRouting, joined
from tokentape.replay.cxl_ndp.setting import decoded
from tokentape.replay.cxl_ndp.system import parts
from tokentape.warehouse import models
from tokentape.warehouse.losses import loss_table
from tokentape.warehouse.model_sizes import total_params
from tokentape.warehouse.tape import Store

__all__ = ["Settings", "run"]
Rows = dict[str, list[Row]]
ACCURACY = Path(str(warehouse.__path__[0])) / "claims" / "cxl_ndp_table3_accuracy.csv"
TOGETHER = "all data sets"  # source of the live model's tapes as one


def run(at: Running) -> list[Row]:
    """The answers. What is drawn is written first. Says which bars hold."""
    study, store = at.study, at.store
    if at.in_model:
        from tokentape.capture.cxl_ndp.orderings import CALIBRATION, METHODS  # needs torch, as all that is live
        from tokentape.capture.run import CaptureSettings, capture
        from tokentape.flows.systems.cxl_ndp import live
    inside = live.jobs(study) if at.in_model else []
    at.expect(study.models, inside)
    made: Rows = {} if study.is_copy else {"cxl_ndp_accuracy": accuracy_rows()}
    for _, of in at.each(of_model, study.models):
        _add(made, of)
    made["answers"] = [] if study.is_copy else answers(study, made)
    made["cxl_ndp_checks"] = [] if study.is_copy else check_rows(study, made)
    at.write(made)
    at.tell([] if study.is_copy else [bars_held(made["cxl_ndp_checks"])])
    if not at.in_model:
        return made["answers"]
    calibrating = CaptureSettings(model=study.recorded.model, tables=("losses",), **CALIBRATION)
    losses = capture(calibrating, store, resume=True)
    for method in METHODS:
        where = {"model_id": study.recorded.model, "source": losses, "method": method}
        table, layers = loss_table(store.open(losses), method), store.open(losses).geometry.moe_layers
        _add(made, {"cxl_ndp_loss_tables": list(loss_rows(table, layers, where))})
    tapes = [cxl_ndp_routing.of_tape(store, trace_id) for trace_id in live.recorded(store, study)]
    for tape in [*tapes, replace(joined(tapes), trace_id=TOGETHER)]:
        _add(made, of_tape(store, study, tape, losses, METHODS[0]))
    at.write(made)
    dict(at.each(partial(live.run_job, losses), inside))
    return made["answers"]


def answers(study: Settings, made: Rows) -> list[Row]:
    """Table 3's accuracies need the real models and are not answered; mode `short prompts` is the other grid of lengths."""
    return answered(study.answers, PAPER, made | {"models": _models(study)})


def check_rows(study: Settings, made: Rows) -> list[Row]:
    """Rows of `cxl_ndp_checks`. made: rows by view, answers among them."""
    return queried(study.checks, PAPER, made | {"models": _models(study)}, "cxl_ndp_checks")


def _models(study: Settings) -> list[Row]:
    sizes = {model.name: total_params(models.load(model.name).geometry) for model in study.models}
    return [{"model_id": model.name, "hot_experts": model.hot_experts, "n_params": sizes[model.name]} for model in study.models]


def of_model(store: Store, study: Settings, model: Model) -> Rows:
    """Rows of a model's drawn tapes."""
    made = setup(study, model.name)
    drawn, headline = points.drawn(study, made, model), points.headline(study, made, model)
    tapes, losses = list(drawn.values()), [points.losses_of(study, made, seed) for seed in drawn]
    where = {"model_id": made.name, "source": points.DRAWN, "origin": "synthetic"}
    by_seed = [decoded(tape, seed, headline, of) for (seed, tape), of in zip(drawn.items(), losses, strict=True)]
    served = request_rows(made, headline.setting, by_seed, study.requests.grids, study.requests.decode_tokens)
    stored = {"hardware": made.machine.name, "model_id": made.name, "hot_experts": model.hot_experts}
    stand_in = {"model_id": made.name, "source": points.DRAWN, "method": "stand-in"}
    found = of_routing(study, tapes, losses, where, "stand-in", model.hot_experts)
    return found | {
        "cxl_ndp_points": list(points.rows(study, made, model, drawn)),
        "cxl_ndp_requests": [where | row for row in served],
        "cxl_ndp_use": found["cxl_ndp_use"] if model.is_swept else [],
        "cxl_ndp_lanes": list(lanes(made, headline.setting, headline.systems, tapes[0], losses[0])),
        "cxl_ndp_loss_tables": list(loss_rows(losses[0], tapes[0].layers, stand_in)),
        "cxl_ndp_capacity": [stored | part for part in parts(made, model.hot_experts, study.batch)],
    }


def of_tape(store: Store, study: Settings, tape: CXLNDPRouting, losses: str, quantiser: str) -> Rows:
    """What recorded routing says, and the bits that its prompts give to measured losses. losses: id of their tape; quantiser:
    that they were measured with."""
    measured = store.open(losses)
    where = {"model_id": measured.manifest.model_id, "source": tape.trace_id, "origin": tape.origin}
    table = loss_table(measured, quantiser)
    return of_routing(study, [tape], [table], where, quantiser, study.recorded.hot_experts, weighted=False)


def of_routing(
    study: Settings, tapes: list[CXLNDPRouting], losses: list[Floats], where: Row, method: str, hot: int, weighted: bool = True
) -> Rows:
    """What routing says by itself, of a tape per seed, and the bits that its prompts give to a table of losses for each; expert
    use is that of the first. where: model_id, source and origin."""
    first, (n, bin_steps) = tapes[0], (study.recorded.use_requests, study.recorded.use_bin_steps)
    of = {"model_id": where["model_id"], "source": where["source"], "method": method}
    bits, table_losses = bit_rows(study.losses.mean_bits, study.batch, tapes, losses, of, hot, weighted)
    return {
        "cxl_ndp_bits": bits,
        "cxl_ndp_losses": table_losses,
        "cxl_ndp_hits": list(hits_over_seeds(tapes, where, study.batch, study.ema_beta, hot)),
        "cxl_ndp_similarity": list(similarity_over_seeds(tapes, where)),
        "cxl_ndp_use": [where | row for row in use_rows(first, np.flatnonzero(first.n_decode)[:n], bin_steps)],
    }


def _add(made: Rows, of: Rows) -> None:
    for name, rows in of.items():
        made.setdefault(name, []).extend(rows)


def accuracy_rows() -> list[Row]:
    """Table 3 of the paper, as printed."""
    printed = pl.read_csv(ACCURACY).select("method", "task", pl.col("accuracy_pct").cast(pl.Float64), model_id="model")
    return printed.to_dicts()
