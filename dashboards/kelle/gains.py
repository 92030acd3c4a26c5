"""The Kelle page's first figures: gains of the five systems (Figure 13), and where Kelle's energy on the chip goes."""

from __future__ import annotations

import altair as alt
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.answers import percent
from tokentape.dashboards.kelle.words import (
    BASELINE,
    HEADER,
    HERE,
    KELLE,
    NOT_HERE,
    PARTS,
    SQUARES,
    SYSTEMS,
    WORKLOADS,
    by_reading,
    source,
    times,
)
from tokentape.dashboards.panels import colour, hollow, known, params, stacked
from tokentape.dashboards.shell import Figure, Part
from tokentape.dashboards.units import joined

MEASURES = {"energy": "energy efficiency", "speed": "speed"}
FITS = "isValid(datum.energy)"
MEANS_WIDE = 400


def part(headline: pl.DataFrame, published: pl.DataFrame, chip: pl.DataFrame, start: dict[str, str]) -> Part:
    """headline, published, chip: rows' of these names."""
    means = averaged(headline, published)
    figures = (_gains_figure(headline, means, start), _chip_figure(chip, start))
    data = {"headline": headline, "means": means, "chip": chip}
    return Part(figures, data={name: frame for name, frame in data.items() if not frame.is_empty()})


def averaged(headline: pl.DataFrame, published: pl.DataFrame) -> pl.DataFrame:
    """Mean gains over the cells that both systems fit, by reading and system, a row per measure, with the paper's number."""
    if headline.is_empty():
        return headline
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


def _gains_figure(headline: pl.DataFrame, means: pl.DataFrame, start: dict[str, str]) -> Figure:
    question = "What does each system gain over SRAM with the whole cache, model by model and task by task?"
    if headline.is_empty():
        return Figure("gains", question, None, {}, (), "", NOT_HERE)
    said = {name: gains_answer(of, means.filter(pl.col("reading") == name)) for name, of in by_reading(headline)}
    reading = (
        "The paper's Figure 13. Above: means over models and tasks; hollow: the paper's own means. Below: bars are energy "
        "efficiency, upright ticks speed, both over Original+SRAM in the same cell. Tasks from the shortest to the longest: "
        "LA 128 tokens of context and 512 decoded, TQ 512 and 2048, QP 1024 and 5120, PG19 512 and 8192; batch 16. AEP evicts "
        "tokens, AERP recomputes popular ones as well. That the paper averages these seven models and four tasks is assumed. "
        "As the paper counts, most cells with the whole cache, and some without, need more memory than the DRAM has; counted "
        "physically, these have no gain."
    )
    return Figure("gains", question, _gains_chart(headline, start), said, ("reading",), reading, NOT_HERE)


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


def _gains_chart(headline: pl.DataFrame, start: dict[str, str]) -> alt.VConcatChart:
    names = known(SYSTEMS, headline["system"])
    title = source("hollow: the paper's means; ticks: speed")
    rows = [_means_chart(names), _cells_chart(headline, names)]
    return stacked(rows, title, params(start, "reading")).resolve_scale(color="shared")


def _means_chart(names: list[str]) -> alt.HConcatChart:
    panels = []
    titles = {"speed": "mean speed-up (×; in brackets: the paper)", "energy efficiency": "mean energy efficiency (×)"}
    for n, (title, limit) in enumerate(titles.items()):
        base = alt.Chart(alt.NamedData("means")).transform_filter(f"{HERE} && datum.measure === {theme.quote(title)}")
        y = alt.Y("system:N", title=None, sort=names, axis=alt.Axis(ticks=False, domain=False, labels=n == 0, labelFontSize=13))
        x = alt.X("gain:Q", title=limit, scale=alt.Scale(domainMin=0))
        tips = [
            alt.Tooltip("system:N"),
            alt.Tooltip("gain:Q", title=title, format=".3f"),
            alt.Tooltip("published:Q", title="paper", format=".2f"),
            alt.Tooltip("cells:Q"),
        ]
        bars = base.mark_bar(height=15).encode(x, y, colour(SYSTEMS, "system", names, SQUARES), tooltip=tips)
        said = "format(datum.gain, '.2f') + (isValid(datum.published) ? ' (' + format(datum.published, '.2f') + ')' : '')"
        words = base.transform_calculate(said=said).mark_text(align="left", fontSize=12)
        paper = hollow(base, 90, at=("published", "datum.gain")).encode(
            alt.X("at:Q"), y, color=alt.value(theme.INK), tooltip=tips
        )
        beside = words.encode(y, x=alt.value(MEANS_WIDE + 8), text="said:N")
        panels.append(alt.layer(bars, beside, paper).properties(width=MEANS_WIDE, height=120))
    return alt.hconcat(*panels, spacing=100)


def _cells_chart(headline: pl.DataFrame, names: list[str]) -> alt.FacetChart:
    base = alt.Chart(alt.NamedData("headline")).transform_filter(HERE)
    models = headline["model"].unique().sort().to_list()
    y = alt.Y("model:N", title=None, sort=models, axis=alt.Axis(ticks=False, domain=False, labelLimit=160))
    x = alt.X("energy:Q", title="gain over Original+SRAM (×)")
    beside = alt.YOffset("system:N", scale=alt.Scale(domain=names))
    tips = [
        alt.Tooltip("model:N"),
        alt.Tooltip("workload:N", title="task"),
        alt.Tooltip("system:N"),
        alt.Tooltip("energy:Q", title="energy efficiency", format=".2f"),
        alt.Tooltip("speed:Q", title="speed-up", format=".2f"),
        alt.Tooltip("is_beyond:N", title="more than the DRAM holds"),
    ]
    there = base.transform_filter(FITS)
    bars = there.mark_bar().encode(x, y, beside, colour(SYSTEMS, "system", names, SQUARES), tooltip=tips)
    ticks = there.mark_tick(color=theme.INK, thickness=2, size=8).encode(alt.X("speed:Q"), y, beside, tooltip=tips)
    gone = base.transform_filter(f"!{FITS}").mark_text(text="does not fit", align="left", fontSize=8, color=theme.QUIET)
    drawn = alt.layer(bars, ticks, gone.encode(y, beside, x=alt.value(2)))
    panels = known(dict.fromkeys(WORKLOADS, ""), headline["workload"])
    return drawn.properties(width=240, height=alt.Step(8, **{"for": "offset"})).facet(
        column=alt.Column("workload:N", title=None, sort=panels, header=HEADER), spacing=18
    )


def _chip_figure(chip: pl.DataFrame, start: dict[str, str]) -> Figure:
    question = "Where does Kelle's energy on the chip go?"
    if chip.is_empty():
        return Figure("chip", question, None, {}, (), "", NOT_HERE)
    said = {name: chip_answer(of) for name, of in by_reading(chip)}
    reading = (
        "The chart beside the paper's Figure 13: shares of a decode step's energy without the DRAM, means over models. KV that "
        "is streamed from DRAM is assumed to pass the eDRAM by, so only what is held on the chip is read from it. The paper "
        "gives shares of power instead; they stand further below."
    )
    return Figure("chip", question, _chip_chart(chip, start), said, ("reading",), reading, NOT_HERE)


def chip_answer(found: pl.DataFrame) -> str:
    """The largest part and the refresh, on the shortest and the longest task; rows of one reading."""
    tasks = known(dict.fromkeys(WORKLOADS, ""), found["workload"])
    said = []
    for task in dict.fromkeys((tasks[0], tasks[-1])):
        of = found.filter(pl.col("workload") == task).sort("share", descending=True)
        first = of.row(0, named=True)
        refresh = of.filter(pl.col("part") == "refresh")["share"].sum()
        said.append(f"{percent(first['share'], 0)} into the {first['part']} and {percent(refresh, 0)} into refresh ({task})")
    return f"On the chip {joined(said)}."


def _chip_chart(chip: pl.DataFrame, start: dict[str, str]) -> alt.VConcatChart:
    base = alt.Chart(alt.NamedData("chip")).transform_filter(HERE)
    tasks = known(dict.fromkeys(WORKLOADS, ""), chip["workload"])
    bars = parts_bars(base, "share", "share of the energy on the chip (%)", [n for n in PARTS if n != "DRAM"])
    y = alt.Y("workload:N", title=None, sort=tasks, axis=alt.Axis(ticks=False, domain=False, labelFontSize=13))
    return stacked([bars.encode(y).properties(width=900, height=130)], source("means over models"), params(start, "reading"))


def parts_bars(base: alt.Chart, field: str, title: str, names: list[str], legend: alt.Legend | None = SQUARES) -> alt.Chart:
    """Bars stacked along x by part of the energy, in the house order."""
    order = theme.literal({name: str(n) for n, name in enumerate(PARTS)})
    x = alt.X(f"{field}:Q", title=title, axis=alt.Axis(format=".0%"), stack="zero", scale=alt.Scale(nice=False))
    tips = [alt.Tooltip("part:N"), alt.Tooltip(f"{field}:Q", title=title, format=".1%")]
    turned = base.transform_calculate(turn=f"toNumber(({order})[datum.part])")
    return turned.mark_bar().encode(x, colour(PARTS, "part", names, legend), alt.Order("turn:Q"), tooltip=tips)
