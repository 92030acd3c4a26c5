"""validate: this engine's predictions beside what real engines measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tokentape.flows.options import JsonOption, argument, option


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

    from tokentape.flows.console import note, percent, print_table, progress_bar, say
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
    head = ("engine", "stage", "metric", "statistic", "measured", "predicted", "off by")
    shown = [
        (
            row.source,
            str(row.stage),
            row.metric,
            row.statistic,
            f"{row.measured:.4g}",
            f"{row.predicted:.4g}",
            percent(row.rel_err),
        )
        for row in rows
    ]
    print_table("predicted against measured", head, shown)
    for metric in METRICS:
        means = [abs(row.rel_err) for row in rows if (row.metric, row.statistic) == (metric, "mean")]
        if means:
            say(f"{metric}, mean of {len(means)} stages: {percent(sum(means) / len(means))} off")
