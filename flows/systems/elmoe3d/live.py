"""Speculation inside a live model: what drafts are accepted, and tapes of drafting for the machine and for replay.

Rows of `acceptance_points` and `orderings`. A job is one file or one tape; finished ones are skipped.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from tokentape.capture import models
from tokentape.capture.orderings import ACCEPTANCE_ORDERINGS, Effort, Lab, measured
from tokentape.capture.plan import CaptureSettings
from tokentape.capture.run import capture as record
from tokentape.capture.speculation.settings import DraftSettings
from tokentape.capture.speculation.study import Setting, bits_points, loop_points
from tokentape.flows import sources
from tokentape.flows.inside_model import sums_of_named
from tokentape.flows.systems.elmoe3d.settings import POINTS, Live, Settings
from tokentape.flows.tapes import rounds_of
from tokentape.policies.speculation import POOLS
from tokentape.warehouse.tape import Store, Tape

TABLES = ("requests", "tokens", "routing", "scores")
REPLAYED = ("tokentape.replay.rounds", "tokentape.policies.speculation")
MEASURED = ("tokentape.capture.speculation.study", "tokentape.capture.orderings", "tokentape.capture.run")
Job = str | Setting  # `orderings`, `bits`, a recorded tape of a drafter (`tape elastic`), or a setting of the loop


def jobs(study: Settings) -> list[Job]:
    """Everything measured inside the model."""
    live = study.live
    loops = [Setting(series=grid.series, **point) for grid in live.loops for point in grid.points()]
    return ["orderings", "bits", *loops, *(f"tape {drafter}" for drafter in live.recorded)]


def run_job(store: Store, study: Settings, job: Job) -> None:
    """Measures a job and writes its rows, unless they are there."""
    live = study.live
    what, _, drafter = str(job).partition(" ")
    if what == "tape":
        sizes = live.recorded_requests, live.prompt, live.output
        settings = CaptureSettings(live.model, live.dataset, TABLES, *sizes, speculation=DraftSettings(drafter))
        tape = store.open(record(settings, store, resume=True))
        of = f"{tape.trace_id}/{tape.content_sha256}/{live.pool_fracs}/{sources.sha256(*REPLAYED)}"
        if drafter == "elastic":
            study.once(store, of, POINTS, lambda: {POINTS: replay_points(tape, tuple(POOLS), live.pool_fracs)})
        return
    lengths = {"n_items": live.prompts, "prompt_tokens": live.prompt, "decode_tokens": live.output}
    effort = Effort(n_whole=live.whole_windows, dataset=live.dataset, **lengths)
    table = "orderings" if job == "orderings" else POINTS
    named = sums_of_named(live.model, live.dataset, live.prompts, live.seeds, False)
    of = f"{job!r}/{live.model}/{live.seeds}/{effort}/{live.pairs}/{live.schemes}/{named}/{sources.sha256(*MEASURED)}"
    study.once(store, of, table, lambda: {table: _measured(live, job, effort)})


def _measured(live: Live, job: Job, effort: Effort) -> list[dict[str, Any]]:
    loaded = models.load(models.find(live.model))
    if isinstance(job, Setting):
        return loop_points(loaded, live.seeds, effort, job)
    if job == "bits":
        return bits_points(loaded, live.seeds, effort, live.pairs, live.schemes)
    return measured(loaded, ACCEPTANCE_ORDERINGS, partial(Lab, loaded, effort=effort), live.seeds, dataset=live.dataset)


def replay_points(tape: Tape, pools: Sequence[str], pool_fracs: Sequence[float]) -> list[dict[str, Any]]:
    """Rows of `acceptance_points` without `study`, series replay: the proxies of every pool, from one tape."""
    rounds, m, rows = rounds_of(tape), tape.manifest, []
    n_rounds = len(tape.read("rounds").unique(["request_id", "round"]))
    common = {"model_id": m.model_id, "dataset": m.dataset, "n_seeds": 1, "n_rounds": n_rounds, "unit": "1"}
    for pool in pools:
        for frac in pool_fracs:
            chosen = {"temperature": m.settings["temperature"], "batch": m.settings["batch_size"]}
            draft = m.settings["speculation"] | {"pool": pool, "pool_frac": frac}
            setting = Setting(series="replay", **chosen, **draft)
            found, where = rounds.replay(pool, frac), setting.row(m.geometry.n_experts)
            for metric, value in found.proxies.items():
                told = {"fidelity": found.fidelity, "metric": metric, **dict.fromkeys(("value", "low", "high"), value)}
                rows.append({**common, **where, **told})
    return rows
