"""calibrate cxl_ndp, step cxl_ndp: the fitted constants of the GPU-NDP systems, decode and requests of one's own on them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tokentape.flows.console import band, note, number, percent, print_beside, print_table, quantity
from tokentape.flows.options import ProfileOption, StoreOption, asked, option
from tokentape.policies.names import refuse_unknown
from tokentape.warehouse.atomic_files import replace

if TYPE_CHECKING:
    from tokentape.warehouse.geometry import Geometry
    from tokentape.warehouse.tape import Store

KINDS = ("all", "ours", "monde", "monde-never", "monde-always", "monde-ema", "hobbit")


def calibrate_cxl_ndp(
    out: Annotated[Path, option("File of the constants.")] = Path("cxl_ndp.toml"),
    check: Annotated[
        str | None,
        option("Fit nothing: print how these constants do, cxl_ndp or a file."),
    ] = None,
) -> None:
    """Fit the one constant of the GPU-NDP systems to the decode ratios of Mixtral-8x7B, and print each beside the paper's.

    Only claims of role `calibrate` are fitted on. Under a minute.

    tokentape calibrate cxl_ndp --check cxl_ndp      how the shipped ones do
    tokentape calibrate cxl_ndp --out my-fit.toml
    """
    from tokentape.flows.systems.cxl_ndp.points import compared_with_claims, fitted
    from tokentape.flows.systems.cxl_ndp.settings import Settings
    from tokentape.replay.cxl_ndp.fit import FILES

    study = Settings.shipped()
    if check is not None:
        fit = FILES.load(check)
    else:
        fit = fitted(study)
        replace(out, FILES.text(fit))
        note(f"{out}: mean |ln(ours / published)| {fit.residual:.3g} on {len(fit.fitted_on)} claims")
    title = f"{study.models[0].name}: medians over {len(study.models[0].seeds)} seeds"
    print_beside(title, ("role", "decode ratio", "paper", "ours", "error"), compared_with_claims(study, fit.constants))
    note(f"fixed_s {fit.constants.fixed_s:.4g}")


def decode(
    ctx: typer.Context,
    model: Annotated[
        str | None,
        option("A model that ships or a config.json. [default: the tape's]"),
    ] = None,
    tape: Annotated[
        str | None,
        option("Recorded routing, the start of a trace id. [default: drawn]"),
    ] = None,
    system: Annotated[str, option("ours, monde, hobbit or all; MoNDE's migration: monde-never, -always, -ema.")] = "all",
    bits: Annotated[str, option("Mean bits of ours, 1 to 4 or 16, with commas.")] = "3,2",
    batch: Annotated[int, option("Sequences decoded together.", min=1)] = 16,
    hot: Annotated[int | None, option("Experts of a layer on the GPU. [default: half]", min=0)] = None,
    alpha: Annotated[float, option("Counts against gate weights in an expert's importance, 0 to 1.")] = 0.5,
    placement: Annotated[
        str, option("prefill_guided, static_global, random, oracle: which experts those are.")
    ] = "prefill_guided",
    rule: Annotated[
        str, option("prefix_split, uniform, greedy, optimum, reversed: bits of the experts in memory.")
    ] = "prefix_split",
    hardware: Annotated[str, option("A shipped machine, such as h100-cxl-ndp-gen5, or my.toml.")] = "h100-cxl-ndp",
    context: Annotated[int, option("Tokens that each of them attends to.", min=1)] = 768,
    profile: ProfileOption = None,
    fit: Annotated[
        str | None,
        option("Constants of `calibrate cxl_ndp`: the paper's profile with them."),
    ] = None,
    prompt: Annotated[int, option("Prompt tokens of a request.", min=1)] = 256,
    output: Annotated[int, option("Tokens it generates.", min=1)] = 512,
    fixed_macs: Annotated[bool, option("Low bits do not speed up the NDP's multipliers.", "--fixed-macs")] = False,
    overlap: Annotated[bool, option("Experts cross the link while GPU and NDP compute.", "--overlap")] = False,
    seed: Annotated[int, option("Of drawn routing, a random placement and the losses of low bits.", min=0)] = 0,
    store: StoreOption = None,
) -> None:
    """Decode a batch of a mixture of experts on a GPU and a memory that computes, and on systems that move its experts instead.

    Routing is a tape's, or drawn so that prompts foretell their answers as published for Mixtral-8x7B. Prints a step's time
    and its band, gains over MoNDE, hits, and what crosses the link per token; the parts of a layer; then whole requests.

    tokentape step cxl_ndp --model mixtral-8x7b
    tokentape step cxl_ndp --model mixtral-8x22b --hot 2 --system ours --bits 4,3,2,1
    tokentape step cxl_ndp --tape TRACE --batch 4 --placement oracle
    tokentape step cxl_ndp --model qwen3-30b-a3b --hardware h100-cxl-ndp-gen5 --batch 1 --overlap
    """
    from tokentape.flows.grid import load_hardware
    from tokentape.flows.systems.cxl_ndp import routing as cxl_ndp_routing
    from tokentape.flows.systems.cxl_ndp.settings import Settings
    from tokentape.hw import profile as profiles
    from tokentape.replay.cxl_ndp.fit import FILES
    from tokentape.replay.cxl_ndp.prefill import prefill, request
    from tokentape.replay.cxl_ndp.setting import Setting, compared, run, stand_in_losses
    from tokentape.replay.cxl_ndp.system import MONDE, Setup, notes, system_of

    wanted, study = _systems(system, bits), Settings.shipped()
    name, g, trace_id = _source(store, model, tape)
    made = Setup(
        machine=load_hardware(hardware),
        profile=FILES.load(fit).constants.profile() if fit else profiles.load(profile),
        name=name,
        geometry=g,
        context_tokens=context,
        hobbit_bits=study.hobbit_bits,
    )
    n_hot = g.n_experts // 2 if hot is None else hot
    setting = asked(Setting, ctx, hot_experts=n_hot, compute_scales=not fixed_macs, overlaps=overlap)
    setting.refuse_what_is_not(g.n_experts)
    names = [system_of(one, made).name for one in wanted]
    if trace_id:
        routing = cxl_ndp_routing.of_tape(store, trace_id)
    else:
        routing = cxl_ndp_routing.drawn(g, max(batch, cxl_ndp_routing.N_PROMPT // 8), seed)
    losses = stand_in_losses(len(g.moe_layers), g.n_experts, seed, study.losses.spread)
    decoded = run(routing, made, setting, dict.fromkeys([*names, MONDE]), losses)
    metrics = {one: of for one, of in compared(decoded).items() if one in names}
    prompts = {one: prefill(made, decoded[one].system, prompt, batch, n_hot) for one in metrics}
    requests = {one: request(decoded[one], of_prompts, output) for one, of_prompts in prompts.items()}

    rows = [
        (
            one,
            quantity(ran.step_s[0], "s"),
            band(*ran.step_s[1:], partial(quantity, unit="s")),
            quantity(float(ran.joules.value.sum()) / ran.n_tokens, "J"),
            number(of["tokens_per_s"], ".4g"),
            number(of["decode_gain"], ".3g", "x"),
            percent(of["hit_frac"]),
            number(of["moved_per_layer_step"], ".2f"),
            quantity(of["link_weight_bytes_per_token"] + of["link_activation_bytes_per_token"], "B"),
        )
        for one, of, ran in ((one, of, decoded[one]) for one, of in metrics.items())
    ]
    columns = ("step", "low to high", "energy per token", "tokens/s", "over MoNDE", "hits", "moved", "link per token")
    title = (
        f"{name} on {made.machine.name}, {made.profile.name}, batch {batch} at {context:,} tokens, "
        f"{n_hot} of {g.n_experts} experts hot, {routing.trace_id}"
    )
    print_table(title, ("system", *columns), rows, numbers=columns)
    parts = {"layer-step": "step_s", "attention": "other_s", "GPU": "gpu_s", "NDP": "ndp_s", "link": "transfer_s"}
    taken = [(one, *(quantity(of[part], "s") for part in parts.values())) for one, of in metrics.items()]
    print_table("a layer with experts, and what each part takes by itself", ("system", *parts), taken, numbers=tuple(parts))
    shown = [
        (one, *(quantity(s, "s") for s in (of["e2e_s"], of["prefill_s"], of["e2e_s"] - of["prefill_s"], of["ndp_s"])))
        for one, of in requests.items()
    ]
    of_request = ("request", "prompts", "decode", "NDP busy")
    print_table(f"{batch} requests of {prompt} + {output} tokens", ("system", *of_request), shown, numbers=of_request)

    said = [*notes(made, n_hot, batch), *(text for one in metrics for text in made.decided(decoded[one].system))]
    if n_cut := routing.n_sequences % batch if tape else 0:
        said.append(f"left out, since they fill no batch: the tape's last {n_cut} of {routing.n_sequences} sequences")
    if left_out := dict.fromkeys(kind for one in metrics for kind, of in decoded[one].uncounted.items() if any(of)):
        said.append(f"not counted by profile {made.profile.name}: {', '.join(left_out)}")
    if any(whole["is_extrapolated"] for whole in requests.values()):
        said.append("more output tokens than the routing has: its mean step is used throughout")
    note(*dict.fromkeys(said))


def _systems(system: str, bits: str) -> list[str]:
    """Names of systems; of ours one for each of the mean bits. Raises ValueError for an unknown name, and for what is no bits."""
    refuse_unknown("system", system, KINDS)
    if system not in ("all", "ours"):
        return [system]
    try:
        ours = [f"OURS-{float(text):.12g}" for text in bits.split(",")]
    except ValueError:
        raise ValueError(f"--bits {bits}: give mean bits from 1 to 4, or 16, with commas") from None
    return ours if system == "ours" else [*ours, "monde", "hobbit"]


def _source(store: Store, model: str | None, tape: str | None) -> tuple[str, Geometry, str | None]:
    """The model given, else the tape's: its name and geometry; and the tape's id. Raises ValueError for none of the two."""
    from tokentape.flows.study import matching
    from tokentape.warehouse import models

    (trace_id, *others) = (None,) if tape is None else matching((tape,), store.trace_ids())
    if others:
        raise ValueError(f"--tape {tape} fits {len(others) + 1} tapes: {trace_id}, {', '.join(others)}; give more of one id")
    if model:
        found = models.load(model)
        return found.name, found.geometry, trace_id
    if not trace_id:
        raise ValueError("nothing to decode: give --model, --tape or both")
    manifest = store.open(trace_id).manifest
    return manifest.model_id, manifest.geometry, trace_id
