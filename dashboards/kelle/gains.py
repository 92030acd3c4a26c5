"""The Kelle page on gains: those of the five systems (Figure 13), where Kelle's energy on the chip goes, and the explorer."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from tokentape.dashboards.engine import Ask, Control, Drawn, known, sentences, some
from tokentape.dashboards.kelle.words import BASELINE, KELLE, SYSTEMS, tasks, times
from tokentape.dashboards.units import joined, percent

MEASURES = {"energy": "energy efficiency", "speed": "speed"}
KEYS = ["reading", "model", "workload", "batch"]
PACKED = ["batch", "budget", "speed", "energy"]
OPENS_AT = {"explored": "llama-2-7b", "task": "PG19", "batch": 16, "budget": 2048}
DIGITS = 4


def gains(ask: Ask) -> Drawn:
    headline = some(ask("headline"))
    means = averaged(headline, ask("published"))
    said = sentences(headline, ["reading"], lambda of: gains_answer(of, means.filter(pl.col("reading") == of["reading"][0])))
    return Drawn({"headline": headline, "means": means}, said)


def averaged(headline: pl.DataFrame, published: pl.DataFrame) -> pl.DataFrame:
    """Mean gains over the cells that both systems fit, by reading and system, a row per measure, with the paper's number."""
    made = (
        headline.drop_nulls("energy")
        .group_by("reading", "system")
        .agg(pl.mean("energy"), pl.mean("speed"), pl.len().alias("cells"))
        .join(published, on="system", how="left", suffix="_paper")
    )
    each = [
        made.select("reading", "system", "cells", measure=pl.lit(words), gain=name, published=f"{name}_paper")
        for name, words in MEASURES.items()
    ]
    return pl.concat(each).sort("reading", "measure", "system")


def gains_answer(found: pl.DataFrame, means: pl.DataFrame) -> str:
    """Kelle's mean gains beside the paper's, its range, the other systems, and what lies beyond the DRAM; rows of one reading."""
    ours = found.filter(pl.col("system") == KELLE)
    held = ours.drop_nulls("energy").sort("energy")
    if held.is_empty():
        return f"{KELLE} and {BASELINE} fit into the DRAM together in no cell."
    at = {(row["measure"], row["system"]): row for row in means.to_dicts()}
    speed, energy = (at[words, KELLE] for words in ("speed", "energy efficiency"))
    paper = f" (the paper: {times(speed['published'])} and {times(energy['published'])})" if speed["published"] else ""
    least, most = held.row(0, named=True), held.row(-1, named=True)
    others = [
        f"{name} {times(at['speed', name]['gain'])} and {times(at['energy efficiency', name]['gain'])}"
        for name in known(SYSTEMS, means["system"])
        if name not in (BASELINE, KELLE)
    ]
    where = f"{held.height} of {ours.height} cells fit" if held.height < ours.height else f"over {held.height} cells"
    beyond = ours.filter("is_beyond").height
    warned = f" {beyond} of Kelle's cells need more than the DRAM holds." if beyond and held.height == ours.height else ""
    return (
        f"{KELLE} is {times(speed['gain'])} as fast as {BASELINE} and {times(energy['gain'])} as efficient{paper}, {where}; in "
        f"energy from {times(least['energy'])} ({least['model']}, {least['workload']}) to {times(most['energy'])} "
        f"({most['model']}, {most['workload']}). In speed and energy {joined(others)}.{warned}"
    )


def chip_answer(found: pl.DataFrame) -> str:
    """The largest part and the refresh, on the shortest and the longest task; rows of one reading."""
    held = tasks(found)
    said = []
    for task in dict.fromkeys((held[0], held[-1])):
        of = found.filter(pl.col("workload") == task).sort("share", descending=True)
        first = of.row(0, named=True)
        refresh = float(of.filter(pl.col("part") == "refresh")["share"].sum())
        said.append(f"{percent(first['share'], 0)} into the {first['part']} and {percent(refresh, 0)} into refresh ({task})")
    return f"On the chip {joined(said)}."


def explorer(ask: Ask) -> Drawn:
    found = some(ask("explorer").drop_nulls("energy"))
    return Drawn(
        {"explorer": _packed(found)},
        dict(_explorer_answers(found)),
        {"budgets": found["budget"].drop_nulls().unique().sort().to_list()},
        controls=(
            Control("explored", "Model, explored"),
            Control("task", "Task, explored"),
            Control("batch", "Batch", {f"{n}": f"{n} request{'s' * (n > 1)}" for n in found["batch"].unique()}, "slider"),
            Control("budget", "Budget", {f"{n}": f"{n} tokens" for n in found["budget"].drop_nulls().unique()}, "slider"),
        ),
        choices=tuple(_choices(found)),
    )


def _choices(found: pl.DataFrame) -> Iterator[dict[str, str]]:
    """Values of each control, the opening one first, tasks by length."""
    values = {
        "explored": found["model"].unique().sort().to_list(),
        "task": tasks(found),
        "batch": found["batch"].unique().sort().to_list(),
        "budget": found["budget"].drop_nulls().unique().sort().to_list(),
    }
    for name, held in values.items():
        for value in sorted(held, key=lambda value: value != OPENS_AT[name]):
            yield {name: f"{value}"}


def _packed(found: pl.DataFrame) -> pl.DataFrame:
    """A row per system, its batches and budgets as lists: a page stays small."""
    rounded = found.with_columns(pl.col("speed", "energy").round_sig_figs(DIGITS))
    return rounded.group_by("reading", "model", "workload", "system", maintain_order=True).agg(PACKED)


def _explorer_answers(found: pl.DataFrame) -> Iterator[tuple[str, str]]:
    budgets = found["budget"].drop_nulls().unique().sort().to_list()
    for key, of in found.group_by(KEYS, maintain_order=True):
        for budget in budgets:
            there = of.filter(pl.col("budget").is_null() | (pl.col("budget") == budget))
            said = explorer_answer(there)
            if said:
                yield "|".join(map(str, (*key, budget))), said


def explorer_answer(found: pl.DataFrame) -> str:
    """The most efficient system and the others; rows of one setting. Empty where Kelle does not fit."""
    ours = found.filter(pl.col("system") == KELLE)
    if ours.is_empty():
        return ""
    best = found.sort("energy", descending=True).row(0, named=True)
    rest = [
        f"{row['system']} {times(row['energy'])}"
        for row in found.sort("energy", descending=True).to_dicts()
        if row["system"] not in (best["system"], BASELINE)
    ]
    fast = ours.row(0, named=True)["speed"]
    beyond = " It needs more than the DRAM holds." if ours["is_beyond"][0] else ""
    return (
        f"{best['system']} is most efficient, {times(best['energy'])} {BASELINE}; {joined(rest)}. {KELLE} is {times(fast)} as "
        f"fast.{beyond}"
    )
