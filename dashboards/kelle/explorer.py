"""The Kelle page's explorer: choose a model and a task, drag batch and budget, and see what each system gains."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from tokentape.dashboards.engine import Ask, Control, Drawn, some
from tokentape.dashboards.kelle.words import BASELINE, KELLE, tasks, times
from tokentape.dashboards.units import joined

KEYS = ["reading", "model", "workload", "batch"]
PACKED = ["batch", "budget", "speed", "energy"]
OPENS_AT = {"explored": "llama-2-7b", "task": "PG19", "batch": 16, "budget": 2048}
DIGITS = 4


def explorer(ask: Ask) -> Drawn:
    found = some(ask("explorer").drop_nulls("energy"))
    return Drawn(
        {"explorer": _packed(found)},
        dict(_answers(found)),
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


def _answers(found: pl.DataFrame) -> Iterator[tuple[str, str]]:
    budgets = found["budget"].drop_nulls().unique().sort().to_list()
    for key, of in found.group_by(KEYS, maintain_order=True):
        for budget in budgets:
            there = of.filter(pl.col("budget").is_null() | (pl.col("budget") == budget))
            said = answer(there)
            if said:
                yield "|".join(map(str, (*key, budget))), said


def answer(found: pl.DataFrame) -> str:
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
