"""The Kelle page on gains: those of the five systems (Figure 13), where Kelle's energy on the chip goes, and the explorer."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from tokentape.dashboards.engine import Ask, Control, Drawn, known, options, rows_like, sentences, some
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
    said = sentences(headline, ["reading"], lambda of: gains_answer(of, rows_like(means, of, "reading")))
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
    """Menus open at OPENS_AT, tasks by length; a system that keeps everything goes with any budget."""
    found = some(ask("explorer").drop_nulls("energy"))
    batches, budgets = (found[name].drop_nulls().unique().sort().to_list() for name in ("batch", "budget"))
    chosen = found.join(pl.DataFrame({"chosen": budgets}), how="cross").filter(
        pl.col("budget").is_null() | (pl.col("budget") == pl.col("chosen"))
    )
    values: dict[str, Iterable[str | int]] = {
        "explored": found["model"].unique().sort(),
        "task": tasks(found),
        "batch": batches,
        "budget": budgets,
    }
    return Drawn(
        {"explorer": _packed(found)},
        sentences(chosen, [*KEYS, "chosen"], explorer_answer),
        {"budgets": budgets},
        controls=(
            Control("explored", "Model, explored"),
            Control("task", "Task, explored"),
            Control("batch", "Batch", {f"{n}": f"{n} request{'s' * (n > 1)}" for n in batches}, "slider"),
            Control("budget", "Budget", {f"{n}": f"{n} tokens" for n in budgets}, "slider"),
        ),
        choices=tuple(row for name, of in values.items() for row in options(name, of, OPENS_AT[name])),
    )


def _packed(found: pl.DataFrame) -> pl.DataFrame:
    """A row per system, its batches and budgets as lists: a page stays small."""
    rounded = found.with_columns(pl.col("speed", "energy").round_sig_figs(DIGITS))
    return rounded.group_by("reading", "model", "workload", "system", maintain_order=True).agg(PACKED)


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
