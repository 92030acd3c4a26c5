"""kv: a tape's attention through a KV eviction policy."""

from __future__ import annotations

from typing import Annotated

from tokentape.flows.options import StoreOption, TraceArgument, option


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

    \b
    Examples:
      tokentape capture --model embedded --dataset code --tables requests,tokens,attention
      tokentape decide kv TRACE --policy aerp --param budget=64 --param sink=4
      tokentape decide kv TRACE --policy oracle --param budget=64
    """
    from tokentape.flows import kv_tape
    from tokentape.flows.console import note, number, percent, print_table, progress_bar, quantity
    from tokentape.policies.registry import blamed
    from tokentape.policies.resolve import parse, resolve

    with blamed("kv", policy), progress_bar("kv"):
        chosen = resolve("kv", policy, parse(param))
        found = kv_tape.run(store, trace, chosen, renorm, exact=not approximate)
    row = found.replay
    high = "" if row["is_exact"] else f" to {percent(row['kept_mass_high_frac'])}"
    rows = [
        ("attention on retained tokens", percent(row["kept_mass_frac"]) + high),
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
