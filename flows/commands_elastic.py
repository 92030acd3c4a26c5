"""calibrate elmoe3d: the constants of ELMoE-3D's model, read off its paper's table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hw.elastic_constants import ElasticFit
    from replay.elastic.cells import Cell, Setup


def calibrate_elmoe3d(
    out: Annotated[Path, typer.Option("--out", help="Folder for the files; one per level and rows.")] = Path(),
    level: Annotated[
        str | None,
        typer.Option(
            "--level",
            help="L0 ties the experts' popularity to the hit law, L1 fits it apart. [default: both]",
            show_default=False,
        ),
    ] = None,
    rows: Annotated[
        str | None,
        typer.Option(
            "--rows",
            help="calibrate: the rows whose role says so; all-open: every published one, no prediction. [default: both]",
            show_default=False,
        ),
    ] = None,
    check: Annotated[
        str | None,
        typer.Option("--check", help="Fit nothing: print how these constants do, a shipped fit or a file.", show_default=False),
    ] = None,
) -> None:
    """Fit ELMoE-3D's constants to the rows of its Table 3 that may be fitted on, and print the error on all open ones.

    Hit law, head size and popularity are read off one cell per model each; what a round costs is fitted on Qwen's rows of Phi_SD.
    Seconds.

    \b
    Examples:
      tokentape calibrate elmoe3d --check elmoe3d-l1          how the shipped constants do
      tokentape calibrate elmoe3d --out fits --level L1 --rows calibrate
    """
    from flows.console import note
    from flows.systems.elmoe3d.settings import settings, setup_of
    from hw.elastic_constants import LEVELS, ROWS, load, save
    from replay.elastic.cells import cells
    from replay.elastic.fit import calibrate
    from warehouse.load import claims

    table, setup = cells(claims().to_pylist()), setup_of(settings())
    if check is not None:
        fits = [load(check)]
    else:
        wanted = [(a, b) for a in ((level,) if level else LEVELS) for b in ((rows,) if rows else ROWS)]
        fits = [calibrate(table, setup, *which) for which in wanted]
        out.mkdir(parents=True, exist_ok=True)
        for fit in fits:
            save(fit, out / f"{fit.name}.toml")
            note(f"{out / fit.name}.toml: fitted on {len(fit.fitted_on)} claims")
    _print_errors(table, setup, fits)


def _print_errors(table: list[Cell], setup: Setup, fits: list[ElasticFit]) -> None:
    from flows.console import print_table
    from replay.elastic.checks import HONESTY, checks
    from replay.elastic.points import as_points
    from replay.elastic.timing import evaluate

    by_fit = [checks(table, evaluate(as_points([setup.point(cell, fit) for cell in table]))) for fit in fits]
    rows = [(of[0].block, *(f"{check.value:.4g}" for check in of), str(of[0].n)) for of in zip(*by_fit, strict=True)]
    names = tuple(fit.name for fit in fits)
    print_table("against the open rows of Table 3", ("", *names, "rows"), rows, numbers=(*names, "rows"))
    print(HONESTY)
