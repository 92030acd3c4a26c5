"""models, fit: the geometry table, or a config.json, with the parameters, bytes and operations that follow; what bits cost its
weights; what of it fits where on a machine, and what would be needed where it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tokentape.flows.console import note, number, print_json, print_table, progress_bar, quantity, say
from tokentape.flows.options import FormatOption, JsonOption, OutOption, argument, asked, format_of, option

if TYPE_CHECKING:
    from tokentape.replay.room import Room


def models_list() -> None:
    """List the models whose geometry ships with the project, their parameters beside the published counts."""
    from tokentape.warehouse import model_tables, models

    headings = model_tables.HEADINGS
    rows = [[number(*cell) for cell in model_tables.cells(model)] for model in models.shipped()]
    print_table("", headings, rows, numbers=headings[1:])


def models_show(
    name: Annotated[str, argument("MODEL", "A shipped model or the path of a config.json.")],
) -> None:
    """Show what follows from a model's geometry: parameters by part, bytes by format, cache and operations per token.

    tokentape models show qwen3-30b-a3b
    tokentape models show ./my-model/config.json
    """
    from tokentape.warehouse import model_tables, models

    model = models.load(name)
    print_table(model.name, ("", model.name), model_tables.details(model))


def quantise_report(
    model: Annotated[str, argument("MODEL", "embedded, a .safetensors file, a directory, or a cached hub id owner/name.")],
    pairs: Annotated[str, option("High and low width in bits, comma-separated.")] = "MAT42,MAT84",
    schemes: Annotated[str, option("Comma-separated, of those in docs/quantise.md. [default: all]")] = "",
    group: Annotated[int, option("Weights along the input that share a scale.")] = 32,
    only: Annotated[str, option("experts: the routed experts' matrices; else a regular expression on tensor names.")] = "experts",
    by: Annotated[str, option("all: one total; layer: a row per layer too.")] = "all",
    device: Annotated[str | None, option("cpu, cuda, mps or auto: calculate there in torch. [default: numpy]")] = None,
    format: FormatOption = "table",
    as_json: JsonOption = False,
    out: OutOption = None,
) -> None:
    """Show what each quantisation scheme costs a checkpoint's weights: error and bytes, low-bit slices against the original.

    Tensors are streamed: a checkpoint larger than memory is fine. Errors are of weights, not of answers: those take a live model.

    tokentape models quantise embedded
    tokentape models quantise Qwen/Qwen3-30B-A3B --pairs MAT84 --schemes base_asym,amat --by layer --format csv
    tokentape models quantise model.safetensors --only 'mlp.(up|down)_proj' --group 128
    """
    import polars as pl

    from tokentape.capture.quantise_report import report
    from tokentape.policies.matryoshka import MAT, SCHEMES
    from tokentape.warehouse.sql import render

    shape = format_of(format, as_json)  # refused before an hour of reading, not after
    if out is not None and not out.parent.is_dir():
        raise ValueError(f"{out.parent}: no such directory; make it or give another --out")
    wanted = [MAT.parse(name) for name in pairs.split(",") if name.strip()]
    names = [name.strip() for name in schemes.split(",") if name.strip()] or list(SCHEMES)
    with progress_bar("quantise") as show:
        rows = report(model, wanted, names, group, only, by, device, show)
    render(pl.DataFrame(rows), shape, out)


def fit(
    ctx: typer.Context,
    model: Annotated[str, argument("MODEL", "A shipped model or the path of a config.json (or its folder).")],
    machine: Annotated[str, argument("MACHINE", "A shipped machine or my.toml.")],
    batch: Annotated[int, option("Requests at once.", min=1)] = 1,
    context: Annotated[int, option("Tokens of each, prompt and output.", min=1)] = 4096,
    expert_format: Annotated[str, option("Of routed experts: bf16, fp32, fp8, int8-g32, mxfp4, int4.")] = "bf16",
    weight_format: Annotated[str | None, option("Of all other weights. [default: as the experts]")] = None,
    kv_format: Annotated[str, option("Of keys and values: bf16, int8, int4.", "--kv-format")] = "bf16",
    prefill_tokens: Annotated[int, option("Tokens of prompts in one pass: what activations are kept of.", min=1)] = 512,
    draft_bits: Annotated[float, option("Of a copy of the model that drafts; 0: none.", min=0.0, max=16.0)] = 0.0,
    budget: Annotated[
        str | None,
        option("Room for experts in the fast tier: 25%, 24GB, '64 experts'. [default: what is left, at most all]"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what of a model fits where: weights, experts, keys and values, drafts and activations, tier by tier.

    Beside it the largest batch and the longest context at every width, and, where it does not fit, what each tier lacks, at
    which width it would and on how many such devices. Exit code 1 where it does not fit.

    tokentape fit qwen3-30b-a3b rtx5090 --expert-format int4
    tokentape fit qwen3-235b-a22b h100x8 --batch 32 --context 8192
    tokentape fit ./my-model/config.json oneplus-15r --expert-format int4 --budget 4000MiB --json
    """
    from tokentape.flows.grid import load_hardware
    from tokentape.replay import room as rooms
    from tokentape.replay.capacity import parse_capacity
    from tokentape.warehouse import models

    of, place = models.load(model), load_hardware(machine)
    geometry = of.geometry
    note(*of.doubts)
    if budget and not (place.roles.expert_cache and geometry.moe_layers):
        raise ValueError(f"--budget {budget} has no effect: {place.name} has no tier in front of the experts of this model")
    room = parse_capacity(budget, geometry, expert_format) if budget else None
    others = {"context_tokens": context, "weight_format": weight_format or expert_format, "cache_bytes": room}
    wanted = asked(rooms.Asked, ctx, **others)
    found = rooms.room_of(geometry, place, wanted)
    each = rooms.widths(geometry, place, wanted)
    most = [[rooms.largest(geometry, place, one.asked, name) for name in ("batch", "context_tokens")] for one in each]
    n_devices = rooms.devices(geometry, place, wanted) if found.missing else place.n_devices
    if as_json:
        tiers = {name: {"room_bytes": room, "held_bytes": what} for name, (room, what) in found.tiers.items()}
        by_width = [
            {**_told(one), "largest_batch": of_batch, "largest_context": of_context}
            for one, (of_batch, of_context) in zip(each, most, strict=True)
        ]
        made = {"model": model, "machine": place.name, **_told(found), "tiers": tiers, "devices": n_devices, "widths": by_width}
        print_json(made)
        raise typer.Exit(int(bool(found.missing)))
    rows = [
        (name, words, quantity(n_bytes, "B"), quantity(room, "B") if i == 0 else "", _left(room, what) if i == 0 else "")
        for name, (room, what) in found.tiers.items()
        for i, (words, n_bytes) in enumerate(what.items())
    ]
    title = f"{model} on {place.name}: {batch} x {context:,} tokens, experts {expert_format}, keys and values {kv_format}"
    print_table(title, ("tier", "what lies there", "bytes", "room", "left"), rows, numbers=("bytes", "room", "left"))
    shown = [
        (
            one.asked.expert_format,
            quantity(one.held["weights_home"] + one.held["expert_home"], "B"),
            "does not fit" if one.missing else "no experts" if one.cached_frac is None else f"{one.cached_frac:.0%}",
            f"{of_batch:,}" if of_batch else "none",
            f"{of_context:,}" if of_context else "none",
        )
        for one, (of_batch, of_context) in zip(each, most, strict=True)
    ]
    head = ("weights in", "all weights", "experts in the fast tier", f"batch at {context:,} tokens", f"tokens at batch {batch}")
    print_table("what each width leaves room for", head, shown, numbers=head[1:])
    if not found.missing:
        frac = found.cached_frac
        say("it fits" if frac in (None, 1.0) else f"it fits with {frac:.0%} of the experts in the fast tier")
        return
    note(*(f"{name} lacks {quantity(n_bytes, 'B')}" for name, n_bytes in found.missing.items()))
    narrower = next((one.asked.expert_format for one in each if not one.missing), None)
    shorter = rooms.largest(geometry, place, wanted, "context_tokens")
    ways = [f"weights in {narrower}"] * bool(narrower) + [f"at most {shorter:,} tokens"] * bool(shorter)
    ways += [f"{n_devices} such devices"] * bool(n_devices)
    say(f"it does not fit; it would with {', or with '.join(ways) or 'another machine'}")
    raise typer.Exit(1)


def _told(room: Room) -> dict[str, object]:
    """Of a setting: whether it fits, and by how much not."""
    told = {"expert_format": room.asked.expert_format, "fits": not room.missing, "missing_bytes": room.missing}
    return {**told, "cached_frac": room.cached_frac, "held_bytes": room.held}


def _left(room: float, what: dict[str, float]) -> str:
    left = room - sum(what.values())
    return quantity(left, "B") if left >= 0 else f"-{quantity(-left, 'B')}"
