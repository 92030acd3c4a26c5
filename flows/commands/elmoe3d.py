"""calibrate elmoe3d: the constants of ELMoE-3D's model, read off its paper's table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tokentape.flows.options import ProfileOption, asked

if TYPE_CHECKING:
    import polars as pl

    from tokentape.hw.elmoe3d_constants import ELMoE3DConstants
    from tokentape.hw.fit_files import Fit
    from tokentape.replay.elmoe3d.points import Setup


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
    from tokentape.flows.console import note
    from tokentape.flows.systems.elmoe3d.settings import Settings, setup_of
    from tokentape.hw.elmoe3d_constants import LEVELS, ROWS, load, save
    from tokentape.replay.elmoe3d.cells import cells
    from tokentape.replay.elmoe3d.fit import calibrate
    from tokentape.warehouse.load import claims

    table, setup = cells(claims().to_pylist()), setup_of(Settings.shipped())
    if check is not None:
        fits = [load(check)]
    else:
        wanted = [(a, b) for a in ((level,) if level else LEVELS) for b in ((rows,) if rows else ROWS)]
        fits = [calibrate(table, setup, *which) for which in wanted]
        out.mkdir(parents=True, exist_ok=True)
        for fit in fits:
            save(fit, out / f"{fit.constants.name}.toml")
            note(f"{out / fit.constants.name}.toml: fitted on {len(fit.fitted_on)} claims")
    _print_errors(table, setup, fits)


def _print_errors(table: pl.DataFrame, setup: Setup, fits: list[Fit[ELMoE3DConstants]]) -> None:
    from tokentape.flows.console import number, print_table, say
    from tokentape.replay.elmoe3d.checks import HONESTY, checks
    from tokentape.replay.elmoe3d.points import points_of
    from tokentape.replay.elmoe3d.rows import evaluated

    by_fit = [checks(evaluated(points_of(table, fit.constants), setup)) for fit in fits]
    rows = [
        (of[0]["block"], *(number(check["value"], ".4g") for check in of), str(of[0]["n"])) for of in zip(*by_fit, strict=True)
    ]
    names = tuple(fit.constants.name for fit in fits)
    print_table("against the open rows of Table 3", ("", *names, "rows"), rows, numbers=(*names, "rows"))
    say(HONESTY)


def speculate(
    ctx: typer.Context,
    model: Annotated[str, typer.Option("--model", help="A model that ships (`tokentape models list`) or a config.json.")],
    hardware: Annotated[
        str, typer.Option("--hardware", help="Any machine: elmoe3d-4gb, elmoe3d-8gb, h100, ... or a file.")
    ] = "elmoe3d-8gb",
    scheme: Annotated[
        str, typer.Option("--scheme", help="EAGLE3, SLM-SD, Quant-SD, Elastic-SD, or several with commas.")
    ] = "Elastic-SD",
    batch: Annotated[str, typer.Option("--batch", help="Requests decoded together, with commas.")] = "1,4,8,16",
    alpha: Annotated[
        float | None,
        typer.Option("--alpha", help="Acceptance rate. [default: the paper's, for its models]", show_default=False),
    ] = None,
    accepted: Annotated[
        float | None,
        typer.Option("--accepted", help="Instead: accepted tokens per round, as measured.", show_default=False),
    ] = None,
    accepted_form: Annotated[
        str, typer.Option("--accepted-form", help="How alpha becomes accepted tokens: linear or chain.")
    ] = "linear",
    context: Annotated[int, typer.Option("--context", help="Tokens of every sequence.")] = 1024,
    hit_model: Annotated[str, typer.Option("--hit-model", help="paper_law, physical or che.")] = "paper_law",
    expert_format: Annotated[
        str | None,
        typer.Option("--expert-format", help="[default: int8-g32; the paper's for its models]", show_default=False),
    ] = None,
    beta: Annotated[
        float | None, typer.Option("--beta", help="Hit rate = (resident share)^beta. [default: fitted]", show_default=False)
    ] = None,
    exponent: Annotated[
        float | None,
        typer.Option("--exponent", help="Of the experts' popularity. [default: fitted]", show_default=False),
    ] = None,
    head_gb: Annotated[
        float | None, typer.Option("--head-gb", help="Size of EAGLE's head. [default: fitted]", show_default=False)
    ] = None,
    nodes: Annotated[
        str | None,
        typer.Option(
            "--nodes",
            help="Nodes verified per request and drafted per step, such as 16,3: adds energy. [default: a chain of drafts, or, "
            "with profile elmoe3d, none]",
            show_default=False,
        ),
    ] = None,
    tau: Annotated[
        float | None,
        typer.Option("--tau", help="Speculate from this batch on, as the paper's policy does.", show_default=False),
    ] = None,
    fit: Annotated[str, typer.Option("--fit", help="Constants: a shipped fit or a file.")] = "elmoe3d-l1",
    profile: ProfileOption = None,
) -> None:
    """Latency and traffic of decoding with and without self-speculation on hybrid-bonded memory, and which mode wins (ELMoE-3D).

    Closed form. A model the paper has no row of needs its acceptance, beta and exponent.

    \b
    Examples:
      tokentape step elmoe3d --model qwen3-30b-a3b --hardware elmoe3d-8gb --batch 1,4,8,16 --alpha .91
      tokentape step elmoe3d --model glm-4.7-flash --scheme EAGLE3,Elastic-SD --hit-model physical --nodes 16,3
      tokentape step elmoe3d --model olmoe-1b-7b --alpha .8 --beta .5 --exponent .6
    """
    import polars as pl

    from tokentape.flows.console import note, number, print_table, quantity
    from tokentape.flows.elmoe3d_points import Options, joules
    from tokentape.hw.profile import PHYSICAL
    from tokentape.replay.elmoe3d.points import as_points
    from tokentape.replay.elmoe3d.timing import evaluate, policy_phi
    from tokentape.replay.elmoe3d.work import findings

    points, setup = asked(Options, ctx).points()
    arrays, costs = as_points(points, setup), profile or PHYSICAL
    found = evaluate(arrays, costs, with_joules=nodes is not None)
    energy = joules(arrays, found, costs) if nodes else {}
    by_tau = {} if tau is None else {f"from {tau:g} on x": policy_phi(found, arrays.batch, tau)}
    rows = []
    for i, (name, n) in enumerate(points.select("scheme", "batch").rows()):
        ar, verify = found.ar, found.verify
        tokens = n * (1.0 + found.accepted_len[i])
        rows.append(
            (
                name,
                number(n, "g"),
                "SD" if found.is_sd_better[i] else "AR",
                number(found.phi_ar[i], ".2f"),
                number(found.phi_sd[i], ".2f"),
                *(number(phi[i], ".2f") for phi in by_tau.values()),
                quantity(ar.seconds[i] / n, "s"),
                quantity(found.round_s[i] / tokens, "s"),
                number(found.accepted_len[i], ".2f"),
                f"{ar.hit_frac[i]:.1%}, {verify.hit_frac[i]:.1%}",
                f"{quantity(ar.hb_bytes[i], 'B')}, {quantity(ar.ext_bytes[i], 'B')}",
                *(quantity(of[i], "J") for of in energy.values()),
            )
        )
    columns = ("scheme", "batch", "best", "AR x", "SD x", *by_tau, "AR per token", "SD per token", "accepted", "hits AR, verify")
    (machine,) = setup.machines.values()
    reference = f"over the same engine with everything in {machine.roles.expert_home}"
    title = f"{points['model'][0]} on {machine.name}, {hit_model}, {reference}"
    print_table(title, (*columns, "AR step from HB, EXT", *energy), rows, numbers=columns[1:])
    for name in points["scheme"].unique(maintain_order=True):
        paying = points.filter((pl.col("scheme") == name) & pl.lit(pl.Series(found.is_sd_better)))["batch"]
        note(f"{name}: speculation pays at batch {', '.join(f'{b:g}' for b in paying) or 'none of these'}")
    for said in findings(machine):
        note(said)
    if found.mapping.cold_bytes.any():
        note("static weights and KV exceed HB: what does not fit is read from EXT in every pass, beyond the paper's settings")
