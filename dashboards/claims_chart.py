"""Charts of a paper's numbers beside ours, whatever the paper. Rows come by name from the page ("claims": claims.py)."""

from __future__ import annotations

import altair as alt

from tokentape.dashboards import theme

ROLES = {
    "calibrate": ("calibrated: fitted to this number", theme.ORANGE, "diamond"),
    "predict": ("predicted", theme.BLUE, "circle"),
    "report": ("reported only", theme.QUIET, "square"),
}
MARKS = [0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 4]  # of an axis of ratios
PLOT = 330  # of the axis of ratios
WORDS_AT = {"said_paper": 105, "said_replay": 125, "said_error": 360}  # columns of text, from the end of the plot


def ratios(where: str = "true", spread: str | None = "least to most of seeds") -> alt.LayerChart:
    """Ours over the paper's number, one row per claim, with both written out beside it. Bounds have words only.

    where: Vega expression that a claim has to fulfil to be drawn; spread: what low and high are; None: there are none.
    """
    base = alt.Chart(alt.NamedData("claims")).transform_filter(where)
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
    ticks = alt.Axis(format=".0%", values=MARKS)
    x = alt.X("ratio:Q", title="replay / paper (%, log scale; 100 % is the paper's number)", scale=scale, axis=ticks)
    colour, shape = roles()
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
    bands = [band] if spread else []  # a field without a value warns of its endless extent
    points = values.mark_point(size=80).encode(x, y, colour, shape, tooltip=tips)
    titles = {"said_paper": "paper", "said_replay": f"replay ({spread})" if spread else "replay", "said_error": "error"}
    words = []
    for name, at in WORDS_AT.items():
        align = "right" if name == "said_paper" else "left"
        mark = {"align": align, "fontSize": 12.5, "color": theme.INK}
        words.append(base.mark_text(**mark).encode(y, x=alt.value(PLOT + at), text=f"{name}:N"))
        head = base.transform_aggregate(n="count()").transform_calculate(title=theme.quote(titles[name]))
        words.append(head.mark_text(fontWeight=600, **mark).encode(x=alt.value(PLOT + at), y=alt.value(-12), text="title:N"))
    return alt.layer(paper, *bands, points, *words).properties(width=PLOT, height=alt.Step(36))


def roles() -> tuple[alt.Color, alt.Shape]:
    """Colour and shape of a claim's role."""
    labels, colours, shapes = zip(*ROLES.values(), strict=True)
    legend = alt.Legend(title=None, orient="top", symbolSize=110, symbolOpacity=1, offset=28)
    return (
        alt.Color("role_words:N", scale=alt.Scale(domain=list(labels), range=list(colours)), legend=legend),
        alt.Shape("role_words:N", scale=alt.Scale(domain=list(labels), range=list(shapes)), legend=legend),
    )
