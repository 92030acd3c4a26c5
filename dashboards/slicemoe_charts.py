"""The charts of the SliceMoE page. Rows come by name from the page (slicemoe.py); the parameters follow its menus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import altair as alt

from dashboards import theme
from dashboards.slicemoe_rows import MATCHED_FRAC

# Configurations in drawing order. AMAT differs from low-bit in its weights alone: where only costs count, the lines coincide.
LOOKS = {
    "high-bit": (theme.BLUE, "circle", [1, 0]),
    "low-bit": (theme.ORANGE, "square", [1, 0]),
    "AMAT": (theme.GREEN, "diamond", [4, 4]),
    "DBSC": (theme.VERMILLION, "triangle-up", [1, 0]),
    "DBSC + PCW": (theme.PURPLE, "triangle-down", [1, 0]),
}
ROLES = {
    "calibrate": ("calibrated: fitted to this number", theme.ORANGE, "diamond"),
    "predict": ("predicted", theme.BLUE, "circle"),
    "report": ("reported only", theme.QUIET, "square"),
}
WARMUPS = {"empty": "empty", "last_layer": "last layer", "random": "random", "pcw": "PCW"}
WIDE, PLOT = 1000, 330  # of two panels side by side; of the claims' axis
WORDS_AT = {"said_paper": 105, "said_replay": 125, "said_error": 360}  # columns of text, from the end of the plot
PERCENT = alt.Axis(format=".0%")


def claims() -> alt.LayerChart:
    """Ours over the paper's number, one row per claim, with both written out beside it. Bounds have words only."""
    base = alt.Chart(alt.NamedData("claims"))
    order = alt.EncodingSortField("order", op="min")
    axis = alt.Axis(
        labelExpr="split(datum.label, '|')",
        labelLimit=460,
        labelLineHeight=14,
        ticks=False,
        domain=False,
        grid=True,
        labelPadding=10,
    )
    y = alt.Y("claim:N", title=None, sort=order, axis=axis)
    scale = alt.Scale(type="log", nice=False, padding=20)
    ticks = alt.Axis(format=".0%", values=[0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 4])
    x = alt.X("ratio:Q", title="replay / paper (%, log scale; 100 % is the paper's number)", scale=scale, axis=ticks)
    labels, colours, shapes = zip(*ROLES.values(), strict=True)
    legend = alt.Legend(title=None, orient="top", symbolSize=110, symbolOpacity=1, offset=28)
    colour = alt.Color("role_words:N", scale=alt.Scale(domain=list(labels), range=list(colours)), legend=legend)
    shape = alt.Shape("role_words:N", scale=alt.Scale(domain=list(labels), range=list(shapes)), legend=legend)
    tips = [
        alt.Tooltip("claim:N"),
        alt.Tooltip("role_words:N", title="role"),
        alt.Tooltip("location:N", title="in the paper"),
        alt.Tooltip("how:N", title="ours"),
    ]
    values = base.transform_filter("isValid(datum.ratio)")
    paper = (
        values.transform_calculate(one="1").mark_rule(color=theme.INK, strokeDash=[3, 3]).encode(x=alt.X("one:Q", scale=scale))
    )
    band = values.mark_rule(strokeWidth=7, opacity=0.4, strokeCap="round").encode(
        alt.X("ratio_low:Q"), y, colour, alt.X2("ratio_high:Q")
    )
    points = values.mark_point(size=80).encode(x, y, colour, shape, tooltip=tips)
    titles = {"said_paper": "paper", "said_replay": "replay (least to most of seeds)", "said_error": "error"}
    words = []
    for name, at in WORDS_AT.items():
        align = "right" if name == "said_paper" else "left"
        mark = {"align": align, "fontSize": 12.5, "color": theme.INK}
        words.append(base.mark_text(**mark).encode(y, x=alt.value(PLOT + at), text=f"{name}:N"))
        head = base.transform_aggregate(n="count()").transform_calculate(title=theme.quote(titles[name]))
        words.append(head.mark_text(fontWeight=600, **mark).encode(x=alt.value(PLOT + at), y=alt.value(-12), text="title:N"))
    return alt.layer(paper, band, points, *words).properties(width=PLOT, height=alt.Step(36))


def gains(start: Mapping[str, str], gigabytes: Sequence[float]) -> alt.FacetChart:
    """Gain over the high-bit cache against the cache's size; a row per model, a column for energy and one for speed."""
    names = ["DBSC", "DBSC + PCW", "low-bit"]
    base = alt.Chart(alt.NamedData("gains"))
    scale = alt.Scale(zero=False, padding=16, nice=False)
    x = alt.X("gb:Q", title="cache (GB)", scale=scale, axis=alt.Axis(values=list(gigabytes), grid=False))
    y = alt.Y("gain:Q", title="gain over high-bit (×)", scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=6))
    tips = [
        alt.Tooltip("series:N"),
        alt.Tooltip("cache:N"),
        alt.Tooltip("gain:Q", title="gain (×)", format=".2f"),
        alt.Tooltip("low:Q", title="least of seeds", format=".2f"),
        alt.Tooltip("high:Q", title="most of seeds", format=".2f"),
        alt.Tooltip("seeds:Q"),
        alt.Tooltip("miss:Q", title="misses", format=".1%"),
        alt.Tooltip("miss_high_bit:Q", title="misses, high-bit", format=".1%"),
    ]
    colour, shape, _ = _looks("series", names, columns=3)
    band = base.mark_area(opacity=0.2).encode(x, alt.Y("low:Q", title=None), alt.Y2("high:Q"), colour)
    line = base.mark_line().encode(x, y, colour)
    points = base.mark_point().encode(x, y, colour, shape, tooltip=tips)
    # A word that most rows leave empty: a layer without any row would have no extent.
    stars = base.transform_calculate(star="datum.matched ? '' : '*'").mark_text(dy=-11, fontSize=17, color=theme.INK)
    ends = base.transform_filter("isValid(datum.paper)").transform_aggregate(paper="max(paper)", groupby=["model", "metric"])
    rule = ends.mark_rule(color=theme.INK, strokeDash=[6, 4], strokeWidth=1.4).encode(alt.Y("paper:Q"))
    said = ends.transform_calculate(words="'- - - paper, at most: ' + format(datum.paper, '.2f') + ' ×'")
    word = said.mark_text(align="left", fontSize=12, color=theme.INK).encode(x=alt.value(8), y=alt.value(4), text="words:N")
    header = alt.Header(labelFontSize=14, labelLimit=300, labelFontWeight=600)
    return (
        alt.layer(band, line, points, stars.encode(x, y, text="star:N"), rule, word)
        .properties(width=WIDE / 2, height=210)
        .add_params(alt.param(name="tau", value=start["tau"]))
        .transform_filter("datum.tau === '' || datum.tau === tau")
        .facet(
            row=alt.Row("name:N", title=None, header=header),
            column=alt.Column("metric_name:N", title=None, header=header),
            spacing=18,
        )
    )


def sweeps(start: Mapping[str, str], names: Sequence[str]) -> alt.HConcatChart:
    """Kept gate mass against misses and against joules per token, a line per configuration along rising strength."""
    params = [alt.param(name=name, value=start[name]) for name in ("model", "cache", "tau")]
    base = alt.Chart(alt.NamedData("sweeps")).transform_filter(
        "datum.model === model && datum.cache === cache && (datum.tau === '' || datum.tau === tau)"
    )
    panels = [
        _panel(base, names, "miss", alt.X("miss:Q", title="high-bit-normalised miss rate (%)", axis=PERCENT)),
        _panel(base, names, "energy", alt.X("energy:Q", title="energy per token (J)", axis=alt.Axis(tickCount=6))),
    ]
    return alt.hconcat(*panels, spacing=24).add_params(*params)


def _panel(base: alt.Chart, names: Sequence[str], quantity: str, x: alt.X) -> alt.LayerChart:
    y = alt.Y("kept:Q", title="kept gate mass (%, proxy)", scale=alt.Scale(zero=False, nice=False, padding=8), axis=PERCENT)
    colour, shape, dash = _looks("configuration", names, columns=4)
    tips = [
        alt.Tooltip("configuration:N"),
        alt.Tooltip("strength:Q", title="strength of the router"),
        alt.Tooltip("kept:Q", title="kept gate mass", format=".1%"),
        alt.Tooltip("miss:Q", title="misses", format=".1%"),
        alt.Tooltip("energy:Q", title="energy per token (J)", format=".3f"),
        alt.Tooltip("seeds:Q"),
    ]
    level = (
        base.transform_aggregate(n="count()")
        .transform_calculate(level=f"{MATCHED_FRAC}")
        .mark_rule(color=theme.INK, strokeDash=[6, 4])
        .encode(alt.Y("level:Q"))
    )
    across = base.mark_rule(strokeWidth=5, opacity=0.3).encode(
        alt.X(f"{quantity}_low:Q"), y, colour, alt.X2(f"{quantity}_high:Q")
    )
    along = base.mark_area(opacity=0.25).encode(x, alt.Y("kept_low:Q"), alt.Y2("kept_high:Q"), colour)
    line = base.mark_line(strokeWidth=2).encode(x, y, colour, dash, order=alt.Order("strength:Q"))
    points = base.mark_point(size=45).encode(x, y, colour, shape, tooltip=tips)
    return alt.layer(level, along, across, line, points).properties(width=WIDE / 2, height=300)


def warmups(start: Mapping[str, str]) -> alt.FacetChart:
    """Energy and latency over those of an empty cache; a panel for each, in the first ten steps and over the decode."""
    base = alt.Chart(alt.NamedData("warmups"))
    names = list(WARMUPS.values())
    y = alt.Y("warmup:N", title=None, sort=names, axis=alt.Axis(labelFontSize=13, ticks=False, domain=False))
    x = alt.X("ratio:Q", title="of an empty cache's (%)", axis=PERCENT, scale=alt.Scale(domain=[0, 1.25], nice=False))
    colours = [theme.QUIET, theme.SKY, theme.ORANGE, theme.PURPLE]
    colour = alt.Color("warmup:N", scale=alt.Scale(domain=names, range=colours), legend=None)
    tips = [alt.Tooltip("warmup:N", title="cache at first"), alt.Tooltip("ratio:Q", format=".1%")]
    tips += [
        alt.Tooltip(f"{end}:Q", title=f"{word} of seeds", format=".1%") for end, word in (("low", "least"), ("high", "most"))
    ]
    bars = base.mark_bar(opacity=0.8, height=20).encode(x, y, colour, tooltip=tips)
    band = base.mark_rule(strokeWidth=5, color=theme.INK, opacity=0.5).encode(alt.X("low:Q"), y, alt.X2("high:Q"))
    words = base.mark_text(align="left", dx=6, fontSize=12, color=theme.INK).encode(
        alt.X("high:Q"), y, text=alt.Text("ratio:Q", format=".1%")
    )
    paper = base.transform_filter("isValid(datum.paper)").transform_aggregate(paper="max(paper)", groupby=["panel"])
    rule = paper.mark_rule(color=theme.INK, strokeDash=[6, 4], strokeWidth=1.4).encode(alt.X("paper:Q"))
    panels = [f"{quantity}, {window}" for window in ("first ten steps", "whole decode") for quantity in ("energy", "latency")]
    facet = alt.Facet("panel:N", title=None, sort=panels, header=alt.Header(labelFontSize=14))
    return (
        alt.layer(bars, band, words, rule)
        .properties(width=232, height=alt.Step(32))
        .add_params(alt.param(name="model", value=start["model"]))
        .transform_filter("datum.model === model")
        .facet(facet, columns=4, spacing=20)
    )


def live(start: Mapping[str, str], names: Sequence[str]) -> alt.LayerChart:
    """Quality inside a model against the misses it really had, a line per configuration along its budgets."""
    base = (
        alt.Chart(alt.NamedData("live"))
        .add_params(alt.param(name="setup", value=start["setup"]))
        .transform_filter("datum.setup === setup")
        .transform_calculate(level="datum.is_accuracy ? 100 * datum.value : datum.value")
        .transform_calculate(least="datum.is_accuracy ? 100 * datum.low : datum.low")
        .transform_calculate(most="datum.is_accuracy ? 100 * datum.high : datum.high")
    )
    scale = alt.Scale(type="symlog", constant=0.01, nice=False, padding=12)
    marks = [0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 1]
    x = alt.X(
        "miss:Q", title="measured miss rate (% of high-bit expert bytes)", scale=scale, axis=alt.Axis(format=".1~%", values=marks)
    )
    levels = alt.Axis(values=[0, 2, 5, 10, 15, 20, 30, 50, 75, 100, 150, 200, 300, 500, 1000, 1e4, 1e5])
    log = alt.Scale(type="symlog", constant=1, zero=False, nice=False, padding=12)
    y = alt.Y("level:Q", title="perplexity (less is better), or exact match (%); log scale", scale=log, axis=levels)
    colour, shape, dash = _looks("configuration", names, columns=6)
    tips = [
        alt.Tooltip("configuration:N"),
        alt.Tooltip("budget_words:N", title="budget"),
        alt.Tooltip("miss:Q", title="misses", format=".2%"),
        alt.Tooltip("level:Q", title="quality", format=".4~g"),
        alt.Tooltip("least:Q", title="least of seeds", format=".4~g"),
        alt.Tooltip("most:Q", title="most of seeds", format=".4~g"),
        alt.Tooltip("seeds:Q"),
    ]
    band = base.mark_area(opacity=0.12).encode(x, alt.Y("least:Q"), alt.Y2("most:Q"), colour)
    ends = base.mark_rule(opacity=0.5, strokeWidth=1.2).encode(x, alt.Y("least:Q"), alt.Y2("most:Q"), colour)
    across = base.mark_rule(opacity=0.5, strokeWidth=1.2).encode(alt.X("miss_low:Q"), y, colour, alt.X2("miss_high:Q"))
    line = base.mark_line(strokeWidth=2).encode(x, y, colour, dash)
    points = base.mark_point().encode(x, y, colour, shape, tooltip=tips)
    free = base.transform_calculate(free="datum.budget === 'none' ? 'no budget' : ''")
    said = free.mark_text(dy=-12, fontSize=11, color=theme.QUIET).encode(x, y, text="free:N")
    return alt.layer(band, ends, across, line, points, said).properties(width=WIDE + 60, height=340)


def fidelity(longest: float) -> alt.FacetChart:
    """Open over closed loop, less one: a panel per setup. longest: the largest |error| of a seed."""
    base = alt.Chart(alt.NamedData("fidelity"))
    y = alt.Y("quantity:N", title=None, sort=alt.EncodingSortField("order", op="min"), axis=alt.Axis(labelLimit=220, ticks=False))
    scale = alt.Scale(domain=[-longest, 3.2 * longest], nice=False)
    axis = alt.Axis(format="+.1~%", values=_even(longest))
    x = alt.X("error:Q", title="open loop / closed loop - 1 (%)", scale=scale, axis=axis)
    tips = [
        alt.Tooltip("quantity:N"),
        alt.Tooltip("words:N", title="open, closed loop"),
        alt.Tooltip("error:Q", format="+.2%"),
        alt.Tooltip("low:Q", title="least of seeds", format="+.2%"),
        alt.Tooltip("high:Q", title="most of seeds", format="+.2%"),
        alt.Tooltip("seeds:Q"),
    ]
    zero = base.transform_aggregate(n="count()").transform_calculate(zero="0").mark_rule(color=theme.INK).encode(alt.X("zero:Q"))
    band = base.mark_rule(strokeWidth=8, opacity=0.35, strokeCap="round", color=theme.BLUE).encode(
        alt.X("low:Q"), y, alt.X2("high:Q")
    )
    points = base.mark_point(color=theme.BLUE, size=70).encode(x, y, tooltip=tips)
    words = base.mark_text(align="right", fontSize=12, color=theme.INK).encode(y, x=alt.value(WIDE / 2 - 40), text="words:N")
    return (
        alt.layer(zero, band, points, words)
        .properties(width=WIDE / 2 - 40, height=alt.Step(26))
        .facet(alt.Facet("setup:N", title=None, header=alt.Header(labelFontSize=13, labelLimit=520)), columns=2, spacing=24)
    )


def _even(longest: float) -> list[float]:
    """Marks of an axis that ends at the data although the scale goes on: room for words."""
    return [share * longest for share in (-1, -0.5, 0, 0.5, 1)]


def _looks(field: str, names: Sequence[str], columns: int) -> tuple[alt.Color, alt.Shape, alt.StrokeDash]:
    """Colour, shape and dash of configurations; a name without a look takes a spare one."""
    spare = {name: (colour, "wedge", [1, 0]) for name, colour in theme.colours(n for n in names if n not in LOOKS).items()}
    colours, shapes, dashes = zip(*(LOOKS.get(name) or spare[name] for name in names), strict=True)
    legend = alt.Legend(title=None, orient="top", columns=columns, symbolOpacity=1, symbolStrokeWidth=0)
    scales = [alt.Scale(domain=list(names), range=list(found)) for found in (colours, shapes, dashes)]
    return (
        alt.Color(f"{field}:N", scale=scales[0], legend=legend),
        alt.Shape(f"{field}:N", scale=scales[1], legend=legend),
        alt.StrokeDash(f"{field}:N", scale=scales[2], legend=legend),
    )
