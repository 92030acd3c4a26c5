"""Runs any study, one of a published system or a grid of replays, and says in a line what it did."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from tokentape.flows.console import note, progress_bar, quantity
from tokentape.flows.systems import IN_MODEL, SYSTEMS, grids, system_of
from tokentape.flows.workers import check_runner, pool_of
from tokentape.policies.names import refuse_unknown

if TYPE_CHECKING:
    from tokentape.warehouse.tape import Store

SHOWN = 3  # reasons why replays of a grid are not possible


def check(name: str, runner: str | None, in_model: bool = True, traces: tuple[str, ...] = ()) -> None:
    """Raises ValueError where the study does not exist or does not take what is asked; imports nothing that computes."""
    if runner is not None:
        check_runner(runner)
    if name.endswith(".toml"):
        if not Path(name).is_file():
            raise ValueError(f"{name}: no such study; shipped ones are {', '.join((*grids(), *SYSTEMS))}")
    else:
        refuse_unknown("study", name, (*grids(), *SYSTEMS))
    system = system_of(name)
    if not in_model and system not in IN_MODEL:
        raise ValueError(f"study {name} measures nothing inside a live model; leave out --no-live")
    if traces and system:
        raise ValueError(f"study {name} makes its own tapes; leave out traces, or give a grid of replays")


def run_study(
    name: str,
    store: Store,
    runner: str | None = None,
    workers: int | None = None,
    in_model: bool = True,
    traces: tuple[str, ...] = (),
    pools: Callable[[str, int | None], Executor] = pool_of,
    bar: Callable[[str], AbstractContextManager[Callable[..., None]]] = progress_bar,
) -> dict[str, int]:
    """Runs what is missing of a study; returns how many answers, or replays computed, found finished and not possible.

    runner: threads or processes; by default processes for published systems, else threads. traces: in place of a grid's own.
    pools, bar: make the pool of a runner and its workers, and what is told how far it is. Raises ValueError as `check` does.
    """
    check(name, runner, in_model, traces)
    if system := system_of(name):
        from tokentape.flows.running import run

        module = importlib.import_module(SYSTEMS[system])
        study = module.Settings.shipped() if name == system else module.Settings.of_file(Path(name))
        store.remove_stale()
        with bar(f"study {study.name}") as show:
            how = {"show": show, "runner": runner or "processes", "workers": workers, "in_model": in_model, "pools": pools}
            answers = run(study, store, **how)
        if study.is_copy:
            note(f"study {study.name}: its runs are those of study '{study.name}'; a copy answers no number of the paper")
            return {"answers": 0}
        note(f"study {name}: {len(answers)} of the paper's numbers answered; `tokentape claims {name}` shows them")
        return {"answers": len(answers)}
    from tokentape.flows import grid
    from tokentape.flows import study as studies

    chosen = studies.load(name)
    if traces:
        chosen = chosen.on(traces)
    with bar(f"study {chosen.name}") as show:
        report = grid.run(chosen, store, runner or "threads", workers, show, pools, is_part=bool(traces))
    note(
        f"study {chosen.name}: {report.n_run} replays run, {report.n_found} found finished, {len(report.impossible)} not possible"
    )
    _note_impossible(report.impossible)
    return {"run": report.n_run, "found": report.n_found, "impossible": len(report.impossible)}


def plan_study(name: str, store: Store) -> dict[str, float | None]:
    """Says what `run_study` would do of a grid, and returns how many runs there are, found, left and not possible, and the bytes
    and CPU seconds that those left would take (None where no earlier run tells). Raises ValueError for a published system's
    study."""
    check(name, None)
    if system := system_of(name):
        raise ValueError(f"study {name}: what {system} runs is known only as it runs; leave out --dry-run")
    from tokentape.flows import study as studies
    from tokentape.flows.planned import planned

    chosen = studies.load(name)
    plan, impossible = planned(chosen, store)
    size = "size unknown: no earlier run tells" if plan["bytes"] is None else f"{quantity(plan['bytes'], 'B')} on disk"
    spent = "" if plan["cpu_s"] is None else f", {quantity(plan['cpu_s'], 's')} of CPU time"
    words = f"{plan['found']:,} found finished, {plan['impossible']:,} not possible, {plan['left']:,} to run ({size}{spent})"
    note(f"study {chosen.name}: {plan['runs']:,} runs: {words}")
    _note_impossible(impossible)
    return plan


def _note_impossible(impossible: Sequence[str]) -> None:
    note(*(f"  not possible: {reason}" for reason in impossible[:SHOWN]))
    if len(impossible) > SHOWN:
        note(f"  and {len(impossible) - SHOWN} more")
