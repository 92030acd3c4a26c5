"""validate: this engine's predictions beside what real engines measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tokentape.flows.options import JsonOption, argument, option

if TYPE_CHECKING:
    from tokentape.replay.serving.validation import Row


def serving(
    paths: Annotated[list[Path], argument("PATH...", "Folders: request logs (meta.json), or experiments (experiments.json).")],
    hardware: Annotated[
        str, option("The GPU, or my.toml. For an engine of N of them NAMExN is taken, where it ships.", "--hardware")
    ],
    model: Annotated[str | None, option("In place of the model that the log names: a shipped one or a config.json.")] = None,
    front_end_ms: Annotated[float, option("Of client and server, before the engine takes a request.", "--front-end-ms")] = 0.0,
    fit_front_end: Annotated[
        str | None, option("The engine on whose time to first token that is fitted.", "--fit-front-end")
    ] = None,
    seed: Annotated[int, option("Of arrivals that are told by their rate.", "--seed")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Serve what a real engine served, with its settings, and print predicted against measured by metric and statistic.

    Chunked prefill within the token budget, KV blocks of the log or of the machine's memory, batches fixed one iteration ahead
    where the version does so. Nothing is fitted to what is compared, unless --fit-front-end names an engine: rows say so.

    \b
    Examples:
      tokentape validate serving my-vllm-log/ --hardware h100
      tokentape validate serving experiments/ --hardware h100 --json
      tokentape validate serving experiments/ --hardware h100 --fit-front-end 63
    """
    import json
    from dataclasses import asdict

    from tokentape.flows.console import note, percent, progress_bar, say
    from tokentape.flows.grid import load_hardware
    from tokentape.hw import spec
    from tokentape.replay.serving.engine_logs import METRICS, Served, read
    from tokentape.replay.serving.run import ServingRun
    from tokentape.replay.serving.validation import NOTHING, compare, front_end_s, served_by
    from tokentape.warehouse import models

    stages = [served for path in paths for served in read(path, seed)]
    load_hardware(hardware)
    runs, skipped = list[tuple[Served, ServingRun]](), dict[str, str]()

    def run(served: Served) -> ServingRun:
        n = served.tensor_parallel * served.data_parallel
        machine = load_hardware(f"{hardware}x{n}" if n > 1 and f"{hardware}x{n}" in spec.shipped() else hardware)
        geometry = models.load(model or models.like(served.model)).geometry
        return served_by(served, geometry, machine)

    with progress_bar("validate") as show:
        for i, served in enumerate(stages):
            show(i, len(stages), f"{served.source}, stage {served.stage}")
            try:
                runs.append((served, run(served)))
            except ValueError as error:
                skipped[served.source] = str(error)
    for source, reason in skipped.items():
        note(f"{source}: not run: {reason}")
    if not runs:
        raise ValueError(f"nothing could be compared: {next(iter(skipped.values()))}")
    front_s, fitted_on = front_end_ms / 1e3, NOTHING
    if fit_front_end is not None:
        if front_end_ms:
            raise ValueError("--front-end-ms has no effect with --fit-front-end; leave one out")
        of_engine = [(served, made) for served, made in runs if served.source == fit_front_end]
        if not of_engine:
            ran = ", ".join(dict.fromkeys(served.source for served, _ in runs))
            raise ValueError(f"--fit-front-end {fit_front_end}: no such engine ran; those that did: {ran}")
        front_s, fitted_on = front_end_s(of_engine), f"ttft_s mean of {fit_front_end}"
        note(f"front end: {1e3 * front_s:.2f} ms, fitted on {fitted_on}")
    rows = [row for served, made in runs for row in compare(served, made, front_s, fitted_on)]
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    _print_rows("engine", rows)
    for metric in METRICS:
        means = [abs(row.rel_err) for row in rows if (row.metric, row.statistic) == (metric, "mean")]
        if means:
            say(f"{metric}, mean of {len(means)} stages: {percent(sum(means) / len(means))} off")


def _print_rows(what: str, rows: Sequence[Row]) -> None:
    """Predicted beside measured; what: the sources are."""
    from tokentape.flows.console import percent, print_table

    numbers = ("measured", "predicted", "off by")
    head = (what, "stage", "metric", "statistic", *numbers)
    shown = [
        (r.source, str(r.stage), r.metric, r.statistic, f"{r.measured:.4g}", f"{r.predicted:.4g}", percent(r.rel_err))
        for r in rows
    ]
    print_table("predicted against measured", head, shown, numbers=numbers)


def offload(
    path: Annotated[Path, argument("PATH", "Folder with settings.csv and logs of an engine that streams experts.")],
    machine: Annotated[str, option("The device, or my.toml.", "--machine", "--hardware")] = "oneplus-15r",
    tapes: Annotated[
        Path | None, option("Folder of the route traces that offload_logs.csv names. [default: PATH/../traces/bigmoeonedge]")
    ] = None,
    fit_on: Annotated[
        str | None,
        option("The log whose compute time is taken. [default: of each model, the run that its tape is of]", "--fit-on"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Decode a tape as an engine did that streams experts from flash, and print predicted against measured by setting.

    Reader threads, overlap of reads with compute and one LRU cache of so many bytes are the setting's, storage is the
    machine's. Compute time, and time to make room, are those of one log of the model: rows that rest on them say so.

    \b
    Examples:
      tokentape validate offload measured/ --machine oneplus-15r
      tokentape validate offload measured/ --tapes traces/ --fit-on qwen_k8_overlap --json
    """
    import json
    from dataclasses import asdict

    from tokentape.flows.console import percent, progress_bar, say
    from tokentape.flows.grid import load_hardware
    from tokentape.flows.offload import rows_of

    with progress_bar("validate") as show:
        rows = rows_of(path, tapes or path.parent / "traces" / "bigmoeonedge", load_hardware(machine), fit_on, show)
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    _print_rows("setting", rows)
    rates = [row for row in rows if row.metric == "tokens_per_s"]
    for on in dict.fromkeys(row.fitted_on for row in rates):
        others = [abs(row.rel_err) for row in rates if row.fitted_on == on and not on.endswith(f" {row.source}")]
        if others:
            say(f"tokens_per_s of {len(others)} settings, by {on}: {percent(sum(others) / len(others))} off")
