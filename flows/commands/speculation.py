"""acceptance: what the rounds of a speculative tape say, and its pools under another policy or size."""

from __future__ import annotations

from typing import Annotated

from tokentape.flows.options import StoreOption, TraceArgument, option


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

    \b
    Examples:
      tokentape decide draft TRACE
      tokentape decide draft TRACE --pool lru --pool-frac 0.25
    """
    from tokentape.flows.console import number, print_table
    from tokentape.flows.speculation import metrics_of, opened

    tape = store.open(trace)
    shown = [(name, number(value, ".4g")) for name, value in metrics_of(tape).items()]
    print_table(f"{tape.trace_id}: {tape.manifest.rows['rounds']} rows of rounds", ("metric", "value"), shown, numbers=("value",))
    if pool is None and pool_frac is None and (tape.manifest.settings.get("speculation") or {}).get("draft") != "elastic":
        return
    found = opened(tape).replay(pool, pool_frac)
    proxies = [(name, number(value, ".4g")) for name, value in found.proxies.items()]
    print_table(f"pools, {found.fidelity}", ("metric", "value"), proxies, numbers=("value",))
