"""validate: this engine's predictions beside what real engines measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tokentape.flows.console import note, percent, print_json, print_table, progress_bar, say
from tokentape.flows.options import JsonOption, StoreOption, argument, option

if TYPE_CHECKING:
    from tokentape.replay.serving.validation import Row

RecordOption = Annotated[bool, option("Write the rows to the store, for the validation page.", "--record")]


def serving(
    paths: Annotated[list[Path], argument("PATH...", "Folders: request logs (meta.json), or experiments (experiments.json).")],
    hardware: Annotated[str, option("The GPU, or my.toml. For an engine of N of them NAMExN is taken, where it ships.")],
    model: Annotated[str | None, option("In place of the model that the log names: a shipped one or a config.json.")] = None,
    host: Annotated[Path | None, option("Constants of the host that `calibrate serving PATH` wrote.")] = None,
    fit_front_end: Annotated[str | None, option("The engine on whose time to first token the front end's is fitted.")] = None,
    fits: Annotated[
        Path | None,
        option("Folder of constants of `calibrate gpu`, or of tables by model (meta.yaml), in place of shipped ones."),
    ] = None,
    seed: Annotated[int, option("Of arrivals that are told by their rate.")] = 0,
    as_json: JsonOption = False,
    record: RecordOption = False,
    store: StoreOption = None,
) -> None:
    """Serve what a real engine served, with its settings, and print predicted against measured by metric and statistic.

    Chunked prefill within the token budget, KV blocks of the log or of the machine's memory, batches fixed one iteration ahead
    where the version does so, FP8, MXFP4 and 4-bit weights as the log or the checkpoint's name says; before times of a client,
    its connection and tokenizer as measured. Nothing is fitted to what is compared, unless --host or --fit-front-end do: rows say
    so.

    tokentape validate serving my-vllm-log/ --hardware h100
    tokentape validate serving experiments/ --hardware h100 --json
    tokentape validate serving experiments/ --hardware h100 --fit-front-end 63
    tokentape validate serving my-vllm-log/ --hardware rtxpro6000 --fits by_model/
    """
    from tokentape.flows import validation
    from tokentape.flows.serving.held import runs_on, that_run
    from tokentape.replay.serving.engine_logs import METRICS, read
    from tokentape.replay.serving.validation import HOST, NOTHING, Host, compare, fit_host, over_time

    if record and len(sets := {validation.data_of(path) for path in paths}) > 1:
        raise ValueError(f"--record keeps what was measured together, not {' and '.join(sorted(sets))}; give one at a time")
    if host is not None and fit_front_end is not None:
        raise ValueError("--host has the front end already; leave --fit-front-end out")
    stages, run = [served for path in paths for served in read(path, seed)], runs_on(hardware, model, fits)
    able = that_run(stages, run, "validate")
    note(*dict.fromkeys(filter(None, (run(served, 0.0).cost.outside for served in able))))
    constants, fitted_on, fitted = Host(), NOTHING, set[str]()
    if host is not None:
        fit = HOST.load(str(host))
        constants, fitted_on = fit.constants, ", ".join(fit.fitted_on)
        fitted = {row.rsplit("/", 3)[0] for row in fit.fitted_on}
    if fit_front_end is not None:
        of_engine = [served for served in able if served.source == fit_front_end]
        if not of_engine:
            ran = ", ".join(dict.fromkeys(served.source for served in able))
            raise ValueError(f"--fit-front-end {fit_front_end}: no such engine ran; those that did: {ran}")
        constants, fitted_on = fit_host(of_engine, run, ("ttft_s",)), f"ttft_s mean of {fit_front_end}"
        fitted = {fit_front_end}
        note(f"front end: {1e3 * constants.server_s:.2f} ms, fitted on {fitted_on}")
    rows = [row for served in able for row in compare(served, run(served, constants.step_s), constants, fitted_on, fitted)]
    if record:
        moments = [moment for served in able for moment in over_time(served, run(served, constants.step_s))]
        validation.record(store, validation.data_of(paths[0]), hardware, rows, len(stages), moments)
    if as_json:
        print_json(rows)
        return
    _print_rows("engine", rows)
    for metric in METRICS:
        means = [abs(row.rel_err) for row in rows if (row.metric, row.statistic) == (metric, "mean")]
        if means:
            say(f"{metric}, mean of {len(means)} stages: {percent(sum(means) / len(means))} off")


def _print_rows(what: str, rows: Sequence[Row]) -> None:
    """Predicted beside measured; what: the sources are."""
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
        str | None, option("The log whose compute time is taken. [default: of each model, the run that its tape is of]")
    ] = None,
    as_json: JsonOption = False,
    record: RecordOption = False,
    store: StoreOption = None,
) -> None:
    """Decode a tape as an engine did that streams experts from flash, and print predicted against measured by setting.

    Reader threads, overlap of reads with compute and one LRU cache of so many bytes are the setting's, storage is the
    machine's. Compute time, and time to make room, are those of one log of the model: rows that rest on them say so.

    tokentape validate offload measured/ --machine oneplus-15r
    tokentape validate offload measured/ --tapes traces/ --fit-on qwen_k8_overlap --json
    """
    from tokentape.flows import validation
    from tokentape.flows.grid import load_hardware

    with progress_bar("validate") as show:
        rows = validation.streamed(path, tapes or path.parent / "traces" / "bigmoeonedge", load_hardware(machine), fit_on, show)
    if record:
        validation.record(store, validation.data_of(path), machine, rows, len({row.source for row in rows}))
    if as_json:
        print_json(rows)
        return
    _print_rows("setting", rows)
    rates = [row for row in rows if row.metric == "tokens_per_s"]
    for on in dict.fromkeys(row.fitted_on for row in rates):
        others = [abs(row.rel_err) for row in rates if row.fitted_on == on and not row.is_fitted]
        if others:
            say(f"tokens_per_s of {len(others)} settings, by {on}: {percent(sum(others) / len(others))} off")
