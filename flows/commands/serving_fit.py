"""calibrate serving: the constants of the serving engine, fitted to published facts and shown fact by fact."""

from itertools import count
from pathlib import Path
from typing import Annotated, Any

from tokentape.flows.console import note, number, percent, print_beside, print_json, print_table, progress_bar, say
from tokentape.flows.options import CheckOption, JsonOption, argument, option
from tokentape.warehouse.atomic_files import replace

MACHINE, MODEL = "h100x2", "qwen3-30b-a3b"  # of the published runs
PULLS = (0.12, 0.25, 0.5, 1.0)  # that are compared
FEWER = (16, 80)  # seeds of a search, where many searches are made


def calibrate_serving(
    paths: Annotated[
        list[Path] | None,
        argument("[PATH]...", "Request logs or experiments of one's own; without, the published facts of Layered Prefill."),
    ] = None,
    hardware: Annotated[str | None, option("With PATH: the GPU of its engines, or my.toml.")] = None,
    fits: Annotated[
        Path | None,
        option("With PATH: folder of `calibrate gpu`, or of tables by model."),
    ] = None,
    out: Annotated[
        Path | None,
        option(
            "File of the constants. Of PATH validate serving takes it as --host; else simulate and capacity as --fit with "
            "--profile layered_prefill. [default: host.toml, or serving-h100x2.toml]"
        ),
    ] = None,
    mode: Annotated[
        str,
        option("chunked; long-context: also on the chunked run of 30k prompts, which it predicts."),
    ] = "chunked",
    check: CheckOption = None,
    cross_validate: Annotated[
        bool,
        option(
            "Write nothing: leave out each model of PATH in turn and predict it; else each group of facts, most of an hour.",
            "--cross-validate",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Fit what the host takes to one's own server, or the engine's constants to Layered Prefill's published facts.

    With PATH: the server's time before the engine takes a request, and the host's time per iteration, on the mean
    times of its stages; prints the rows it used, and predicted against measured.

    Without: to Layered Prefill's chunked runs and microbenchmarks, fact by fact.

    Only claims of role `calibrate` are fitted on; every number of layered prefill is predicted. Minutes on one core. The
    constants are correlated, so each is pulled to a generic start; --cross-validate shows how well facts that are left out are
    predicted with weaker and stronger pulls, by which the pull was chosen.

    tokentape calibrate serving my-vllm-log/ --hardware h100 --out host.toml
    tokentape calibrate serving experiments/ --hardware h100 --cross-validate --json
    tokentape calibrate serving --check h100x2              how the shipped constants do
    tokentape calibrate serving --out my.toml && tokentape serving simulate --rate 1.3 --profile layered_prefill --fit my.toml
    """
    if paths:
        if check is not None or hardware is None:
            raise ValueError("PATH goes with --hardware, the GPU of its engines, and without --check")
        _of_servers(paths, hardware, fits, out or Path("host.toml"), cross_validate, as_json)
        return
    if hardware is not None or fits is not None or as_json:
        raise ValueError("--hardware, --fits and --json go with PATH, a log or experiments of one's own")
    out = out or Path("serving-h100x2.toml")
    from tokentape.flows.grid import load_hardware
    from tokentape.hw import serving_fits
    from tokentape.replay.serving.fit import Search, calibrate
    from tokentape.warehouse import models
    from tokentape.warehouse.load import claims

    if cross_validate and check is not None:
        raise ValueError("--check and --cross-validate ask for different things; give one of them")
    rows = claims().to_pylist()
    if cross_validate:
        _print_left_out([Search(rows, models.load(MODEL).geometry, load_hardware(MACHINE), mode, pull, FEWER) for pull in PULLS])
        return
    if check is not None:
        found = serving_fits.load(check)
    else:
        steps, of = count(1), (rows, models.load(MODEL).geometry, load_hardware(MACHINE), MODEL, mode)
        with progress_bar("calibrate serving") as show:
            show(0, None, "searching: minutes")
            found = calibrate(*of, lambda line: show(next(steps), None, line))
        replace(out, serving_fits.text(found))
        note(f"{out}: loss {found.residual:.3g} on {len(found.fitted_on)} claims")
    _print_facts(rows, found, mode)


def _of_servers(paths: list[Path], hardware: str, fits: Path | None, out: Path, cross_validate: bool, as_json: bool) -> None:
    """Fits to logs and experiments, or to all models but one, and tells what that gives."""
    from tokentape.flows.serving.held import runs_on, that_run
    from tokentape.hw.fit_files import Fit
    from tokentape.replay.serving.engine_logs import read
    from tokentape.replay.serving.validation import FITTED_ON, HOST, compare, fit_host, without_model

    stages, run = [served for path in paths for served in read(path)], runs_on(hardware, None, fits)
    able = that_run(stages, run, "calibrate serving")
    rows = []
    for model, others, own in without_model(able) if cross_validate else [("", able, able)]:
        host = fit_host(others, run)
        used = [name for name in FITTED_ON if any((name, "mean") in served.measured for served in others)]
        on = f"means of {', '.join(used)} of {', '.join(dict.fromkeys(served.source for served in others))}"
        told = f"front end {1e3 * host.server_s:.2f} ms, host {1e6 * host.step_s:.0f} us per iteration, fitted on {on}"
        note(f"without {model}: {told}" if model else told)
        fitted = {served.source for served in others}
        rows += [row for served in own for row in compare(served, run(served, host.step_s), host, on, fitted)]
    errors = {name: [abs(row.rel_err) for row in rows if (row.metric, row.statistic) == (name, "mean")] for name in FITTED_ON}
    if not cross_validate:
        off = [error for of in errors.values() for error in of]
        of_rows = (f"{of.source}/{of.stage}/{name}/mean" for of in able for name in FITTED_ON if (name, "mean") in of.measured)
        replace(out, HOST.text(Fit(host, tuple(of_rows), sum(off) / len(off), hardware)))
        note(f"{out}: written")
    if as_json:
        print_json(rows)
        return
    for name, of in ((name, of) for name, of in errors.items() if of):
        say(f"{name}, mean of {len(of)} stages: {percent(sum(of) / len(of))} off")


def _print_left_out(searches: list[Any]) -> None:
    from tokentape.replay.serving.fit import left_out

    found: list[dict[str, float]] = []
    with progress_bar("cross-validate") as show:
        show(0, None, "most of an hour on one core")
        for search in searches:
            found.append(left_out(search, lambda line: show(len(found), len(searches), line)))
    shown = [
        (number(search.pull, "g"), *(number(of[group], ".1f") for group in of), number(sum(of.values()), ".1f"))
        for search, of in zip(searches, found, strict=True)
    ]
    columns = ("pull", *found[0], "all")
    print_table(
        "Squared misses, in sigmas, of facts left out of the fit, by the sigma of the pull", columns, shown, numbers=columns
    )


def _print_facts(rows: list[dict[str, Any]], found: Any, mode: str) -> None:
    from tokentape.flows.grid import load_hardware
    from tokentape.replay.serving.coverage import published_coverage
    from tokentape.replay.serving.facts import facts, simulated
    from tokentape.replay.serving.fit import SEEDS
    from tokentape.replay.serving.iteration import iteration_costs
    from tokentape.warehouse import models

    coverage = published_coverage(rows, found.constants.prefill_correlation)
    machine, costs = load_hardware(found.machine), found.constants.profile()
    cost = iteration_costs(models.load(found.model).geometry, machine, coverage, costs)
    stated, made = facts(rows, mode), simulated(cost, found.constants.length_scale, range(SEEDS[-1]), mode)
    title = f"{found.model} on {found.machine}: facts that the constants are fitted on, in SI units"
    shown = ((" ".join(fact.key), fact.target, made[fact.key]) for fact in stated)
    print_beside(title, ("fact", "published", "here", "error"), shown)
