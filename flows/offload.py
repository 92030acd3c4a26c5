"""What an engine measured while it streamed experts, beside what a replay predicts (replay/system/offload.py)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from tokentape.capture.importers.bigmoe import import_bigmoe
from tokentape.flows.system_runs import tape_of
from tokentape.hw.spec import HardwareSpec
from tokentape.replay.serving.validation import Row
from tokentape.replay.system import offload
from tokentape.warehouse.tape import Store


def rows_of(
    folder: Path,
    tapes: Path,
    machine: HardwareSpec,
    fit_on: str | None = None,
    show: Callable[[int, int, str], object] = lambda done, total, what: None,
) -> list[Row]:
    """Of every setting. fit_on: a log's name; None: of each model, the run that its tape is of. Raises ValueError naming what is
    missing."""
    if not machine.roles.expert_cache:
        raise ValueError(f"{machine.name} has no tier that experts are streamed from; give a machine with a backing tier")
    runs, rows = offload.read(folder), list[Row]()
    logs = {run.source: run for run in runs if run.manage_s}
    if fit_on is not None and fit_on not in logs:
        raise ValueError(f"--fit-on {fit_on}: no such log; those that lie there: {', '.join(logs)}")
    with tempfile.TemporaryDirectory() as place:
        store = Store(place)
        for model in dict.fromkeys(run.model for run in runs):
            of_model = [log for log in logs.values() if log.model == model]
            wanted = [log for log in of_model if (log.source == fit_on if fit_on else log.is_tape)]
            if not wanted:
                continue
            if not (tapes / wanted[0].tape).is_file():
                raise ValueError(f"{tapes / wanted[0].tape}: no such route trace; give its folder with --tapes")
            tape = tape_of(store, import_bigmoe(tapes / wanted[0].tape, store), wanted[0].geometry)
            as_fast, manage = offload.fitted(tape, wanted[0], machine)
            told = f"compute_s and manage_s of {wanted[0].source}"
            for run in (run for run in runs if run.model == model):
                show(runs.index(run), len(runs), run.source)
                rows += offload.compare(tape, run, as_fast, manage, told)
    return rows
