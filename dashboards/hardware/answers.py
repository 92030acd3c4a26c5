"""The sentence above each chart of the hardware page, computed from the rows the chart shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tokentape.dashboards.units import highest, joined, percent, quantity, significant

OWN_MEMORY = "'s memory"  # behind the name of an engine that reads its memory in another way than through the tier's interface
THROUGHOUT = 0.8  # of the step: a resource that is busy for less does not alone decide how long it takes


def balance(ceilings: pl.DataFrame) -> str:
    """Where memory stops and computing begins to limit a machine."""
    memory, engine = _main(ceilings)
    ridge = engine["reached"] / memory["reached"]
    return (
        f"{memory['hardware']} balances at {significant(ridge)} operations per byte: below, {_memory(memory)} limits it "
        f"({quantity(memory['reached'], 'B/s')} reached), above, {engine['name']} ({quantity(engine['reached'], 'op/s')})"
    )


def roof(ceilings: pl.DataFrame, points: pl.DataFrame) -> str:
    """The balance, and which of the two limits the operations that take most of the step."""
    memory, engine = _main(ceilings)
    ridge = engine["reached"] / memory["reached"]
    said = []
    for row in points.filter((pl.col("ops") > 0) & (pl.col("bytes") > 0)).sort("share", descending=True).head(2).to_dicts():
        intensity, speed = row["ops"] / row["bytes"], row["ops"] / row["seconds"]
        limit = _memory(memory) if intensity < ridge else engine["name"]
        best = min(engine["reached"], memory["reached"] * intensity)
        reached = "at the roof" if abs(speed / best - 1) < 0.01 else f"at {percent(speed / best, 0)} of the roof"
        said.append(f"{row['operation']} ({share(row['share'])} of the step): limited by {limit}, {reached}")
    if points.is_empty():
        return f"{balance(ceilings)}. No step is recorded on it."
    return f"{balance(ceilings)}. {_capital('; '.join(said)) or 'The step computes nothing'}."


def clock(step: Mapping[str, Any], busy: pl.DataFrame, points: pl.DataFrame) -> str:
    """How long the step takes, which resource is busy for how much of it, and which operation takes most."""
    longest = points.sort("share", descending=True).row(0, named=True)
    takes, most = f"The step takes {quantity(step['seconds'], 's')}.", highest(busy["busy"])
    spent = f"Most of the time goes to {longest['operation']} ({share(longest['share'])})."
    lanes = [f"{row['resource']} {share(row['busy'])}" for row in busy.to_dicts()]
    if most < THROUGHOUT:
        idle = 1.0 - float(busy["busy"].sum())
        rest = "they wait for one another" if idle <= 0.005 else f"for {share(idle)} none works at its rate: launches and losses"
        return f"{takes} No resource is busy throughout: {joined(lanes)}; {rest}. {spent}"
    tied = busy.filter(pl.col("busy") > most - 0.005)["resource"].to_list()  # a tier and the link in front of it work together
    others = joined(lanes[len(tied) :])
    return f"{takes} The bottleneck is {joined(tied)}, busy {share(most)} of it{'; ' * bool(others)}{others}. {spent}"


def share(fraction: float) -> str:
    """Whole per cent, without a zero for what is there."""
    return "< 1 %" if 0.0 < fraction < 0.005 else percent(fraction, 0)


def energy(hardware: str, rows: pl.DataFrame) -> str:
    """The cheapest and the dearest place of a machine to read a bit from, and how much is assumed. rows: the machine's own."""
    ranked = rows.filter(pl.col("side") != "write").sort("value", "name").to_dicts()
    low, high = ranked[0], ranked[-1]
    n, n_assumed = rows["name"].n_unique(), rows.filter("assumed")["name"].n_unique()
    band = f" Tiers and links with an assumed value or end of the range: {n_assumed} of {n}."
    if len(ranked) == 1:
        return f"On {hardware} a bit read from {low['name']} costs {low['value']:.3g} pJ.{band}"
    return (
        f"On {hardware} a bit costs from {low['value']:.3g} pJ ({_place(low)}) to {high['value']:.3g} pJ ({_place(high)}), "
        f"{high['value'] / low['value']:.3g} times as much.{band}"
    )


def _place(row: Mapping[str, Any]) -> str:
    return f"over {row['name']}" if row["side"] == "transfer" else f"read from {row['name']}"


def _main(ceilings: pl.DataFrame) -> tuple[dict[str, Any], dict[str, Any]]:
    """The memory and the engine that make the roof of one machine."""
    memory, engine = (
        ceilings.filter(pl.col("is_main") & ((pl.col("kind") == "engines") == is_engine)) for is_engine in (False, True)
    )
    return memory.row(0, named=True), engine.row(0, named=True)


def _memory(row: Mapping[str, Any]) -> str:
    return f"{row['name']}{OWN_MEMORY}" if row["kind"] == "memory" else str(row["name"])


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
