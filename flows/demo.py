"""The demo: the whole way once, offline, from the embedded model and the papers' closed forms to pages.

What an earlier run finished is not made again.
"""

import importlib
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import Any

from tokentape.flows import steps, study
from tokentape.flows import system_runs as runs
from tokentape.flows.capture import Tape, record
from tokentape.flows.console import note, print_table
from tokentape.flows.estimates import estimated
from tokentape.flows.grid import Cell, replay_key
from tokentape.flows.publish import answered, publish
from tokentape.flows.running import run
from tokentape.flows.study_run import run_study
from tokentape.flows.systems import SYSTEMS
from tokentape.flows.workers import each, pool_of
from tokentape.hw import validate
from tokentape.replay.semantics import Semantics
from tokentape.replay.tokens import Tokens
from tokentape.warehouse.results import read_rows, write_rows
from tokentape.warehouse.tape import Store

DATASETS = ("code", "docs", "math", "recall")
STUDY = "baselines"
PAPERS = ("slicemoe", "offloaders", "layered_prefill", "cxl_ndp", "kelle", "elmoe3d")  # the longest first
RUNNER = "processes"
# What is compared on one tape: shipped systems of every kind, on two machines, in three rooms.
COMPARED = (
    *("near_compute", "prefill_guided", "prefill_guided_3bit", "monde", "layered", "sarathi", "layerwise_lru", "slicemoe"),
    *("kelle", "h2o", "quarot"),
)
MACHINES = ("workstation-rtx4090-pcie4", "h100-cxl-ndp")
ROOMS = ("25%", "50%", "75%")
TABLES = ("requests", "tokens", "routing", "scores", "attention")  # that all of them need of a tape
SERVED = "qwen3-30b-a3b"  # of the serving step on the hardware page


def run_demo(store: str | None = None, site: str = "site") -> tuple[str, list[str]]:
    """As plain Python: nothing of Prefect is imported."""

    def replay(name: str, store: str | None, traces: tuple[str, ...]) -> None:
        run_study(name, Store(store), traces=traces)

    return demo_steps(store, site, record, replay, publish, lambda name, work: work(), pool_of)


def demo_steps(
    store: str | None,
    site: str,
    capture: Callable[..., str],
    replay: Callable[..., Any],
    load_and_show: Callable[..., str],
    step: Callable[..., Any],
    pools: Callable[[str, int | None], Executor],
) -> tuple[str, list[str]]:
    """The demo, of the steps that it is given. Its index page, or where there are no pages the database, and its tapes.

    step: runs what it is given with a name; pools: as `pool_of`.
    """
    traces = []
    for dataset in DATASETS:
        traces.append(capture(Tape(dataset=dataset, tables=TABLES), store))
        note(f"tape      {traces[-1]}")
    replay(STUDY, store, tuple(traces))
    n_steps = step("steps for the hardware page", partial(_record_steps, Store(store), traces))
    note(f"steps     {n_steps} recorded for the hardware page")
    note(f"compared  {step('systems beside each other', partial(compared, Store(store), traces[0]))}")
    answered = {row["study"] for row in read_rows(Store(store), "answers")}
    missing = [paper for paper in PAPERS if paper not in answered]
    for paper, n_answers in each(pools(RUNNER, None), partial(answer_briefly, Store(store).absolute), missing):
        note(f"paper     {paper}: {n_answers} numbers answered in brief; `tokentape study {paper}` answers all")
    return load_and_show(store, site), traces


def compared(store: Store, trace_id: str) -> str:
    """Runs them, with the baselines of every comparison, or finds them in the store; what was compared, in words."""
    load = runs.workload_for(runs.tape_of(store, trace_id, None))
    asked = runs.Asked(trace_id, "lru_offload", "", load, expert_format="int8-g32")
    cells = [cell for room in ROOMS for cell in runs.compare(store, replace(asked, budget=room), COMPARED, MACHINES) if cell.runs]
    return f"{len({cell.system for cell in cells})} systems in {len(cells)} cells on {trace_id}"


def answer_briefly(uri: str, paper: str) -> int:
    """What the study of a paper's system answers in seconds: its closed forms, as its file's table [demo] bounds them."""
    settings = importlib.import_module(SYSTEMS[paper]).Settings.shipped(is_brief=True)
    return len(run(settings, Store(uri), runner="threads", workers=1, say=lambda line: None, in_model=False))


def _record_steps(store: Store, traces: list[str]) -> int:
    """For the hardware and validation pages: of every machine of the study one replayed step, a serving step, DRAM errors."""
    replayed = study.load(STUDY)
    for machine in replayed.hardware:
        semantics = Semantics("global", **replayed.semantics)
        cell = Cell(traces[0], "lru", (), machine, semantics, "50%", replayed.expert_formats[0])
        steps.of_replay(store, replay_key(store, cell, STUDY), "median")
    load = Tokens(decodes=16, context=4096)
    estimated(store, SERVED, "h100", load).write(store)
    anchors = validate.dram_anchors()
    write_rows(store, "validation", validate.errors(anchors).to_dicts(), of="dram")
    write_rows(store, "validation_points", validate.points(anchors).to_dicts(), of="dram")
    return len(replayed.hardware) + 1


def print_summary(traces: Iterable[str], store: str | None) -> None:
    """What the demo found, at half the experts' bytes: LRU, the best policy and the bound."""
    answer = answered(Store(store), "demo_summary", tapes=traces)
    print_table(
        "a cache for half of the experts' bytes; hits of all unique lookups", answer.columns, answer.rows(), answer.columns[3:]
    )
