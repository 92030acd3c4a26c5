"""The SliceMoE page's charts of replays, and the looks it shares. Rows come by name from the page (slicemoe.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import altair as alt

from tokentape.dashboards import theme
from tokentape.dashboards.slicemoe.rows import MATCHED_FRAC

# Configurations in drawing order. AMAT differs from low-bit in its weights alone: where only costs count, the lines coincide.
LOOKS = {
    "high-bit": (theme.BLUE, "circle", [1, 0]),
    "Cache-Prior": (theme.SKY, "cross", [1, 0]),
    "Cumsum": (theme.SKY, "cross", [1, 0]),
    "low-bit": (theme.ORANGE, "square", [1, 0]),
    "low-bit and AMAT": (theme.ORANGE, "square", [1, 0]),
    "AMAT": (theme.GREEN, "diamond", [4, 4]),
    "DBSC": (theme.VERMILLION, "triangle-up", [1, 0]),
    "DBSC + PCW": (theme.PURPLE, "triangle-down", [1, 0]),
}
WARMUPS = {"empty": "empty", "last_layer": "last layer", "random": "random", "pcw": "PCW"}
WIDE = 1000  # of two panels side by side
PERCENT = alt.Axis(format=".0%")
HEADER = alt.Header(labelFontSize=14, labelLimit=480, labelFontWeight=600)
BUDGETS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1]  # marks of an axis of allowed misses


def flash(panels: Sequence[str], names: Sequence[str]) -> alt.VConcatChart:
    """Flash's share of a decoded token's energy against the misses that a budget allows; a panel per model."""
    y = alt.Y("flash:Q", title="Flash's share of the energy (%)", axis=PERCENT, scale=alt.Scale(zero=False))
    tips = [
        alt.Tooltip("flash:Q", title="Flash's share", format=".1%"),
        alt.Tooltip("low:Q", title="least of seeds", format=".1%"),
        alt.Tooltip("high:Q", title="most of seeds", format=".1%"),
        alt.Tooltip("seeds:Q"),
    ]
    return by_budget("flash", panels, names, y, ("low", "high"), tips)


def by_budget(
    data: str,
    panels: Sequence[str],
    names: Sequence[str],
    y: alt.Y,
    ends: tuple[str, str],
    tips: Sequence[alt.Tooltip],
    where: str = "true",
    params: Sequence[alt.Parameter] = (),
) -> alt.VConcatChart:
    """A quantity, and below it the misses really had, against the misses that a budget allows. ends: columns of y's band."""
    base = alt.Chart(alt.NamedData(data))
    marks = alt.Axis(format=".0~%", values=BUDGETS)
    x = alt.X("target:Q", title="allowed miss rate (%, log scale)", scale=_log(16), axis=marks)
    misses = alt.Y("miss:Q", title="misses (%, log)", scale=_log(10), axis=marks)
    colour, shape, dash = looks("configuration", names, columns=6)
    said = [alt.Tooltip("configuration:N"), alt.Tooltip("target:Q", title="allowed", format=".0%")]
    said += [alt.Tooltip("miss:Q", title="misses", format=".2%"), *tips]

    def row(y: alt.Y, low: str, high: str, tall: int, *below: alt.Chart) -> alt.FacetChart:
        band = base.mark_area(opacity=0.15).encode(x, alt.Y(f"{low}:Q"), alt.Y2(f"{high}:Q"), colour)
        line = base.mark_line(strokeWidth=2).encode(x, y, colour, dash)
        points = base.mark_point().encode(x, y, colour, shape, tooltip=said)
        drawn = alt.layer(*below, band, line, points).properties(width=WIDE / 2, height=tall).transform_filter(where)
        return drawn.facet(alt.Facet("panel:N", title=None, sort=list(panels), header=HEADER), columns=2, spacing=24)

    allowed = base.mark_line(color=theme.INK, strokeDash=[3, 3], strokeWidth=1.2).encode(x, alt.Y("target:Q"))
    rows = row(y, *ends, 230), row(misses, "miss_low", "miss_high", 130, allowed)
    # Not add_params: of facets one below the other it asks for names that they do not have (altair 6.3).
    return alt.vconcat(*rows, spacing=14, params=[made.param for made in params])


def _log(padding: int) -> alt.Scale:
    """Of shares from a thousandth on; nothing missed, or nothing allowed, still has a place."""
    return alt.Scale(type="symlog", constant=0.001, zero=False, nice=False, padding=padding)


def gains(start: Mapping[str, str], names: Sequence[str], gigabytes: Sequence[float]) -> alt.FacetChart:
    """Gain over the high-bit cache against the cache's size; a row per model, a column for energy and one for speed."""
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
    colour, shape, _ = looks("series", names, columns=6)
    band = base.mark_area(opacity=0.2).encode(x, alt.Y("low:Q", title=None), alt.Y2("high:Q"), colour)
    line = base.mark_line().encode(x, y, colour)
    points = base.mark_point().encode(x, y, colour, shape, tooltip=tips)
    # A word that most rows leave empty: a layer without any row would have no extent.
    stars = base.transform_calculate(star="datum.matched && datum.matched_high_bit ? '' : '*'").mark_text(
        dy=-11, fontSize=17, color=theme.INK
    )
    one = base.transform_aggregate(n="count()", groupby=["model", "metric"]).transform_calculate(one="1")
    level = one.mark_rule(color=theme.BLUE, strokeWidth=1.6).encode(alt.Y("one:Q"))
    named = one.mark_text(dy=-8, fontSize=12, color=theme.BLUE).encode(
        alt.Y("one:Q"), x=alt.value(0.66 * WIDE / 2), text=alt.value("Cache-Prior, high-bit: 1 ×")
    )
    ends = base.transform_filter("isValid(datum.paper)").transform_aggregate(paper="max(paper)", groupby=["model", "metric"])
    rule = ends.mark_rule(color=theme.INK, strokeDash=[6, 4], strokeWidth=1.4).encode(alt.Y("paper:Q"))
    said = ends.transform_calculate(words="'- - - paper, at most: ' + format(datum.paper, '.2f') + ' ×'")
    word = said.mark_text(align="left", fontSize=12, color=theme.INK).encode(x=alt.value(8), y=alt.value(4), text="words:N")
    return (
        alt.layer(band, level, line, points, stars.encode(x, y, text="star:N"), named, rule, word)
        .properties(width=WIDE / 2, height=240)
        .add_params(*(alt.param(name=name, value=start[name]) for name in ("pair", "tau")))
        .transform_filter("datum.pair === pair && (datum.tau === '' || datum.tau === tau)")
        .facet(
            row=alt.Row("name:N", title=None, header=HEADER),
            column=alt.Column("metric_name:N", title=None, header=HEADER),
            spacing=18,
        )
    )


def sweeps(start: Mapping[str, str], names: Sequence[str]) -> alt.HConcatChart:
    """Kept gate mass against misses and against joules per token, a line per configuration along rising strength."""
    params = [alt.param(name=name, value=start[name]) for name in ("model", "cache", "pair", "tau")]
    base = alt.Chart(alt.NamedData("sweeps")).transform_filter(
        "datum.model === model && datum.cache === cache && datum.pair === pair && (datum.tau === '' || datum.tau === tau)"
    )
    panels = [
        _panel(base, names, "miss", alt.X("miss:Q", title="high-bit-normalised miss rate (%)", axis=PERCENT)),
        _panel(
            base,
            names,
            "energy",
            alt.X("energy:Q", title="energy per token (J)", axis=alt.Axis(tickCount=6, labelExpr=theme.SI_JOULES)),
        ),
    ]
    return alt.hconcat(*panels, spacing=24).add_params(*params)


def _panel(base: alt.Chart, names: Sequence[str], quantity: str, x: alt.X) -> alt.LayerChart:
    scale = alt.Scale(zero=False, nice=False, padding=8)
    y = alt.Y("kept:Q", title="kept gate mass (%, proxy)", scale=scale, axis=alt.Axis(format=".1~%"))
    colour, shape, dash = looks("configuration", names, columns=6)
    tips = [
        alt.Tooltip("configuration:N"),
        alt.Tooltip("strength:Q", title="strength of the router"),
        alt.Tooltip("kept:Q", title="kept gate mass", format=".1%"),
        alt.Tooltip("miss:Q", title="misses", format=".1%"),
        alt.Tooltip("energy:Q", title="energy per token (J)", format=".3~s"),
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


def warmups(start: Mapping[str, str], panels: Sequence[str]) -> alt.FacetChart:
    """Energy and latency over those of an empty cache, in the window that the slider shows; two panels for each model."""
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
    paper = base.transform_aggregate(paper="max(paper)", groupby=["panel"])  # none in most windows: then nothing is drawn
    rule = paper.mark_rule(color=theme.INK, strokeDash=[6, 4], strokeWidth=1.4).encode(
        alt.X("paper:Q"), opacity=alt.condition("isValid(datum.paper)", alt.value(1), alt.value(0))
    )
    return (
        alt.layer(bars, band, words, rule)
        .properties(width=232, height=alt.Step(32))
        .add_params(alt.param(name="steps", value=start["steps"]))
        .transform_filter("datum.steps === steps")
        .facet(alt.Facet("panel:N", title=None, sort=list(panels), header=alt.Header(labelFontSize=13)), columns=4, spacing=20)
    )


def drawing_order(found: Iterable[str]) -> list[str]:
    """Names in the order of their looks, unknown ones behind."""
    there = set(found)
    return [name for name in LOOKS if name in there] + sorted(there - LOOKS.keys())


def looks(field: str, names: Sequence[str], columns: int) -> tuple[alt.Color, alt.Shape, alt.StrokeDash]:
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
