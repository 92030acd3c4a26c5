"""calibrate kelle, kv-step: the knobs of Kelle's cost model ratio by ratio, and a decode step of one's own on its systems."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def calibrate_kelle(
    out: Annotated[Path, typer.Option("--out", help="File of the knobs.")] = Path("kelle.toml"),
    check: Annotated[
        str | None, typer.Option("--check", help="Fit nothing: print how these knobs do, kelle or a file.", show_default=False)
    ] = None,
) -> None:
    """Fit the three knobs of Kelle's cost model to its headline ratios and Table 9 at batch 4, and print every ratio.

    Only claims of role `calibrate` are fitted on; Table 7 and Table 9 at batch 16 are predicted. Beside each stands the value
    with nothing fitted, and below them the pairs of systems that the fit puts in the other order. Half a minute on one core.

    \b
    Examples:
      tokentape calibrate kelle --check kelle      how the shipped knobs do
      tokentape calibrate kelle --out my-kelle.toml
    """
    from tokentape.flows.console import note, number, percent, print_table
    from tokentape.flows.systems.kelle.checks import order_lines, recompute_lines
    from tokentape.flows.systems.kelle.settings import Settings
    from tokentape.flows.systems.kelle.setup import ZERO, setup
    from tokentape.hw import kelle_knobs
    from tokentape.replay.kelle.fit import calibrate, derived, log_errors, ratios
    from tokentape.warehouse.load import claims

    study = Settings.shipped()
    if check is not None:
        fit = kelle_knobs.load(check)
    else:
        stated = claims().to_pylist()
        fit = calibrate(stated, setup(study, derived(stated)).steps())
        kelle_knobs.save(fit, out)
        note(f"{out}: mean |ln(ours / published)| {fit.residual:.3g} on {len(fit.fitted_on)} claims")
    made = setup(study, fit.constants)
    fitted, plain = made.steps(), made.steps(ZERO)
    wanted = sorted(ratios(made.stated.values(), fitted), key=lambda ratio: ratio.role)
    shown = [
        (
            *(ratio.role, f"{ratio.metric}: {ratio}", number(ratio.published, ".4g")),
            *(number(steps.value(ratio)[0], ".4g") for steps in (plain, fitted)),
            percent(fitted.value(ratio)[0] / ratio.published - 1, "+.1f"),
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
    for line in order_lines(made):
        note(f"order reversed by the fit: {line}")


def kv_step(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A shipped model or a config.json.")],
    context: Annotated[int, typer.Option("--context", help="Prompt tokens of a request.", min=0)] = 512,
    decode: Annotated[int, typer.Option("--decode", help="Tokens generated after it.", min=0)] = 8192,
    batch: Annotated[int, typer.Option("--batch", help="Requests that decode together.", min=1)] = 16,
    budget: Annotated[int, typer.Option("--budget", help="Tokens that eviction keeps of each request.", min=1)] = 2048,
    mode: Annotated[
        str, typer.Option("--mode", help="paper (as Kelle counts) or physical: own KV heads, mean length, recomputation charged.")
    ] = "paper",
    knobs: Annotated[
        str, typer.Option("--knobs", help="calibrated, zero (nothing fitted), or a file of `calibrate kelle`.")
    ] = "calibrated",
    hardware: Annotated[
        str, typer.Option("--hardware", help="Machine in Kelle's place: tiers dram, weights, kv and activations.")
    ] = "kelle-edram",
) -> None:
    """Estimate a decode step on Kelle's five systems: time, energy by part, and gain over SRAM with the full cache.

    \b
    Examples:
      tokentape step kelle llama-2-7b
      tokentape step kelle my-model/config.json --context 2048 --decode 512 --batch 1 --budget 512 --mode physical
    """
    from dataclasses import replace
    from math import isnan

    from tokentape.flows.console import note, number, percent, print_table
    from tokentape.flows.grid import load_hardware
    from tokentape.flows.systems.kelle.settings import Settings
    from tokentape.flows.systems.kelle.setup import CALIBRATED, setup
    from tokentape.hw import kelle_knobs
    from tokentape.policies.names import unknown
    from tokentape.replay.kelle.ratios import Steps
    from tokentape.replay.kelle.systems import KELLE, chip_of
    from tokentape.replay.kelle.work import MODES, Work
    from tokentape.warehouse import models

    if mode not in MODES:
        raise unknown("mode", mode, MODES)
    from_file = kelle_knobs.load(knobs).constants if knobs.endswith(".toml") else None
    made = setup(Settings.shipped(), from_file)
    chosen = CALIBRATED if from_file else knobs
    if chosen not in made.knobs:
        raise unknown("knobs", knobs, made.knobs)
    systems = made.systems | {KELLE: replace(made.systems[KELLE], chip=chip_of(load_hardware(hardware)))}
    named, work = models.load(model), Work(context, decode, batch, budget)
    steps = Steps(systems, {named.name: named.geometry}, {}, made.knobs[chosen], MODES[mode])
    shown, noted = [], dict[str, list[str]]()
    for name in systems:
        step, gains = steps.step(named.name, name, work), steps.gains(named.name, name, work)
        parts = (step.joules["dram_j"], step.joules["weight_sram_j"] + step.joules["kv_j"], step.joules["refresh_j"])
        for text in step.notes:
            noted.setdefault(text, []).append(name)
        row = (
            number(1e3 * step.seconds, ".4g"),
            number(step.energy_j, ".4g"),
            *(percent(part / step.energy_j) for part in parts),
        )
        timed = row if step.is_feasible else ("does not fit", "", "", "", "")
        shown.append((name, *timed, *("" if isnan(gain) else number(gain, ".3g", "x") for gain in gains)))
    columns = ("system", "ms", "J", "DRAM", "on-chip reads", "refresh", "speed", "energy")
    title = f"{named.name}: a step of {batch} x ({context} + {decode}) tokens, budget {budget}, mode {mode}, knobs {knobs}"
    print_table(title, columns, shown, numbers=columns[1:])
    for text, names in noted.items():
        note(f"{', '.join(names)}: {text}")
