"""decide: one decision over recorded tapes. Which keys and values stay, which experts a GPU should hold while the rest compute in
memory, with how many bits they may do so, and what drafts a speculative tape's rounds accept."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Annotated, TypeVar

import typer

from tokentape.flows.console import band, note, number, percent, print_table, progress_bar, quantity
from tokentape.flows.options import StoreOption, TraceArgument, argument, option

Number = TypeVar("Number", int, float)
CapacityOption = Annotated[str, option("Experts on the GPU in a layer: '4 experts', 50% or 1.5GB of a layer's.", "--capacity")]
ScopeOption = Annotated[str, option("per-layer, or global: the layers share the places, or the bits, by importance.", "--scope")]
AlphaOption = Annotated[float, option("Importance: weight of selections against gate weights.", "--alpha")]


def kv(
    trace: TraceArgument,
    policy: Annotated[
        str, option("full, streaming, h2o, tova, snapkv, random, aep, aerp, quest, oracle (a bound); my.py:MyPolicy.")
    ],
    param: Annotated[
        list[str] | None, option("A field of the policy, NAME=VALUE; repeatable: budget=64, sink=4, importance=mean, ...")
    ] = None,
    renorm: Annotated[
        bool, option("Scale recorded rows to what is retained before scores are added up.", "--renorm/--no-renorm")
    ] = True,
    approximate: Annotated[
        bool, option("Also take rows of which only the largest masses were recorded (top:M).", "--approximate")
    ] = False,
    store: StoreOption = None,
) -> None:
    """Replay a tape's attention through a KV eviction policy: what stays, how much attention that is, and its bytes.

    Open loop: the tape holds what the unmodified model attended to. What eviction does to the model is measured by `tokentape
    evaluate --policy`. Writes tables kv_replays, kv_heads and kv_timeline.

    tokentape capture --model embedded --dataset code --tables requests,tokens,attention
    tokentape decide kv TRACE --policy aerp --param budget=64 --param sink=4
    tokentape decide kv TRACE --policy oracle --param budget=64
    """
    from tokentape.flows.tapes import replay_attention
    from tokentape.policies.registry import blamed
    from tokentape.policies.resolve import parse, resolve

    with blamed("kv", policy), progress_bar("kv"):
        chosen = resolve("kv", policy, parse(param))
        found = replay_attention(store, trace, chosen, renorm, exact=not approximate)
    row = found.replay
    kept, most = row["kept_mass_frac"], row["kept_mass_high_frac"]
    rows = [
        ("attention on retained tokens", percent(kept) if row["is_exact"] else band(kept, most, percent)),
        ("tokens evicted", number(row["n_evicted"], ",")),
        ("tokens that most heads retain, of those that any does", percent(row["popular_frac"])),
        ("keys and values", quantity(row["kv_bytes"], "B")),
        ("layer inputs in their place", quantity(row["x_bytes"], "B")),
        ("a full cache", quantity(row["full_bytes"], "B")),
    ]
    if row["popular_stays_frac"] is not None:
        rows.insert(3, ("popular after the prompt and still at the end", percent(row["popular_stays_frac"])))
    bound = " (a bound: it sees the future)" if row["is_bound"] else ""
    title = f"{row['policy']} {row['parameters']}{bound}\ntape {row['trace_id']} ({row['origin']}), {row['n_steps']:,} tokens"
    print_table(title, ("", "mean after a token"), rows, numbers=("mean after a token",))
    if not row["is_exact"]:
        note(
            "approximate: rows are cut short, or a prompt is known only as a sum over its queries (record its last ones with "
            "capture --attention-rows N, N at least the policy's window)"
        )


def placement(
    ctx: typer.Context,
    traces: Annotated[list[str], argument("TRACE...", "Tapes of one model: their requests count as one set.")],
    placements: Annotated[
        str | None,
        option(
            "prefill_guided, static_global, random, shuffled_prompts, oracle, ema, never, always. [default: all]",
            "--placement",
        ),
    ] = None,
    capacity: CapacityOption = "50%",
    scope: ScopeOption = "per-layer",
    batch: Annotated[str, option("Sequences that share a placement and decode together.")] = "1,16",
    alpha: AlphaOption = 0.5,
    beta: Annotated[float, option("ema: weight of the past.")] = 0.9,
    seed: Annotated[int, option("random: its draws.")] = 0,
    weight_source: Annotated[str, option("gate (as applied) or softmax (of the scores).")] = "gate",
    expert_format: Annotated[str, option("Of a capacity in bytes.")] = "recorded",
    store: StoreOption = None,
) -> None:
    """How often decode finds its experts on the GPU, by placement, and how far prompts foretell the experts of their decode.

    Open loop: the tape's routing. Writes tables cxl_ndp_hits, cxl_ndp_similarity and cxl_ndp_use.

    tokentape decide place TRACE
    tokentape decide place TRACE --capacity '4 experts' --batch 1,8 --placement prefill_guided,static_global,oracle
    tokentape decide place TRACE --scope global --alpha 1
    tokentape decide place embedded-math embedded-code embedded-docs
    """
    from tokentape.flows.placement import placed

    names = None if placements is None else [name.strip() for name in placements.split(",")]
    numbers = tuple(_numbers(batch, "--batch", int))
    recorded, size, found, similar = placed(SimpleNamespace(**ctx.params), store, names, numbers)
    sequences, batches = recorded.n_sequences, sorted({batch for _, batch in found})
    rows = []
    for label in dict.fromkeys(label for label, _ in found):
        of_batch = [found.get((label, b)) for b in batches]
        hit = ["" if hits is None else percent(hits.hit_frac) for hits in of_batch]
        moved = ["" if hits is None else number(hits.moves_per_step().mean(), ".3g") for hits in of_batch]
        rows.append((label, *hit, *moved))
    columns = (*(f"hits, batch {b}" for b in batches), *(f"moved per layer-step, batch {b}" for b in batches))
    where = f"{size.experts} of a layer's {recorded.n_experts} experts on the GPU"
    where += " on average" if scope == "global" else ""
    print_table(f"{recorded.trace_id}: {sequences} sequences, {where}", ("placement", *columns), rows, numbers=columns)
    if max(numbers) > sequences:
        note(f"left out: batches of more than the tape's {sequences} sequences")
    if cut := [f"{sequences % b} with batches of {b}" for b in batches if sequences % b]:
        note(f"left out, since they fill no batch: the last sequences, {', '.join(cut)}")
    shown = ("own_cosine", "shuffled_cosine", "static_cosine", "flat_cosine", "static_frac")
    cells_of = [[number(row[name], ".3f") for name in shown] for row in similar]
    layers = ["all" if row["layer"] is None else str(row["layer"]) for row in similar]
    words = ("own prompt", "other prompts", "all others summed", "nothing in common", "share of popularity")
    if similar:
        table = [(layer, *cells) for layer, cells in zip(layers, cells_of, strict=True)]
        print_table("cosine of expert counts in decode with", ("layer", *words), table, numbers=words)
    else:
        note("fewer than two sequences decode: no other prompts to compare with")


def bits(
    ctx: typer.Context,
    losses: Annotated[str, argument("LOSSES", "Tape that holds table losses.")],
    mean_bits: Annotated[str, option("Bits per expert on average, with commas: 1 to 4.")] = "2,3",
    method: Annotated[str, option("Quantiser: gptq or rtn.")] = "gptq",
    routing: Annotated[
        str | None, option("Tape whose prompts rank the experts. [default: ranked by their loss at 1 bit]")
    ] = None,
    capacity: CapacityOption = "50%",
    scope: ScopeOption = "per-layer",
    alpha: AlphaOption = 0.5,
    loss_weight: Annotated[str, option("none: experts count equally; prefill_share: by their share of the prompt.")] = "none",
    store: StoreOption = None,
) -> None:
    """What each bit-width rule loses by the table: the selector, uniform, greedy, the optimum, and the ranking upside down.

    Of experts outside the hot set, where prompts place one. Writes table bit_losses.

    tokentape decide precision LOSSES --mean-bits 2,2.5,3
    tokentape decide precision LOSSES --routing TRACE --capacity '4 experts' --mean-bits 2
    """
    from tokentape.flows.placement import bit_losses

    rows = bit_losses(SimpleNamespace(**ctx.params), store, _numbers(mean_bits, "--mean-bits", float))
    totals = [row for row in rows if row["layer"] is None]
    shown = []
    for row in totals:
        references = (row[f"{of}_loss"] for of in ("uniform", "optimum"))
        over = (number(row["loss"] / other if other else None, ".4f") for other in references)
        shown.append((row["rule"], number(row["mean_bits"], "g"), number(row["loss"], ".4g"), *over))
    columns = ("rule", "mean bits", "table loss", "over uniform", "over the optimum")
    print_table(f"{totals[0]['source']}, {method}, ranked by {totals[0]['ranking']}", columns, shown, numbers=columns[1:])


def acceptance(
    trace: TraceArgument,
    pool: Annotated[
        str | None, option("Replay the pools under hotness, lru, static, random or oracle. [default: the recorded one]")
    ] = None,
    pool_frac: Annotated[float | None, option("Share of a layer's experts in the pool. [default: the recorded one]")] = None,
    store: StoreOption = None,
) -> None:
    """Print a speculative tape's accepted lengths, every metric by its name, recomputed from its drafts; replay its pools.

    A pool other than the recorded one is approximate: the recorded drafts' original routing stands for what would have been.

    tokentape decide draft TRACE
    tokentape decide draft TRACE --pool lru --pool-frac 0.25
    """
    from tokentape.flows.tapes import acceptance_of, rounds_of

    tape = store.open(trace)
    shown = [(name, number(value, ".4g")) for name, value in acceptance_of(tape).items()]
    print_table(f"{tape.trace_id}: {tape.manifest.rows['rounds']} rows of rounds", ("metric", "value"), shown, numbers=("value",))
    if pool is None and pool_frac is None and (tape.manifest.settings.get("speculation") or {}).get("draft") != "elastic":
        return
    found = rounds_of(tape).replay(pool, pool_frac)
    proxies = [(name, number(value, ".4g")) for name, value in found.proxies.items()]
    print_table(f"pools, {found.fidelity}", ("metric", "value"), proxies, numbers=("value",))


def _numbers(text: str, option: str, kind: Callable[[str], Number]) -> list[Number]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{option} {text!r} is not a list of numbers; write them with commas, such as 1,16") from None
