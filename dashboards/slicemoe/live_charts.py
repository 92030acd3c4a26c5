"""The SliceMoE page's charts of what was measured inside a model. Rows come by name from the page (slicemoe.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import altair as alt

from tokentape.dashboards import theme
from tokentape.dashboards.panels import columns
from tokentape.dashboards.slicemoe.charts import HEADER, WIDE, by_budget, looks

SCHEMES = {
    "base_asym": "asymmetric,|at the low width",
    "amat": "AMAT",
    "amat_mid": "AMAT,|mid-point",
    "base_sym": "symmetric,|at the low width",
    "trunc_sym": "symmetric,|truncated",
    "trunc_asym_floor": "low bits zeroed,|high grid",
    "trunc_asym": "zero point|not shifted",
}
LEVELS = [0, 2, 5, 10, 15, 20, 30, 50, 75, 100, 150, 200, 300, 500, 1000, 2000, 5000, 1e4, 1e5]
DECADES = [m * 10**n for n in range(13) for m in (1, 2, 5)]
ROOM_WIDE = 430  # of a plot with columns of words beside it


def live(start: Mapping[str, str], names: Sequence[str], panels: Sequence[str]) -> alt.FacetChart:
    """Quality inside a model against the misses it really had, a line per configuration along its budgets; a panel per cache."""
    base = alt.Chart(alt.NamedData("live"))
    scale = alt.Scale(type="symlog", constant=0.01, nice=False, padding=12)
    marks = [0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1]
    x = alt.X(
        "miss:Q", title="measured miss rate (% of high-bit expert bytes)", scale=scale, axis=alt.Axis(format=".1~%", values=marks)
    )
    y = _level("perplexity, or exact match (%)")
    colour, shape, dash = looks("configuration", names, columns=6)
    tips = [
        alt.Tooltip("configuration:N"),
        alt.Tooltip("budget_words:N", title="budget"),
        alt.Tooltip("miss:Q", title="misses", format=".2%"),
        *_level_tips(),
    ]
    band = base.mark_area(opacity=0.12).encode(x, alt.Y("least:Q"), alt.Y2("most:Q"), colour)
    ends = base.mark_rule(opacity=0.5, strokeWidth=1.2).encode(x, alt.Y("least:Q"), alt.Y2("most:Q"), colour)
    across = base.mark_rule(opacity=0.5, strokeWidth=1.2).encode(alt.X("miss_low:Q"), y, colour, alt.X2("miss_high:Q"))
    line = base.mark_line(strokeWidth=2).encode(x, y, colour, dash)
    points = base.mark_point().encode(x, y, colour, shape, tooltip=tips)
    # Rings that most points leave invisible: a layer without any row would have no extent.
    ring = alt.condition("datum.budget === 'none'", alt.value(1), alt.value(0))
    rings = base.mark_point(shape="circle", size=230, filled=False, strokeWidth=1.4).encode(x, y, colour, opacity=ring)
    return (
        alt.layer(band, ends, across, line, points, rings)
        .properties(width=WIDE / 2, height=280)
        .add_params(_setup(start))
        .transform_filter("datum.setup === setup && datum.is_drawn")
        .facet(alt.Facet("panel:N", title=None, sort=list(panels), header=HEADER), columns=2, spacing=24)
    )


def sparing(start: Mapping[str, str]) -> alt.LayerChart:
    """How much worse DBSC is than the high-bit cache, on the same text and without a budget; a row per pair and cache."""
    base = alt.Chart(alt.NamedData("sparing")).add_params(_setup(start)).transform_filter("datum.setup === setup")
    y = alt.Y("panel:N", title=None, sort=alt.EncodingSortField("order", op="min"), axis=alt.Axis(labelLimit=260, ticks=False))
    axis = alt.Axis(format="+.1~%", tickCount=8)
    x = alt.X("worse:Q", title="perplexity above the high-bit cache's (%), or exact match below it", axis=axis)
    tips = [
        alt.Tooltip("panel:N"),
        alt.Tooltip("worse:Q", format="+.2%"),
        alt.Tooltip("worse_low:Q", title="least of seeds", format="+.2%"),
        alt.Tooltip("worse_high:Q", title="most of seeds", format="+.2%"),
        alt.Tooltip("said_misses:N", title="misses: high-bit, DBSC"),
        alt.Tooltip("seeds:Q"),
    ]
    zero = base.transform_aggregate(n="count()").transform_calculate(zero="0").mark_rule(color=theme.INK).encode(alt.X("zero:Q"))
    band = base.mark_rule(strokeWidth=8, opacity=0.35, strokeCap="round", color=theme.VERMILLION).encode(
        alt.X("worse_low:Q"), y, alt.X2("worse_high:Q")
    )
    points = base.mark_point(color=theme.VERMILLION, size=80, shape="triangle-up").encode(x, y, tooltip=tips)
    words = columns(
        base, y, {"said_misses": ("misses: high-bit and DBSC", 20), "said_verdict": ("quality of DBSC", 240)}, ROOM_WIDE
    )
    return alt.layer(zero, band, points, *words).properties(width=ROOM_WIDE, height=alt.Step(30))


def budgets(start: Mapping[str, str], names: Sequence[str], panels: Sequence[str]) -> alt.VConcatChart:
    """Quality and misses inside a model against the misses that a hard budget allows; a panel per pair and cache."""
    held = "datum.setup === setup && datum.budget === 'hard' && isValid(datum.target)"
    y = _level("perplexity, or exact match (%)")
    return by_budget("live", panels, names, y, ("least", "most"), _level_tips(), held, [_setup(start)])


def schemes(pairs: Sequence[str]) -> alt.LayerChart:
    """Perplexity with every expert at the low width, by scheme; a mark per pair, the weights as loaded dashed."""
    base = alt.Chart(alt.NamedData("schemes")).transform_filter("datum.pair !== ''")
    axis = alt.Axis(labelExpr="split(datum.label, '|')", labelAngle=0, labelFontSize=12, ticks=False, domain=False, grid=False)
    x = alt.X("scheme:N", title=None, sort=alt.EncodingSortField("order", op="min"), axis=axis)
    beside = alt.XOffset("pair:N", sort=list(pairs), scale=alt.Scale(paddingOuter=0.3))
    y = alt.Y(
        "value:Q",
        title="perplexity (less is better; log scale)",
        scale=alt.Scale(type="log", nice=False, padding=22),
        axis=alt.Axis(values=DECADES, format="~s"),
    )
    shapes = ("circle", "square", "diamond", "triangle-up", *theme.SPARE_SHAPES)
    look = {pair: (theme.colours(pairs)[pair], shapes[n % len(shapes)]) for n, pair in enumerate(pairs)}
    legend = alt.Legend(title=None, orient="top", symbolOpacity=1, labelExpr="datum.label")
    colour = alt.Color("pair:N", scale=alt.Scale(domain=list(look), range=[c for c, _ in look.values()]), legend=legend)
    shape = alt.Shape("pair:N", scale=alt.Scale(domain=list(look), range=[s for _, s in look.values()]), legend=legend)
    tips = [
        alt.Tooltip("scheme:N"), alt.Tooltip("pair:N"), alt.Tooltip("value:Q", title="perplexity", format=".4~g"),
        alt.Tooltip("low:Q", title="least of seeds", format=".4~g"), alt.Tooltip("high:Q", title="most of seeds", format=".4~g"),
        alt.Tooltip("over_base:Q", title="over the asymmetric base", format=".3f"), alt.Tooltip("seeds:Q"),
    ]  # fmt: skip
    loaded = alt.Chart(alt.NamedData("schemes")).transform_filter("datum.pair === ''")
    rule = loaded.mark_rule(color=theme.INK, strokeDash=[6, 4]).encode(alt.Y("value:Q"))
    word = loaded.mark_text(align="left", dy=9, dx=4, fontSize=12, color=theme.INK).encode(
        alt.Y("value:Q"), x=alt.value(0), text="words:N"
    )
    band = base.mark_rule(strokeWidth=6, opacity=0.35).encode(x, alt.Y("low:Q"), alt.Y2("high:Q"), colour, beside)
    points = base.mark_point(size=75).encode(x, y, colour, shape, beside, tooltip=tips)
    words = base.mark_text(dy=-13, fontSize=11.5, color=theme.INK).encode(x, y, beside, text="words:N")
    return alt.layer(rule, word, band, points, words).properties(width=WIDE + 40, height=330)


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


def _setup(start: Mapping[str, str]) -> alt.Parameter:
    return alt.param(name="setup", value=start["setup"])


def _level(title: str) -> alt.Y:
    """Perplexity, or exact match in per cent (live_words.py), on one axis."""
    scale = alt.Scale(type="symlog", constant=1, zero=False, nice=False, padding=12)
    return alt.Y("level:Q", title=title, scale=scale, axis=alt.Axis(values=LEVELS))


def _level_tips() -> list[alt.Tooltip]:
    return [
        alt.Tooltip("level:Q", title="quality", format=".4~g"),
        alt.Tooltip("least:Q", title="least of seeds", format=".4~g"),
        alt.Tooltip("most:Q", title="most of seeds", format=".4~g"),
        alt.Tooltip("seeds:Q"),
    ]
