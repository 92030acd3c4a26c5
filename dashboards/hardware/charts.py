"""The clock of a step and the energy of a bit; the roofline is in roofline.py. Rows come by name from the page (hardware.py)."""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt

from tokentape.dashboards import theme


def clock(
    start: Mapping[str, str], colour_of: Mapping[str, str], by_step: Mapping[str, list[str]], ends: Mapping[str, list[float]]
) -> alt.Chart:
    """A lane per resource. by_step: step -> its operations, for the legend; ends: step -> seconds that each window shows."""
    params = [alt.param(name=name, value=start[name]) for name in ("step", "window")]
    params += [alt.param(name="operations_of", value=dict(by_step)), alt.param(name="ends", value=dict(ends))]
    end = alt.ExprRef("(ends[step] || [1, 1])[window === 'all' ? 0 : 1]")
    axis = alt.Axis(labelExpr=theme.SI_SECONDS, tickCount=8)
    legend = alt.Legend(
        title=None, orient="top", columns=7, values=alt.ExprRef("operations_of[step] || [' ']"), symbolType="square"
    )
    lanes = alt.EncodingSortField("lane", op="min")
    drawn: alt.Chart = (
        alt.Chart(alt.NamedData("bars"))
        .add_params(*params)
        .transform_filter("datum.step === step && (window === 'all' || datum.early)")
        .mark_bar(size=32, clip=True)
        .encode(
            alt.X(
                "start:Q",
                title="time since the step began (unit at each mark)",
                axis=axis,
                scale=alt.Scale(domain=[0, end], nice=False),
            ),
            alt.X2("end:Q"),
            alt.Y("busy:N", title=None, sort=lanes, axis=alt.Axis(labelLimit=260, labelFontSize=13, ticks=False, domain=False)),
            alt.Color("operation:N", scale=alt.Scale(domain=list(colour_of), range=list(colour_of.values())), legend=legend),
            tooltip=[
                alt.Tooltip("operation:N"),
                alt.Tooltip("layer:N"),
                alt.Tooltip("busy:N", title="resource"),
                alt.Tooltip("start:Q", title="starts at (s)", format=".4~s"),
                alt.Tooltip("time:N", title="takes"),
            ],
        )
        .properties(width=960, height=alt.Step(46))
    )
    return drawn


def energy(start: Mapping[str, str], n_places: int) -> alt.LayerChart | alt.FacetChart:
    """pJ/bit of every tier and link of every machine, the chosen machine's in colour."""
    order = alt.EncodingSortField("order", op="min")
    base = (
        alt.Chart(alt.NamedData("energy"))
        .add_params(alt.param(name="hardware", value=start["hardware"]))
        .transform_calculate(mine="indexof(datum.machines, hardware) >= 0")
    )
    axis = alt.Axis(values=[0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300], format="~g")
    x = alt.X("value:Q", title="energy (pJ per bit, log scale)", scale=alt.Scale(type="log", nice=False, padding=8), axis=axis)
    y = alt.Y("place:N", title=None, sort=order, axis=alt.Axis(labelLimit=330, ticks=False, domain=False, grid=True))
    mine = alt.when("datum.mine")
    colour = mine.then(alt.value(theme.BLUE)).otherwise(alt.value("#aab2bc"))
    ink = mine.then(alt.value(theme.INK)).otherwise(alt.value(theme.QUIET))
    sides = ["read", "write", "read and write", "transfer"]
    shape = alt.Shape(
        "side:N",
        scale=alt.Scale(domain=sides, range=["circle", "triangle-up", "circle", "diamond"]),
        legend=alt.Legend(title=None, orient="top", values=["read", "write", "transfer"]),
    )
    tips = [
        alt.Tooltip("place:N", title="where"),
        alt.Tooltip("everywhere:N", title="machines"),
        alt.Tooltip("word:N", title="pJ per bit"),
    ]
    band = base.mark_rule(strokeWidth=7, opacity=0.4, strokeCap="round").encode(alt.X("low:Q"), alt.X2("high:Q"), y, color=colour)
    value = base.mark_point(opacity=1, size=80).encode(x, y, shape, color=colour, tooltip=tips)
    words = (
        base.transform_filter("datum.is_first")
        .mark_text(align="left", fontSize=12)
        .encode(y, x=alt.value(570), text="word:N", color=ink)
    )
    return alt.layer(band, value, words).properties(width=560, height=22 * n_places)
