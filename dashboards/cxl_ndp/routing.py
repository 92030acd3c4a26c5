"""The CXL GPU-NDP page on routing: what two prompts use as they are decoded, and how well a prompt tells what to hold."""

from __future__ import annotations

import math
from collections.abc import Mapping

import altair as alt
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.answers import percent
from tokentape.dashboards.cxl_ndp.words import PLACEMENTS, ROUTING, STUDY, setups, source
from tokentape.dashboards.panels import known, params, stacked
from tokentape.dashboards.shell import Control, Figure, Part
from tokentape.dashboards.units import joined

USE, LIKENESS = "Do two prompts use the same experts?", "Does the prompt tell which experts to hold on the GPU?"
NO_USE = f"Nothing to draw: no decode steps of this routing are recorded. {STUDY}"
NO_LIKENESS = f"Nothing to draw: no hit share of this routing was counted. {STUDY}"
LAYER = Control("layer", "Layer")
ALONE, TOGETHER = "a set for each sequence", "one for a batch"
BATCHES = {ALONE: theme.VERMILLION, TOGETHER: theme.BLUE}
LINES = {
    "own": ("its own prompt", theme.VERMILLION),
    "shuffled": ("another prompt", theme.BLUE),
    "popular": ("all other prompts together", theme.PURPLE),
    "flat": ("nothing in common but even use", theme.QUIET),
}
GUIDED, STATIC = "prefill_guided", "static_global"
BESIDE = (STATIC, "shuffled_prompts", "ema", "oracle")  # what the sentence names; the chart has all


def use_part(use: pl.DataFrame, size: int, start: Mapping[str, str]) -> Part:
    """Two prompts of every setup, in at most `size` layers. use: rows.use."""
    if use.is_empty():
        return Part((Figure("use", USE, None, {}, (), "", NO_USE),))
    which = (pl.col("request").rank("dense").over("setup") - 1).cast(pl.Int64)
    step = (pl.col("layer").rank("dense").over("setup") - 1) // (pl.col("layer").n_unique().over("setup") / size).ceil()
    found = use.with_columns(which=which, turn=step).filter(pl.col("which") < 2)
    found = found.filter(pl.col("layer") == pl.col("layer").min().over("setup", "turn")).with_columns(
        layer=pl.col("layer").cast(pl.String)
    )
    said = {f"{setup}|{layer}": use_answer(of) for (setup, layer), of in found.group_by(["setup", "layer"], maintain_order=True)}
    keys = found.select("setup", "layer").unique(maintain_order=True).to_dicts()
    opening = {ROUTING.name: start.get(ROUTING.name, setups(found)[0]), LAYER.name: keys[0]["layer"]}
    reading = (
        "Each column is a bin of decode steps of one request, each row an expert of the layer; dark: it takes more of the "
        "bin's selections. White: never selected. An expert that stays dark for one prompt and light for the other is what "
        "placing after the prompt can gain."
    )
    return Part(
        (Figure("use", USE, _use_chart(opening), said, (ROUTING.name, LAYER.name), reading, NO_USE),),
        controls=(LAYER,),
        choices=tuple(keys),
        data={"use": found.select("setup", "layer", "which", "request", "bin_steps", "steps", "experts", "used")},
    )


def use_answer(found: pl.DataFrame) -> str:
    """Cosine of the use of two requests, and of the two halves of one; rows of one layer."""
    told = [_mean(row["experts"], row["used"]) for row in found.to_dicts()]
    halves = [
        _cosine(_mean(row["experts"][:middle], row["used"][:middle]), _mean(row["experts"][middle:], row["used"][middle:]))
        for row in found.to_dicts()
        for middle in [len(row["experts"]) // 2]
        if middle
    ]
    if len(told) < 2 or not halves:
        return "Only one request, or one bin of it, is recorded."
    across, within = _cosine(told[0], told[1]), sum(halves) / len(halves)
    verdict = "Not quite" if across < within else "Yes"
    return (
        f"{verdict}: in layer {found['layer'][0]} the two requests' use has a cosine of {across:.2f}; the first and the second "
        f"half of one request have {within:.2f}."
    )


def _mean(experts: list[list[int]], used: list[list[float]]) -> dict[int, float]:
    """Expert -> its share, over bins."""
    total: dict[int, float] = {}
    for of, shares in zip(experts, used, strict=True):
        for expert, share in zip(of, shares, strict=True):
            total[expert] = total.get(expert, 0.0) + share / len(experts)
    return total


def _cosine(a: Mapping[int, float], b: Mapping[int, float]) -> float:
    lengths = math.hypot(*a.values()) * math.hypot(*b.values())
    return sum(value * b.get(expert, 0.0) for expert, value in a.items()) / lengths


def _use_chart(opening: Mapping[str, str]) -> alt.VConcatChart:
    both = alt.hconcat(*(_use_panel(n) for n in (0, 1)), spacing=30).resolve_scale(x="shared", y="shared", color="shared")
    return stacked([both], source(menu=ROUTING), params(opening, *opening))


def _use_panel(which: int) -> alt.LayerChart:
    here = f"datum.setup === routing && datum.layer === layer && datum.which === {which}"
    base = alt.Chart(alt.NamedData("use")).transform_filter(here)
    cells = (
        base.transform_flatten(["steps", "experts", "used"])
        .transform_flatten(["experts", "used"])
        .transform_calculate(
            end="datum.steps + datum.bin_steps", last="datum.end - 1", low="datum.experts - 0.5", high="datum.experts + 0.5"
        )
    )
    x = alt.X("steps:Q", title="decode step (number)", scale=alt.Scale(nice=False), axis=alt.Axis(grid=False, tickMinStep=1))
    y = alt.Y(
        "low:Q", title=None if which else "expert (id)", axis=alt.Axis(format="d", tickMinStep=1, grid=False, tickCount=16),
        scale=alt.Scale(nice=False, zero=False),
    )  # fmt: skip
    colour = alt.Color(
        "used:Q", scale=alt.Scale(range=theme.HEAT, interpolate="rgb", domainMin=0),
        legend=alt.Legend(title="share of selections (%)", format=".0%", orient="right", gradientLength=200),
    )  # fmt: skip
    tips = [
        alt.Tooltip("experts:O", title="expert"), alt.Tooltip("steps:Q", title="from step"),
        alt.Tooltip("last:Q", title="to step"),
        alt.Tooltip("used:Q", title="share of selections", format=".1%"),
    ]  # fmt: skip
    rects = cells.mark_rect().encode(x, y, colour, alt.X2("end:Q"), alt.Y2("high:Q"), tooltip=tips)
    head = base.transform_calculate(said="'request ' + datum.request")
    title = head.mark_text(align="left", fontSize=13, fontWeight=600, color=theme.INK).encode(
        x=alt.value(0), y=alt.value(-12), text="said:N"
    )
    return alt.layer(rects, title).properties(width=490, height=270)


def likeness_part(similarity: pl.DataFrame, hits: pl.DataFrame, start: Mapping[str, str]) -> Part:
    """similarity, hits: of rows.py; hits with one number of hot experts per setup."""
    if similarity.is_empty() or hits.is_empty():
        return Part((Figure("likeness", LIKENESS, None, {}, (), "", NO_LIKENESS),))
    named = hits.with_columns(
        said=pl.col("placement").replace(PLACEMENTS),
        group=pl.when(pl.col("batch") == 1).then(pl.lit(ALONE)).otherwise(pl.lit(TOGETHER)),
    )
    whole = named.filter(pl.col("layer").is_null())
    alike = similarity.filter(pl.col("layer").is_not_null())
    mean = similarity.filter(pl.col("layer").is_null())
    said = {
        setup: likeness_answer(mean.filter(pl.col("setup") == setup), alike.filter(pl.col("setup") == setup), of)
        for (setup,), of in whole.group_by(["setup"], maintain_order=True)
    }
    opening = {ROUTING.name: start.get(ROUTING.name, setups(whole)[0])}
    reading = (
        "Left: cosine of the selections per expert in a prompt and in the decode that follows it, mean over requests. Counts "
        "are positive, so experts used evenly are alike already (grey); what other prompts reach too is popularity and needs "
        "no prompt. Right: share of decode's expert activations that find their expert on the GPU; in a batch all requests "
        "share the places. The oracle knows decode and is a bound for sets that stay. The reactive one moves experts at every "
        "step, and pays for its hits over the link. By another prompt: the control, sets of other requests' prompts. Rules: "
        "least to most of the seeds."
    )
    data = {
        "alike": alike.select("setup", "layer", *LINES),
        "hits": whole.select("setup", "placement", "said", "is_bound", "hot", "batch", "group", "hit", "low", "high"),
    }
    return Part(
        (Figure("likeness", LIKENESS, _likeness_chart(whole, opening), said, (ROUTING.name,), reading, NO_LIKENESS),),
        data=data,
    )


def likeness_answer(mean: pl.DataFrame, layers: pl.DataFrame, whole: pl.DataFrame) -> str:
    """Cosines and how much of them is popularity; hit shares of the placements per batch. Rows of one setup."""
    said = []
    for row in mean.to_dicts():
        span = f" ({layers['own'].min():.2f} to {layers['own'].max():.2f} over layers)" if layers.height > 1 else ""
        shared = row["static_frac"]
        static = f"; of what lies above even use {percent(shared, 0)} is popularity" if shared is not None else ""
        said.append(
            f"A prompt and its decode use a layer's experts alike to a cosine of {row['own']:.2f}{span}; with another request's "
            f"prompt it is {row['shuffled']:.2f}{static}."
        )
    for (batch,), of in whole.sort("batch").group_by(["batch"], maintain_order=True):
        held = dict(of.select("placement", "hit").iter_rows())
        told = [f"{PLACEMENTS[name]} {percent(held[name])}" for name in BESIDE if name in held]
        ahead = f", {100 * (held[GUIDED] - held[STATIC]):+.1f} points over static" if {GUIDED, STATIC} <= held.keys() else ""
        first = f"{PLACEMENTS[GUIDED]} hits {percent(held[GUIDED])}{ahead}; " if GUIDED in held else ""
        said.append(f"At batch {batch} with {of['hot'][0]} experts held, {first}{joined(told)}.")
    return " ".join(said)


def _likeness_chart(whole: pl.DataFrame, opening: Mapping[str, str]) -> alt.VConcatChart:
    return stacked(
        [alt.hconcat(_cosines(), _placements(whole), spacing=50).resolve_scale(color="independent")],
        source(menu=ROUTING), params(opening, *opening),
    )  # fmt: skip


def _cosines() -> alt.LayerChart:
    base = alt.Chart(alt.NamedData("alike")).transform_filter("datum.setup === routing")
    base = base.transform_fold(list(LINES), as_=["line", "cosine"]).transform_calculate(
        said=f"({theme.literal({name: words for name, (words, _) in LINES.items()})})[datum.line]"
    )
    x = alt.X(
        "layer:Q", title="layer", axis=alt.Axis(tickMinStep=1, format="d", grid=False), scale=alt.Scale(nice=False, padding=10)
    )
    y = alt.Y("cosine:Q", title="cosine of prompt and decode (1: same)", scale=alt.Scale(domainMax=1, zero=False, padding=12))
    words = [said for said, _ in LINES.values()]
    legend = alt.Legend(title="decode against", orient="top", columns=2, symbolOpacity=1)
    colour = alt.Color("said:N", scale=alt.Scale(domain=words, range=[c for _, c in LINES.values()]), legend=legend)
    dash = alt.StrokeDash("said:N", scale=alt.Scale(domain=words, range=[[1, 0]] * 3 + [[3, 3]]), legend=None)
    tips = [alt.Tooltip("layer:Q"), alt.Tooltip("said:N", title="decode against"), alt.Tooltip("cosine:Q", format=".3f")]
    line, marks = base.mark_line().encode(x, y, colour, dash), base.mark_point(size=28).encode(x, y, colour, tooltip=tips)
    return alt.layer(line, marks).properties(width=500, height=300)


def _placements(whole: pl.DataFrame) -> alt.LayerChart:
    base = alt.Chart(alt.NamedData("hits")).transform_filter("datum.setup === routing")
    names = [PLACEMENTS.get(name, name) for name in known(PLACEMENTS, whole["placement"])]
    groups = [name for name in BATCHES if name in set(whole["group"])]
    y = alt.Y("said:N", title=None, sort=names, axis=alt.Axis(ticks=False, domain=False, labelFontSize=12.5, labelLimit=170))
    within = alt.YOffset("group:N", sort=groups, scale=alt.Scale(domain=groups))
    x = alt.X(
        "hit:Q",
        title="activations whose expert is on the GPU (%)",
        scale=alt.Scale(domain=[0, 1]),
        axis=alt.Axis(format=".0%", tickCount=6),
    )
    colour = alt.Color(
        "group:N", scale=alt.Scale(domain=groups, range=[BATCHES[name] for name in groups]),
        legend=alt.Legend(title=None, orient="top", symbolType="square", symbolStrokeWidth=0),
    )  # fmt: skip
    tips = [
        alt.Tooltip("said:N", title="placement"), alt.Tooltip("batch:Q"), alt.Tooltip("hit:Q", format=".1%"),
        alt.Tooltip("low:Q", title="least of seeds", format=".1%"), alt.Tooltip("high:Q", title="most of seeds", format=".1%"),
        alt.Tooltip("hot:Q", title="experts held"),
    ]  # fmt: skip
    strength = alt.condition("datum.is_bound", alt.value(0.35), alt.value(0.9))
    bars = base.mark_bar().encode(x, y, within, colour, opacity=strength, tooltip=tips)
    band = base.mark_rule(color=theme.INK, strokeWidth=1.1).encode(alt.X("low:Q"), y, within, alt.X2("high:Q"))
    ends = base.transform_calculate(end="isValid(datum.high) ? max(datum.hit, datum.high) : datum.hit")
    said = ends.mark_text(align="left", dx=5, fontSize=11.5, color=theme.INK).encode(
        alt.X("end:Q"), y, within, text=alt.Text("hit:Q", format=".1%")
    )
    return alt.layer(bars, band, said).properties(width=380, height=300)
