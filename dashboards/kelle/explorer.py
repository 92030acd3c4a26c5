"""The Kelle page's explorer: choose a model and a task, drag batch and budget, and see what each system gains."""

from __future__ import annotations

from collections.abc import Iterator

import altair as alt
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.kelle.words import BASELINE, HERE, KELLE, NOT_HERE, SYSTEMS, WORKLOADS, source, times
from tokentape.dashboards.panels import colour, known, params, stacked
from tokentape.dashboards.shell import Control, Figure, Part
from tokentape.dashboards.units import joined

QUESTION = "Your own setting: what does each system gain, for which model, task, batch and budget?"
KEYS = ["reading", "model", "workload", "batch"]
NAMES = ("reading", "explored", "task", "batch", "budget")
PACKED = ["batch", "budget", "speed", "energy"]
OF = f"{HERE} && datum.model === explored && datum.workload === task"
OPENS_AT = {"explored": "llama-2-7b", "task": "PG19", "batch": 16, "budget": 2048}
DIGITS = 4


def part(explorer: pl.DataFrame, start: dict[str, str]) -> Part:
    """explorer: rows.explorer."""
    found = explorer.drop_nulls("energy") if not explorer.is_empty() else explorer
    if found.is_empty():
        return Part((Figure("explorer", QUESTION, None, {}, (), "", NOT_HERE),))
    choices = tuple(_choices(found))
    first = dict(start)
    for row in choices:
        first |= {name: value for name, value in row.items() if name not in first}
    reading = (
        "The sliders above set the requests of a batch and the tokens that a head keeps; the model and the task are menus. "
        "Right: efficiency over all budgets at the batch chosen, the chosen budget shaded. Gains are over Original+SRAM of the "
        "same model, task and batch, in speed and in energy. A budget above the length of the sequence evicts nothing. No gain "
        "is drawn where a step, or that of Original+SRAM, does not fit."
    )
    figure = Figure("explorer", QUESTION, _chart(found, first), dict(_answers(found)), NAMES, reading, NOT_HERE)
    return Part(
        (figure,),
        controls=(
            Control("explored", "Model, explored"),
            Control("task", "Task, explored"),
            Control("batch", "Batch", {f"{n}": f"{n} request{'s' * (n > 1)}" for n in found["batch"].unique()}, "slider"),
            Control("budget", "Budget", {f"{n}": f"{n} tokens" for n in found["budget"].drop_nulls().unique()}, "slider"),
        ),
        choices=choices,
        data={"explorer": _packed(found)},
    )


def _choices(found: pl.DataFrame) -> Iterator[dict[str, str]]:
    """Values of each control, the opening one first, tasks by length."""
    tasks = known(dict.fromkeys(WORKLOADS, ""), found["workload"])
    values = {
        "explored": found["model"].unique().sort().to_list(),
        "task": tasks,
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


def _chart(found: pl.DataFrame, start: dict[str, str]) -> alt.VConcatChart:
    base = alt.Chart(alt.NamedData("explorer")).transform_filter(OF).transform_flatten(PACKED)
    base = base.transform_filter("datum.batch === toNumber(batch)")
    names = known(SYSTEMS, found["system"])
    chosen = base.transform_filter("!isValid(datum.budget) || datum.budget === toNumber(budget)")
    panels = [_bars(chosen, names, field, title, n == 0) for n, (field, title) in enumerate(
        {"energy": "energy efficiency (×)", "speed": "speed-up (×)"}.items()
    )]  # fmt: skip
    panels.append(_curve(base, found, names))
    drawn = alt.hconcat(*panels, spacing=45).resolve_scale(color="shared")
    return stacked([drawn], source("over Original+SRAM"), params(start, *NAMES))


def _bars(chosen: alt.Chart, names: list[str], field: str, title: str, is_first: bool) -> alt.LayerChart:
    axis = alt.Axis(ticks=False, domain=False, labels=is_first, labelFontSize=13)
    y, x = alt.Y("system:N", title=None, sort=names, axis=axis), alt.X(f"{field}:Q", title=title)
    tips = [alt.Tooltip("system:N"), alt.Tooltip("energy:Q", format=".2f"), alt.Tooltip("speed:Q", format=".2f")]
    bars = chosen.mark_bar(height=20).encode(x, y, colour(SYSTEMS, "system", names, None), tooltip=tips)
    words = chosen.mark_text(align="left", fontSize=12).encode(y, x=alt.value(258), text=alt.Text(f"{field}:Q", format=".2f"))
    return alt.layer(bars, words).properties(width=250, height=190)


def _curve(base: alt.Chart, found: pl.DataFrame, names: list[str]) -> alt.LayerChart:
    """Efficiency against the budget, at the chosen batch."""
    budgets = found["budget"].drop_nulls().unique().sort().to_list()
    there = base.transform_filter("isValid(datum.budget)")
    scale = alt.Scale(type="log", base=2, nice=False, padding=14)
    axis = alt.Axis(values=budgets, format=",d", grid=False)
    x = alt.X("budget:Q", title="budget (tokens per head, log scale)", scale=scale, axis=axis)
    y = alt.Y("energy:Q", title="energy efficiency (×)", scale=alt.Scale(zero=True))
    shade = there.transform_filter("datum.budget === toNumber(budget)").mark_rule(color=theme.GRID, strokeWidth=10).encode(x)
    line = there.mark_line(point=True).encode(
        x, y, colour(SYSTEMS, "system", names, None), tooltip=[alt.Tooltip("system:N"), alt.Tooltip("energy:Q", format=".2f")]
    )
    return alt.layer(shade, line).properties(width=310, height=190)
