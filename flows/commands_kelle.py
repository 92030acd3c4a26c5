"""calibrate kelle: the knobs of Kelle's cost model, fitted to its calibrate rows and shown ratio by ratio."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def calibrate_kelle(
    out: Annotated[Path, typer.Option("--out", help="File of the knobs.")] = Path("kelle.toml"),
    check: Annotated[
        bool, typer.Option("--check", help="Fit nothing: print how the knobs of --out do, or the shipped ones.")
    ] = False,
) -> None:
    """Fit the four knobs of Kelle's cost model to its headline ratios and Table 9 at batch 4, and print every ratio.

    Only claims of role `calibrate` are fitted on; Table 7 and Table 9 at batch 16 are predicted. Beside each stands the value
    with nothing fitted. Seconds on one core.

    \b
    Examples:
      tokentape calibrate kelle --check            how the shipped knobs do
      tokentape calibrate kelle --out my-kelle.toml
    """
    from flows.console import note, print_table
    from flows.systems.kelle.checks import recompute_lines
    from flows.systems.kelle.settings import settings
    from flows.systems.kelle.setup import ZERO, setup
    from hw import kelle_knobs
    from replay.kelle.fit import calibrate, derived, log_errors, ratios
    from warehouse.load import claims

    study = settings()
    if check:
        fit = kelle_knobs.load(out if out.exists() else None)
    else:
        stated = claims().to_pylist()
        fit = calibrate(stated, setup(study, derived(stated)).steps())
        kelle_knobs.save(fit, out)
        note(f"{out}: mean |ln(ours / published)| {fit.mean_abs_log:.3g} on {len(fit.fitted_on)} claims")
    made = setup(study, fit.knobs)
    fitted, plain = made.steps(), made.steps(ZERO)
    wanted = sorted(ratios(made.stated.values(), fitted), key=lambda ratio: ratio.role)
    shown = [
        (
            *(ratio.role, f"{ratio.metric}: {ratio}", f"{ratio.published:.4g}"),
            *(f"{steps.value(ratio)[0]:.4g}" for steps in (plain, fitted)),
            f"{100 * (fitted.value(ratio)[0] / ratio.published - 1):+.1f} %",
        )
        for ratio in wanted
    ]
    columns = ("role", "ratio", "paper", "nothing fitted", "calibrated", "error")
    print_table("Kelle: ratios as the paper counts", columns, shown, numbers=columns[2:])
    for role in ("calibrate", "predict"):
        errors = [abs(log_errors(fitted, [ratio])[0]) for ratio in wanted if ratio.role == role]
        note(f"{role}: mean |ln(ours / published)| {sum(errors) / len(errors):.3f} over {len(errors)} ratios")
    for line in recompute_lines(made):
        note(line)
