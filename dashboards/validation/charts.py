"""The charts of the validation page. Rows come by name from the page (page.py); the parameter operator follows its menu."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import altair as alt

from tokentape.dashboards import theme

BAND = 0.2  # the lines beside the diagonal
PERCENT = alt.Axis(format=".0%", tickCount=5)
ROOM_WIDE, ROOM_NARROW = 1.42, 1.75  # axis length over the longest mark: room for words in wide and in narrow panels


def errors(setups: Sequence[str], splits: Sequence[str], longest: float) -> alt.FacetChart:
    """Mean error as bars, median and 95th percentile as marks; a panel per operator. longest: the largest 95th percentile."""
    rows = alt.Y("split:N", title=None, sort=list(splits), axis=_NAMES)
    panel = _bars("errors", setups, rows, ROOM_WIDE * longest).properties(width=440, height=_row_step(setups))
    return panel.facet(_header("operator:N"), columns=2, spacing=24)


def regimes(
    start: Mapping[str, str], setups: Sequence[str], splits: Sequence[str], longest: Mapping[str, float]
) -> alt.FacetChart:
    """The same for the chosen operator, by the term of its model that binds; a panel per split. longest: by operator."""
    end = alt.ExprRef(f"{ROOM_NARROW} * (longest[operator] || 1)")
    panel = _bars("regimes", setups, alt.Y("regime:N", title=None, axis=_NAMES), end)
    params = [alt.param(name="operator", value=start["operator"]), alt.param(name="longest", value=dict(longest))]
    return (
        panel.properties(width=300, height=_row_step(setups))
        .add_params(*params)
        .transform_filter("datum.operator === operator")
        .facet(_header("split:N", splits), columns=len(splits), spacing=24)
    )


def scatter(start: Mapping[str, str], splits: Sequence[str], regimes_of: Mapping[str, list[str]]) -> alt.FacetChart:
    """Predicted against measured time, both on log scales; a panel per device and split, coloured by regime."""
    base = alt.Chart(alt.NamedData("points"))
    axis = alt.Axis(labelExpr=theme.SI_SECONDS, values=[10.0**n for n in range(-9, 4)])
    log = alt.Scale(type="log", nice=False, padding=6)
    x = alt.X("measured:Q", title="measured time (unit at each mark)", scale=log, axis=axis)
    y = alt.Y("predicted:Q", title="predicted time (unit at each mark)", scale=log, axis=axis)
    names = sorted({name for names in regimes_of.values() for name in names})
    legend = alt.Legend(title="What binds:", orient="top", symbolSize=120, values=alt.ExprRef("regimes_of[operator] || [' ']"))
    colours = list(theme.colours(names).values())
    tips = [
        alt.Tooltip("shape:N"),
        alt.Tooltip("regime:N", title="what binds"),
        alt.Tooltip("measured:Q", title="measured (s)", format=".3~s"),
        alt.Tooltip("predicted:Q", title="predicted (s)", format=".3~s"),
        alt.Tooltip("error:Q", title="predicted / measured - 1", format="+.1%"),
    ]
    dots = base.transform_calculate(error="datum.predicted / datum.measured - 1").mark_circle(size=22, opacity=0.65)
    points = dots.encode(x, y, alt.Color("regime:N", scale=alt.Scale(domain=names, range=colours), legend=legend), tooltip=tips)
    ends = base.transform_aggregate(low="min(measured)", high="max(measured)", groupby=["setup", "split"])
    lines = [_diagonal(ends, factor) for factor in (1 - BAND, 1.0, 1 + BAND)]
    header = alt.Header(labelFontSize=13, labelLimit=300)
    params = [alt.param(name="operator", value=start["operator"]), alt.param(name="regimes_of", value=dict(regimes_of))]
    return (
        alt.layer(*lines, points)
        .properties(width=310, height=240)
        .add_params(*params)
        .transform_filter("datum.operator === operator")
        .facet(
            row=alt.Row("setup:N", title=None, header=header),
            column=alt.Column("split:N", title=None, sort=list(splits), header=header),
            spacing=18,
        )
    )


def dram(presets: Sequence[str]) -> alt.HConcatChart:
    """Shares of peak bandwidth, predicted against measured, and the signed error of every pattern on every preset."""
    share = alt.Scale(domain=[0, 1.05])
    x = alt.X("measured:Q", title="measured (% of peak bandwidth)", scale=share, axis=PERCENT)
    y = alt.Y("predicted:Q", title="predicted (% of peak bandwidth)", scale=share, axis=PERCENT)
    colours = alt.Scale(domain=list(presets), range=list(theme.colours(presets).values()))
    legend = alt.Legend(title=None, orient="bottom", columns=3)
    covered = alt.Shape(
        "covered:N",
        scale=alt.Scale(domain=[True, False], range=["circle", "cross"]),
        legend=alt.Legend(title=None, orient="bottom", labelExpr="datum.value ? 'covered by the form' : 'not covered'"),
    )
    tips = [
        alt.Tooltip("preset:N"),
        alt.Tooltip("pattern:N"),
        alt.Tooltip("measured:Q", format=".1%"),
        alt.Tooltip("predicted:Q", format=".1%"),
        alt.Tooltip("error:Q", title="predicted / measured - 1", format="+.1%"),
    ]
    base = alt.Chart(alt.NamedData("dram"))
    points = base.mark_point(size=70, opacity=0.85).encode(
        x, y, alt.Color("preset:N", scale=colours, legend=legend), covered, tooltip=tips
    )
    corners = base.transform_aggregate(low="min(0)", high="max(0)").transform_calculate(low="0", high="1.05")
    plane = alt.layer(_diagonal(corners, 1.0), points).properties(width=380, height=380)
    return alt.hconcat(plane, _dram_table(base, presets, tips), spacing=30)


def _dram_table(base: alt.Chart, presets: Sequence[str], tips: list[alt.Tooltip]) -> alt.LayerChart:
    """A cell per preset and pattern: the largest error where there are several anchors; covered ones first."""
    cells = base.transform_calculate(size="abs(datum.error)").transform_window(
        nth="row_number()", groupby=["preset", "pattern"], sort=[alt.SortField("size", "descending")]
    )
    cells = cells.transform_filter("datum.nth === 1").transform_calculate(order="(datum.covered ? 'a' : 'b') + datum.pattern")
    x = alt.X("preset:N", title=None, sort=list(presets), axis=alt.Axis(orient="top", labelAngle=0, ticks=False, domain=False))
    order = alt.EncodingSortField("order", op="max")
    y = alt.Y("pattern:N", title=None, sort=order, axis=alt.Axis(labelLimit=260, ticks=False, domain=False))
    scale = alt.Scale(domain=[-0.1, 0, 0.1], range=[theme.BLUE, "#ffffff", theme.VERMILLION], clamp=True, interpolate="rgb")
    faint = alt.when("datum.covered").then(alt.value(0.75)).otherwise(alt.value(0.25))
    rect = cells.mark_rect(stroke="white").encode(
        x, y, alt.Color("error:Q", scale=scale, legend=None), opacity=faint, tooltip=tips
    )
    text = cells.mark_text(fontSize=11).encode(x, y, text=alt.Text("error:Q", format="+.1%"))
    return alt.layer(rect, text).resolve_scale(color="independent").properties(width=78 * len(presets), height=alt.Step(20))


def _bars(rows: str, setups: Sequence[str], y: alt.Y, end: float | alt.ExprRef) -> alt.LayerChart:
    """Bar: the mean; tick: the median; circle: the 95th percentile. A row per device; `end` leaves room for the words."""
    base = alt.Chart(alt.NamedData(rows))
    offset = alt.YOffset("setup:N", sort=list(setups), scale=alt.Scale(paddingInner=0.25))
    colours = list(theme.colours(setups).values())
    legend = alt.Legend(title=None, orient="top")
    colour = alt.Color("setup:N", scale=alt.Scale(domain=list(setups), range=colours), legend=legend)
    x = alt.X("mape:Q", title="error (% of measured)", axis=PERCENT, scale=alt.Scale(domain=[0, end], nice=False))
    tips = [
        alt.Tooltip("setup:N", title="device"),
        alt.Tooltip("measured_in:N", title="measured in"),
        alt.Tooltip("n:Q", title="rows", format=",d"),
        alt.Tooltip("mape:Q", title="mean", format=".1%"),
        alt.Tooltip("median:Q", format=".1%"),
        alt.Tooltip("p95:Q", title="95th percentile", format=".1%"),
    ]
    whisker = base.mark_rule(strokeWidth=1.5, opacity=0.6).encode(x, y, offset, colour, alt.X2("p95:Q"))
    bar = base.mark_bar(opacity=0.85).encode(x, y, offset, colour, tooltip=tips)
    middle = base.mark_tick(color="white", thickness=2, size=10).encode(alt.X("median:Q"), y, offset)
    tail = base.mark_point(size=38).encode(alt.X("p95:Q"), y, offset, colour, tooltip=tips)
    said = base.transform_calculate(word="'mean ' + format(datum.mape, '.1%') + ', p95 ' + format(datum.p95, '.0%')")
    word = said.mark_text(align="left", dx=7, fontSize=12, color=theme.INK).encode(alt.X("p95:Q"), y, offset, text="word:N")
    return alt.layer(whisker, bar, middle, tail, word)


def _header(field: str, order: Sequence[str] = ()) -> alt.Facet:
    sort = {"sort": list(order)} if order else {}
    return alt.Facet(field, title=None, header=alt.Header(labelFontSize=14), **sort)


def _diagonal(ends: alt.Chart, factor: float) -> alt.Chart:
    """Predicted = factor x measured, between the ends."""
    line = ends.transform_calculate(left=f"datum.low * {factor}", right=f"datum.high * {factor}")
    dash = [1, 0] if factor == 1.0 else [3, 3]
    rule = line.mark_rule(color=theme.QUIET, strokeWidth=1.2, strokeDash=dash)
    return rule.encode(alt.X("low:Q"), alt.Y("left:Q"), alt.X2("high:Q"), alt.Y2("right:Q"))


def _row_step(setups: Sequence[str]) -> alt.Step:
    """Height of a row of bars, one bar per setup."""
    return alt.Step(**{"step": 19 * len(setups) + 12, "for": "position"})


_NAMES = alt.Axis(labelFontSize=13, labelLimit=220, ticks=False, domain=False)
