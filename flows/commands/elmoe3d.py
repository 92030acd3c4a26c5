"""calibrate elmoe3d: the constants of ELMoE-3D's model, read off its paper's table."""

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import typer

from tokentape.flows.console import Shown, note, number, print_table, quantity, say
from tokentape.flows.options import CheckOption, ProfileOption, option
from tokentape.warehouse.atomic_files import replace


def calibrate_elmoe3d(
    out: Annotated[Path, option("Folder for the files.")] = Path(),
    check: CheckOption = None,
) -> None:
    """Fit ELMoE-3D's constants to the rows of its Table 3 that may be fitted on, and print the error on all open ones.

    Hit law, popularity and whether EAGLE's head has a table of its own are read off one cell per model each; what a round costs
    is fitted on Qwen's rows of Phi_SD. Four files in seconds: L0 ties the popularity to the hit law, L1 fits it apart; each on
    the rows whose role says so and, no prediction, on all open ones.

    tokentape calibrate elmoe3d --check elmoe3d-l1          how the shipped constants do
    tokentape calibrate elmoe3d --out fits
    """
    from tokentape.flows.systems.elmoe3d.settings import Settings, setup_of
    from tokentape.flows.systems.elmoe3d.study import check_rows
    from tokentape.hw.elmoe3d_constants import LEVELS, ROWS, load, text
    from tokentape.replay.elmoe3d.checks import HONESTY
    from tokentape.replay.elmoe3d.fit import calibrate, cells
    from tokentape.replay.elmoe3d.points import points_of
    from tokentape.replay.elmoe3d.rows import TABLE_SERIES, evaluated, point_rows
    from tokentape.warehouse.load import claims

    study = Settings.shipped()
    table, setup = cells(claims().to_pylist()), setup_of(study)
    if check is not None:
        fits = [load(check)]
    else:
        fits = [calibrate(table, setup, level, rows) for level in LEVELS for rows in ROWS]
        out.mkdir(parents=True, exist_ok=True)
        for fit in fits:
            replace(out / f"{fit.constants.name}.toml", text(fit))
            note(f"{out / fit.constants.name}.toml: fitted on {len(fit.fitted_on)} claims")
    by_fit = dict[str, dict[str, Any]]()
    for fit in fits:
        points = evaluated(points_of(table, fit.constants, series=TABLE_SERIES), setup)
        by_fit[fit.constants.name] = {check["block"]: check for check in check_rows(study, point_rows(points, setup))}
    first, names = next(iter(by_fit.values())), tuple(by_fit)
    rows = [
        (block, *(number(of[block]["value"], ".4g") for of in by_fit.values()), str(told["n"])) for block, told in first.items()
    ]
    print_table("against the open rows of Table 3", ("", *names, "rows"), rows, numbers=(*names, "rows"))
    say(HONESTY)


def speculate(
    ctx: typer.Context,
    model: Annotated[str, option("A model that ships (`tokentape models list`) or a config.json.")],
    hardware: Annotated[str, option("Any machine: elmoe3d-4gb, elmoe3d-8gb, h100, ... or a file.")] = "elmoe3d-8gb",
    scheme: Annotated[str, option("EAGLE3, SLM-SD, Quant-SD, Elastic-SD, or several with commas.")] = "Elastic-SD",
    batch: Annotated[str, option("Requests decoded together, with commas.")] = "1,4,8,16",
    alpha: Annotated[float | None, option("Acceptance rate. [default: the paper's, for its models]")] = None,
    accepted: Annotated[float | None, option("Instead: accepted tokens per round, as measured.", show_default=False)] = None,
    accepted_form: Annotated[str, option("How alpha becomes accepted tokens: linear or chain.")] = "linear",
    context: Annotated[int, option("Tokens of every sequence.")] = 1024,
    hit_model: Annotated[str, option("paper_law, physical or che.")] = "paper_law",
    expert_format: Annotated[str | None, option("[default: int8-g32; the paper's for its models]")] = None,
    beta: Annotated[float | None, option("Hit rate = (resident share)^beta. [default: fitted]")] = None,
    exponent: Annotated[float | None, option("Of the experts' popularity. [default: fitted]")] = None,
    nodes: Annotated[
        str | None,
        option(
            "Nodes verified per request and drafted per step, such as 16,3: adds energy. [default: a chain of drafts, or, "
            "with profile elmoe3d, none]"
        ),
    ] = None,
    tau: Annotated[float | None, option("Speculate from this batch on, as the paper's policy does.", show_default=False)] = None,
    fit: Annotated[str, option("Constants: a shipped fit or a file.")] = "elmoe3d-l1",
    profile: ProfileOption = None,
) -> None:
    """Latency and traffic of decoding with and without self-speculation on hybrid-bonded memory, and which mode wins (ELMoE-3D).

    Closed form. A model the paper has no row of needs its acceptance, beta and exponent.

    tokentape step elmoe3d --model qwen3-30b-a3b --hardware elmoe3d-8gb --batch 1,4,8,16 --alpha .91
    tokentape step elmoe3d --model glm-4.7-flash --scheme EAGLE3,Elastic-SD --hit-model physical --nodes 16,3
    tokentape step elmoe3d --model olmoe-1b-7b --alpha .8 --beta .5 --exponent .6
    """
    import numpy as np
    import polars as pl

    from tokentape.flows.elmoe3d_points import points as points_asked
    from tokentape.hw import profile as profiles
    from tokentape.replay.elmoe3d.points import as_points
    from tokentape.replay.elmoe3d.runs import ALL_THAT_MAY, ours
    from tokentape.replay.elmoe3d.timing import evaluate
    from tokentape.replay.elmoe3d.work import findings

    if tau is not None and not tau >= 0.0:
        raise ValueError(f"--tau {tau:g}: give the batch from which on it speculates")
    points, setup = points_asked(SimpleNamespace(**ctx.params))
    arrays, costs = as_points(points, setup), profiles.load(profile)
    found = evaluate(arrays, costs, with_joules=nodes is not None)
    n, ar, verify = points["batch"].to_numpy(), found.ar, found.verify
    columns: dict[str, Iterable[Any]] = {
        "scheme": points["scheme"],
        "batch": [number(of, "g") for of in n],
        "best": ["SD" if is_sd else "AR" for is_sd in found.is_sd_better],
        "AR x": [number(of, ".2f") for of in found.phi_ar],
        "SD x": [number(of, ".2f") for of in found.phi_sd],
    }
    if tau is not None:
        columns[f"from {tau:g} on x"] = [number(of, ".2f") for of in np.where(n >= tau, found.phi_sd, found.phi_ar)]
    columns |= {
        "AR per token": [quantity(of, "s") for of in ar.seconds / n],
        "SD per token": [quantity(of, "s") for of in found.round_s / (n * (1.0 + found.accepted_len))],
        "accepted": [number(of, ".2f") for of in found.accepted_len],
        "hits AR, verify": [
            Shown(f"{of:.1%}, {other:.1%}", [of, other]) for of, other in zip(ar.hit_frac, verify.hit_frac, strict=True)
        ],
        "AR step from HB, EXT": [
            Shown(f"{quantity(hb, 'B')}, {quantity(ext, 'B')}", {"value": [hb, ext], "unit": "B"})
            for hb, ext in zip(ar.hb_bytes, ar.ext_bytes, strict=True)
        ],
    }
    for mode, run in (ours(arrays, found, costs, ALL_THAT_MAY) if nodes else {}).items():  # all that may enter the pool does
        columns[f"{mode.upper()} J per token"] = [quantity(of, "J") for of in run.joules_per_token.sum(axis=0)[0]]
    (machine,) = setup.machines.values()
    reference = f"over the same engine with everything in {machine.roles.expert_home}"
    title = f"{points['model'][0]} on {machine.name}, {hit_model}, {reference}"
    print_table(title, tuple(columns), list(zip(*columns.values(), strict=True)), numbers=tuple(columns)[1:])
    for name in points["scheme"].unique(maintain_order=True):
        paying = points.filter((pl.col("scheme") == name) & pl.lit(pl.Series(found.is_sd_better)))["batch"]
        note(f"{name}: speculation pays at batch {', '.join(f'{b:g}' for b in paying) or 'none of these'}")
    note(*findings(machine))
    if found.mapping.cold_bytes.any():
        note("static weights and KV exceed HB: what does not fit is read from EXT in every pass, beyond the paper's settings")
