"""fit: what of a model fits where on a machine, and what would be needed where it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from tokentape.flows.console import note, print_json, print_table, quantity, say
from tokentape.flows.options import JsonOption, argument, option

if TYPE_CHECKING:
    from tokentape.replay.room import Room


def fit(
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

    \b
    Examples:
      tokentape fit qwen3-30b-a3b rtx5090 --expert-format int4
      tokentape fit qwen3-235b-a22b h100x8 --batch 32 --context 8192
      tokentape fit ./my-model/config.json oneplus-15r --expert-format int4 --budget 4000MiB --json
    """
    import typer

    from tokentape.flows.grid import load_hardware
    from tokentape.replay import room as rooms
    from tokentape.replay.capacity import parse_capacity
    from tokentape.warehouse import models

    of, place = models.load(model), load_hardware(machine)
    geometry = of.geometry
    for doubt in of.doubts:
        note(doubt)
    if budget and not (place.roles.expert_cache and geometry.moe_layers):
        raise ValueError(f"--budget {budget} has no effect: {place.name} has no tier in front of the experts of this model")
    asked = rooms.Asked(
        batch=batch,
        context_tokens=context,
        expert_format=expert_format,
        weight_format=weight_format or expert_format,
        kv_format=kv_format,
        prefill_tokens=prefill_tokens,
        draft_bits=draft_bits,
        cache_bytes=parse_capacity(budget, geometry, expert_format) if budget else None,
    )
    found = rooms.room_of(geometry, place, asked)
    each = rooms.widths(geometry, place, asked)
    most = [[rooms.largest(geometry, place, one.asked, name) for name in ("batch", "context_tokens")] for one in each]
    n_devices = rooms.devices(geometry, place, asked) if found.missing else place.n_devices
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
    for name, n_bytes in found.missing.items():
        note(f"{name} lacks {quantity(n_bytes, 'B')}")
    narrower = next((one.asked.expert_format for one in each if not one.missing), None)
    shorter = rooms.largest(geometry, place, asked, "context_tokens")
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
