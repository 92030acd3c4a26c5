"""The CXL GPU-NDP page on the clock: what GPU, NDP and link are busy with in one layer-step."""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.answers import percent, significant
from tokentape.dashboards.cxl_ndp.words import MAIN, MONDE, OURS, SETUP, SQUARES, STUDY, SYSTEMS, source
from tokentape.dashboards.panels import colour, known, params, stacked
from tokentape.dashboards.shell import Figure, Part
from tokentape.dashboards.units import joined

QUESTION = "What are GPU, NDP and link busy with in one layer-step?"
NO_LANES = f"Nothing to draw: no layer-step of this model was put on the clock. {STUDY}"
LANES = {"gpu": "GPU", "ndp": "NDP", "pcie": "link"}
KINDS = {
    "attention and KV": theme.QUIET,
    "experts on the GPU": theme.GREEN,
    "experts in the NDP": theme.VERMILLION,
    "activations over the link": theme.SKY,
    "experts over the link": theme.BLUE,
}
PLOT, LETTER = 520, 7.2  # width of a plot, and of a letter of a name in it
_KIND = (
    pl.when(pl.col("lane") == "ndp")
    .then(pl.lit("experts in the NDP"))
    .when(pl.col("label").str.starts_with("activations"))
    .then(pl.lit("activations over the link"))
    .when(pl.col("lane") == "pcie")
    .then(pl.lit("experts over the link"))
    .when(pl.col("label").str.contains("expert"))
    .then(pl.lit("experts on the GPU"))
    .otherwise(pl.lit("attention and KV"))
)


def part(lanes: pl.DataFrame, start: Mapping[str, str]) -> Part:
    """lanes: rows.lanes."""
    found = lanes.filter(pl.col("system").is_in(MAIN))
    if found.is_empty():
        return Part((Figure("lanes", QUESTION, None, {}, (), "", NO_LANES),))
    end = (pl.col("start_ms") + pl.col("ms")).max().over("model", "system")
    found = found.with_columns(
        setup="model", kind=_KIND, end=end, lane=pl.col("lane").replace(LANES), short=pl.col("label").str.replace("expert ", "e")
    )
    said = {str(model): answer(of) for (model,), of in found.group_by(["model"], maintain_order=True)}
    reading = (
        "One layer-step of drawn routing, each system on a clock of its own: its length stands above the lanes. GPU and NDP "
        "work at the same time; the layer ends when the later one does. What is short is drawn and not named; point at it."
    )
    opening = {SETUP.name: start.get(SETUP.name, found["model"][0])}
    lists = [pl.col(name) for name in ("short", "start_ms", "ms")]  # a row per segment would be most of the page
    data = found.group_by("setup", "system", "lane", "kind", "end", maintain_order=True).agg(lists)
    return Part(
        (Figure("lanes", QUESTION, _chart(found, opening), said, (SETUP.name,), reading, NO_LANES),), data={"lanes": data}
    )


def answer(found: pl.DataFrame) -> str:
    """Length of the step in every system, and the busiest lane of each; rows of one model."""
    said, lengths = [], {}
    for system in known(SYSTEMS, found["system"]):
        of = found.filter(pl.col("system") == system)
        lengths[system] = length = float(of["end"][0])
        busy = of.group_by("lane").agg(pl.col("ms").sum()).sort("ms", "lane", descending=[True, False]).row(0)
        said.append(f"{significant(length)} ms on {system} ({busy[0]} busy for {percent(busy[1] / length, 0)})")
    ours = next((name for name in OURS if name in lengths), None)
    over = (
        f" {ours} is through before {MONDE} has done {percent(lengths[ours] / lengths[MONDE], 0)} of its step."
        if (ours and MONDE in lengths)
        else ""
    )
    return f"The step takes {joined(said)}.{over}"


def _chart(found: pl.DataFrame, opening: Mapping[str, str]) -> alt.VConcatChart:
    systems = known(SYSTEMS, found["system"])
    panels = [_panel(system) for system in systems]
    rows = [alt.hconcat(*panels[n : n + 2], spacing=40) for n in range(0, len(panels), 2)]
    return stacked(rows, source(menu=SETUP), params(opening, *opening))


def _panel(system: str) -> alt.LayerChart:
    here = f"datum.setup === setup && datum.system === {theme.quote(system)}"
    base = (
        alt.Chart(alt.NamedData("lanes"))
        .transform_filter(here)
        .transform_flatten(["short", "start_ms", "ms"])
        .transform_calculate(stop="datum.start_ms + datum.ms", middle="datum.start_ms + datum.ms / 2")
    )
    y = alt.Y(
        "lane:N", title=None, sort=list(LANES.values()), scale=alt.Scale(domain=list(LANES.values())),
        axis=alt.Axis(ticks=False, domain=False, labelFontSize=12.5),
    )  # fmt: skip
    x = alt.X("start_ms:Q", title="time in the layer-step (ms)", scale=alt.Scale(nice=False, domainMin=0))
    tips = [
        alt.Tooltip("lane:N"), alt.Tooltip("kind:N"), alt.Tooltip("short:N", title="what"),
        alt.Tooltip("start_ms:Q", title="from (ms)", format=".4~g"),
        alt.Tooltip("ms:Q", title="for (ms)", format=".4~g"),
    ]  # fmt: skip
    bars = base.mark_bar(height=24, stroke="white", strokeWidth=0.3).encode(
        x, y, colour(KINDS, "kind", list(KINDS), SQUARES), alt.X2("stop:Q"), tooltip=tips
    )
    # Empty where it does not fit: a layer without any row would warn of its scale.
    fits = f"{PLOT} * datum.ms / datum.end > {LETTER} * length(datum.short)"
    named = base.transform_calculate(named=f"{fits} ? datum.short : ''")
    words = named.mark_text(fontSize=11, color="white", fontWeight=600).encode(alt.X("middle:Q"), y, text="named:N")
    head = base.transform_aggregate(end="max(end)").transform_calculate(
        said=f"{theme.quote(system + ': ')} + format(datum.end, '.3~g') + ' ms'"
    )
    title = head.mark_text(align="left", fontSize=13, fontWeight=600, color=theme.INK).encode(
        x=alt.value(0), y=alt.value(-12), text="said:N"
    )
    return alt.layer(bars, words, title).properties(width=PLOT, height=110)
