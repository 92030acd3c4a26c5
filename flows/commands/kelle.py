"""calibrate kelle, kv-step: the knobs of Kelle's cost model ratio by ratio, and a decode step of one's own on its systems."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tokentape.flows.console import note, number, percent, print_table
from tokentape.flows.options import argument, option


def calibrate_kelle(
    out: Annotated[Path, option("File of the knobs.")] = Path("kelle.toml"),
    check: Annotated[str | None, option("Fit nothing: print how these knobs do, kelle or a file.")] = None,
) -> None:
    """Fit the three knobs of Kelle's cost model to its headline ratios and Table 9 at batch 4, and print every ratio.

    Only claims of role `calibrate` are fitted on; Table 7 and Table 9 at batch 16 are predicted. Beside each stands the value
    with nothing fitted, and below them the pairs of systems that the fit puts in the other order. Half a minute on one core.

    \b
    Examples:
      tokentape calibrate kelle --check kelle      how the shipped knobs do
      tokentape calibrate kelle --out my-kelle.toml
    """
    from tokentape.flows.systems.kelle.closed_forms import checks, told
    from tokentape.flows.systems.kelle.settings import Settings, setup
    from tokentape.replay.kelle.ratios import calibrate, nothing_fitted, ratios
    from tokentape.replay.kelle.rows import ZERO
    from tokentape.replay.kelle.systems import FITS
    from tokentape.warehouse.load import claims

    study = Settings.shipped()
    if check is not None:
        fit = FITS.load(check)
    else:
        stated = claims().to_pylist()
        fit = calibrate(stated, setup(study, nothing_fitted(stated)).steps())
        FITS.save(fit, out)
        note(f"{out}: mean |ln(ours / published)| {fit.residual:.3g} on {len(fit.fitted_on)} claims")
    made = setup(study, fit.constants)
    fitted, plain = made.steps(), made.steps(ZERO)
    wanted = sorted(ratios(made.claims, fitted), key=lambda ratio: ratio.role)
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
        errors = abs(fitted.errors(ratio for ratio in wanted if ratio.role == role))
        note(f"{role}: mean |ln(ours / published)| {errors.mean():.3f} over {errors.size} ratios")
    derived = checks(study, made)
    for line in told(study, derived):
        note(line)
    for row in derived:
        if row["series"] == "order" and row["setting"]:
            note(f"order reversed by the fit: {row['mode']}, {row['setting']} in {row['how']}")


def kv_step(
    model: Annotated[str, argument("MODEL", "A shipped model or a config.json.")],
    context: Annotated[int, option("Prompt tokens of a request.", min=0)] = 512,
    decode: Annotated[int, option("Tokens generated after it.", min=0)] = 8192,
    batch: Annotated[int, option("Requests that decode together.", min=1)] = 16,
    budget: Annotated[int, option("Tokens that eviction keeps of each request.", min=1)] = 2048,
    profile: Annotated[str, option("Cost profile: physical, kelle (the paper's, with --knobs) or another; a file.")] = "physical",
    mode: Annotated[
        str | None,
        option(
            "What is counted: whole (the last step, own KV heads and windows, recomputation charged), paper (as Kelle counts) or "
            "physical (the mean length; what does not fit has no time). [default: whole; of --profile kelle paper]"
        ),
    ] = None,
    knobs: Annotated[str, option("calibrated, zero (nothing fitted), or a file of `calibrate kelle`.")] = "calibrated",
    hardware: Annotated[str, option("Machine in Kelle's place; any.")] = "kelle-edram",
) -> None:
    """Estimate a decode step on Kelle's five systems: time, energy by part, and gain over SRAM with the full cache.

    \b
    Examples:
      tokentape step kelle llama-2-7b
      tokentape step kelle llama-2-7b --profile kelle          as the paper counts
      tokentape step kelle my-model/config.json --context 2048 --decode 512 --batch 1 --budget 512 --hardware h100
    """
    from dataclasses import replace
    from math import isnan

    from tokentape.flows.grid import load_hardware
    from tokentape.flows.systems.kelle.settings import Settings, setup
    from tokentape.hw import profile as profiles
    from tokentape.policies.names import unknown
    from tokentape.replay.kelle.ratios import Steps
    from tokentape.replay.kelle.rows import CALIBRATED
    from tokentape.replay.kelle.systems import FITS, KELLE, MODES, PROFILE, WHOLE, Work
    from tokentape.warehouse import models

    modes = {"whole": WHOLE, **MODES}
    mode = mode or ("paper" if profile == PROFILE else "whole")
    if mode not in modes:
        raise unknown("mode", mode, modes)
    profiles.load(profile)
    from_file = FITS.load(knobs).constants if knobs.endswith(".toml") else None
    made = setup(Settings.shipped(), from_file)
    chosen = CALIBRATED if from_file else knobs
    if chosen not in made.knobs:
        raise unknown("knobs", knobs, made.knobs)
    systems = made.systems | {KELLE: replace(made.systems[KELLE], machine=load_hardware(hardware))}
    named, work = models.load(model), Work(context, decode, batch, budget)
    steps = Steps(systems, {named.name: named.geometry}, {}, made.knobs[chosen], modes[mode], profile)
    shown, noted = [], dict[str, list[str]]()
    for name in systems:
        step, gains = steps.step(named.name, name, work), steps.gains(named.name, name, work)
        parts = (step.joules["dram_j"], step.joules["weight_sram_j"] + step.joules["kv_j"], step.joules["refresh_j"])
        for text in step.notes:
            noted.setdefault(text, []).append(name)
        costs = number(1e3 * step.seconds, ".4g"), number(step.energy_j, ".4g")
        timed = (*costs, *(percent(part / step.energy_j) for part in parts)) if step.is_feasible else ("does not fit", *[""] * 4)
        shown.append((name, *timed, *("" if isnan(gain) else number(gain, ".3g", "x") for gain in gains)))
    columns = ("system", "ms", "J", "DRAM", "on-chip reads", "refresh", "speed", "energy")
    title = f"{named.name}: a step of {batch} x ({context} + {decode}) tokens, budget {budget}, profile {profile}, mode {mode}"
    print_table(title, columns, shown, numbers=columns[1:])
    for text, names in noted.items():
        note(f"{', '.join(names)}: {text}")
