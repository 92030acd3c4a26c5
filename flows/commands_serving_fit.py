"""calibrate serving: the constants of the serving engine, fitted to published facts and shown fact by fact."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

MACHINE, MODEL = "h100x2", "qwen3-30b-a3b"  # of the published runs


def calibrate_serving(
    out: Annotated[Path, typer.Option("--out", help="File of the constants; simulate and capacity take it as --fit.")] = Path(
        "serving-h100x2.toml"
    ),
    mode: Annotated[
        str,
        typer.Option("--mode", help="chunked, or long-context: also on the chunked run of 30k prompts, which chunked predicts."),
    ] = "chunked",
    check: Annotated[
        str | None,
        typer.Option("--check", help="Fit nothing: print how these constants do, a shipped fit or a file.", show_default=False),
    ] = None,
) -> None:
    """Fit the serving engine's constants to Layered Prefill's chunked runs and microbenchmarks, and print fact by fact.

    Only claims of role `calibrate` are fitted on; every number of layered prefill is predicted. Minutes on one core.

    \b
    Examples:
      tokentape calibrate serving --check h100x2              how the shipped constants do
      tokentape calibrate serving --out my-fit.toml && tokentape simulate --rate 1.3 --fit my-fit.toml
    """
    from flows.console import note, progress_bar
    from flows.grid import load_hardware
    from hw import serving_constants
    from replay.serving_facts import MODES
    from replay.serving_fit import calibrate
    from warehouse import models
    from warehouse.load import claims

    if mode not in MODES:
        raise ValueError(f"mode {mode!r} is unknown; choose {' or '.join(MODES)}")
    rows = claims().to_pylist()
    if check is not None:
        found = serving_constants.load(check)
    else:
        n_told = 0
        with progress_bar("calibrate serving") as show:

            def say(line: str) -> None:
                nonlocal n_told
                n_told += 1
                show(n_told, None, line)

            show(0, None, "searching: minutes")
            found = calibrate(rows, models.load(MODEL).geometry, load_hardware(MACHINE), MODEL, mode, say)
        serving_constants.save(found, out)
        note(f"{out}: loss {found.loss:.3g} on {len(found.fitted_on)} claims")
    _print_facts(rows, found, mode)


def _print_facts(rows: list[dict[str, Any]], found: Any, mode: str) -> None:
    from flows.console import print_table
    from flows.grid import load_hardware
    from replay.serving_cost import cost_tables
    from replay.serving_coverage import published_coverage
    from replay.serving_facts import facts, simulated
    from warehouse import models

    coverage = published_coverage(rows, found.constants.prefill_correlation)
    cost = cost_tables(models.load(found.model).geometry, load_hardware(found.machine), found.constants, coverage)
    made = simulated(cost, found.length_scale, range(40), mode)
    shown = [
        (" ".join(fact.key), f"{fact.target:.4g}", f"{made[fact.key]:.4g}", f"{100 * (made[fact.key] / fact.target - 1):+.1f} %")
        for fact in facts(rows, mode)
    ]
    title = f"{found.model} on {found.machine}: facts that the constants are fitted on, in SI units"
    print_table(title, ("fact", "published", "here", "error"), shown, numbers=("published", "here", "error"))
