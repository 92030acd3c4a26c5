"""Stages of real engines on a machine: each engine's costs are made once, and its stages run on them."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from tokentape.flows.console import note, progress_bar
from tokentape.flows.grid import load_hardware
from tokentape.hw import spec
from tokentape.replay.serving.client import Client
from tokentape.replay.serving.engine_logs import Engine, Served
from tokentape.replay.serving.iteration import IterationCosts
from tokentape.replay.serving.run import Limits, ServingRun, serve
from tokentape.replay.serving.validation import on_engine, scheduler_of
from tokentape.warehouse import models

Run = Callable[[Served, float], ServingRun]


def costs_of(
    engine: Engine, hardware: str, model: str | None, fits: Path | None, end: str = "value", step_s: float = 0.0
) -> tuple[IterationCosts, Limits]:
    """Of an engine with its own model, or with the model given, on `machine_of` it. Raises ValueError for what does not exist or
    does not fit."""
    machine = load_hardware(machine_of(engine, hardware))
    of = models.load(model or models.like(engine.model))
    return on_engine(engine, of.geometry, machine, of.formats(engine.weight_format), fits, end, step_s)


def machine_of(engine: Engine, hardware: str) -> str:
    """The machine, or N of it where the engine has N devices and such a machine ships."""
    several = f"{hardware}x{engine.n_devices}"
    return several if engine.n_devices > 1 and several in spec.shipped() else hardware


def runs_on(hardware: str, model: str | None, fits: Path | None) -> Run:
    """What runs a stage with so many seconds of the host per iteration, behind a client where one timed it."""
    load_hardware(hardware)

    @cache
    def on(engine: Engine, step_s: float) -> tuple[IterationCosts, Limits]:
        return costs_of(engine, hardware, model, fits, step_s=step_s)

    def stage(served: Served, step_s: float) -> ServingRun:
        client = Client(gather_s=served.engine.gather_s) if served.is_of_client else None
        return serve(served.requests, scheduler_of(served.engine), *on(served.engine, step_s), client=client)

    return stage


def that_run(stages: Sequence[Served], run: Run, label: str) -> list[Served]:
    """The stages that can be run; notes of the other engines why they cannot. Raises ValueError where none can, or two have one
    name."""
    (source, stage), n = Counter((served.source, served.stage) for served in stages).most_common(1)[0]
    if n > 1:
        raise ValueError(f"{n} of what was measured are called {source}, stage {stage}; give folders and experiments other names")
    able, reasons = list[Served](), dict[str, str]()
    with progress_bar(label) as show:
        for i, served in enumerate(stages):
            show(i, len(stages), f"{served.source}, stage {served.stage}")
            try:
                run(served, 0.0)
                able.append(served)
            except ValueError as error:
                reasons[served.source] = str(error)
    if not able:
        raise ValueError(f"nothing could be compared: {next(iter(reasons.values()))}")
    for source, reason in reasons.items():
        note(f"{source}: not run: {reason}")
    return able
