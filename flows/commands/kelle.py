"""calibrate kelle, kv-step: what Kelle's cost model counts on a tape, with its ratios, and a decode step of one's own on its
systems."""

from pathlib import Path
from typing import Annotated

from tokentape.flows.console import note, number, percent, print_beside, print_table
from tokentape.flows.options import StoreOption, argument, option
from tokentape.policies.names import refuse_unknown


def calibrate_kelle(
    trace: Annotated[str | None, argument("TRACE", "Tape of attention. [default: the shipped shares]")] = None,
    out: Annotated[Path, option("File of what is counted.")] = Path("kelle.toml"),
    store: StoreOption = None,
) -> None:
    """Count what heads have in common of what they keep on a tape, and print every ratio that Kelle's paper gives beside ours.

    Nothing is fitted to the paper. Shares are those at the requests' end, by per cent of the tokens kept; all are of one length.

    tokentape calibrate kelle                      how the shipped shares do
    tokentape calibrate kelle TRACE --out my-kelle.toml
    """
    from operator import itemgetter

    from tokentape.flows.systems.kelle.settings import Settings, setup
    from tokentape.flows.systems.kelle.study import asked, checks, told
    from tokentape.flows.tapes import attention_tape
    from tokentape.replay.kelle.shares import shares_of
    from tokentape.replay.kelle.systems import FITS
    from tokentape.warehouse.atomic_files import replace

    fit = FITS.load() if trace is None else shares_of(attention_tape(store, trace))
    if trace is not None:
        replace(out, FITS.text(fit))
        note(f"{out}: shares of {trace}, standard errors of at most {fit.residual:.2g}")
    study = Settings.shipped()
    known = asked(study, setup(study, fit.constants))
    ratios = sorted((row for row in known["ratios"] if (row["mode"], row["setting"]) == ("paper", "")), key=itemgetter("role"))
    rows = map(itemgetter("role", "ratio", "published", "value"), ratios)
    print_beside("Kelle: ratios as the paper counts", ("role", "ratio", "paper", "ours", "error"), rows)
    found = checks(study, known)
    said = {row["check"].removeprefix("mean |ln| error, "): row for row in found}
    for role, name in (("calibrate", "calibrate"), ("predict", "predicted")):
        note(f"{role}: mean |ln(ours / published)| {said[name]['value']:.3f} over {said[name]['how']}")
    note(*told(study, found))


def kv_step(
    model: Annotated[str, argument("MODEL", "A shipped model or a config.json.")],
    context: Annotated[int, option("Prompt tokens of a request.", min=0)] = 512,
    decode: Annotated[int, option("Tokens generated after it.", min=0)] = 8192,
    batch: Annotated[int, option("Requests that decode together.", min=1)] = 16,
    budget: Annotated[int, option("Tokens that eviction keeps of each request.", min=1)] = 2048,
    profile: Annotated[str, option("Cost profile: physical, kelle (the paper's) or another; a file.")] = "physical",
    mode: Annotated[
        str | None,
        option(
            "What is counted: whole (the last step, own KV heads and windows, recomputation charged), paper (as Kelle counts) or "
            "physical (the mean length; what does not fit has no time). [default: whole; of --profile kelle paper]"
        ),
    ] = None,
    shares: Annotated[str, option("What heads have in common: kelle (as shipped), or a file of `calibrate kelle`.")] = "kelle",
    hardware: Annotated[str, option("Machine in Kelle's place; any.")] = "kelle-edram",
) -> None:
    """Estimate a decode step on Kelle's five systems: time, energy by part, and gain over SRAM with the full cache.

    tokentape step kelle llama-2-7b
    tokentape step kelle llama-2-7b --profile kelle          as the paper counts
    tokentape step kelle my-model/config.json --context 2048 --decode 512 --batch 1 --budget 512 --hardware h100
    """
    from dataclasses import replace
    from math import isnan

    from tokentape.flows.grid import load_hardware
    from tokentape.flows.systems.kelle.settings import Settings, setup
    from tokentape.hw import profile as profiles
    from tokentape.replay.kelle.ratios import Steps
    from tokentape.replay.kelle.systems import FITS, KELLE, MODES, PROFILE, WHOLE, Work
    from tokentape.warehouse import models

    modes = {"whole": WHOLE, **MODES}
    mode = mode or ("paper" if profile == PROFILE else "whole")
    refuse_unknown("mode", mode, modes)
    profiles.load(profile)
    made = setup(Settings.shipped(), FITS.load(shares).constants)
    systems = made.systems | {KELLE: replace(made.systems[KELLE], machine=load_hardware(hardware))}
    named, work = models.load(model), Work(context, decode, batch, budget)
    steps = Steps(systems, {named.name: named.geometry}, {}, made.shares, modes[mode], profile)
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
