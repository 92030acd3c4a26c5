"""The Kelle page on what refresh answers to: the assumed retention curve (Figure 4) and how long data live (Figure 12)."""

from __future__ import annotations

import altair as alt
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.answers import significant
from tokentape.dashboards.kelle.words import HEADER, STUDY, source
from tokentape.dashboards.panels import colour, stacked
from tokentape.dashboards.shell import Figure, Part
from tokentape.dashboards.units import joined

NO_CURVE = f"Nothing to draw: no retention curve was computed. {STUDY}"
NO_LIVES = f"Nothing to draw: no lifetime was computed. {STUDY}"
SCHEDULES = {"baseline": "in program order", "kelle": "Kelle's scheduler"}
TENSORS = {"X": theme.BLUE, "Q": theme.ORANGE, "K": theme.GREEN, "V": theme.VERMILLION}
CURVES = (theme.SKY, theme.ORANGE, theme.VERMILLION, theme.PURPLE)


def part(retention: pl.DataFrame, lifetimes: pl.DataFrame) -> Part:
    """retention, lifetimes: rows' of these names."""
    curves = _named(retention)
    lives = lifetimes.with_columns(said=pl.col("schedule").replace(SCHEDULES))
    data = {"retention": curves, "lifetimes": lives}
    return Part((_curve_figure(curves), _lives_figure(lives)), data={name: of for name, of in data.items() if not of.is_empty()})


def _named(retention: pl.DataFrame) -> pl.DataFrame:
    """With `curve`: its failures at 45 us, in words."""
    words = [
        f"{anchor:.0e} at 45 us, sigma {sigma:.2f}{' (used)' if used else ''}".replace("e-0", "e-")
        for anchor, sigma, used in retention.select("anchor", "sigma", "is_default").rows()
    ]
    return retention.with_columns(pl.Series("curve", words, pl.String)).sort("anchor", "us")


def _curve_figure(curves: pl.DataFrame) -> Figure:
    question = "How many bits are lost between two refreshes?"
    if curves.is_empty():
        return Figure("retention", question, None, {}, (), "", NO_CURVE)
    reading = (
        "The paper's Figure 4, which has no numbers. Assumed: lognormal retention times through some failures at 45 us, as wide "
        "as makes the four groups fail at the average rate that the paper states. Marks: the four refresh intervals, by "
        "importance of the token (HST high, LST low) and of the bit (MSB, LSB)."
    )
    return Figure("retention", question, _curve_chart(curves), {"": curve_answer(curves)}, (), reading, NO_CURVE)


def curve_answer(curves: pl.DataFrame) -> str:
    """Failures of each group on the curve that is used, their mean, and the range over the assumed curves."""
    marked = curves.filter(pl.col("name") != "").sort("us")
    used = marked.filter("is_default")
    if used.is_empty():
        return "No interval is marked on the curve that is used."
    each = [f"{_rate(rate)} ({name}, {us:,.0f} us)" for name, us, rate in used.select("name", "us", "failures").rows()]
    first = marked.filter(pl.col("name") == used["name"][0])["failures"]
    mean = _rate(float(used["failures"].mean()))  # type: ignore[arg-type]
    return (
        f"By the assumed curve {joined(each)} of the bits; {mean} on average. Other curves that agree on this average have "
        f"{_rate(float(first.min()))} to {_rate(float(first.max()))} for {used['name'][0]}."  # type: ignore[arg-type]
    )


def _rate(value: float) -> str:
    """A rate of failure, in per cent or as a power of ten."""
    return f"{significant(100 * value)} %" if value >= 1e-4 else f"{value:.1e}".replace("e-0", "e-")


def _curve_chart(curves: pl.DataFrame) -> alt.VConcatChart:
    base = alt.Chart(alt.NamedData("retention"))
    names = curves["curve"].unique(maintain_order=True).to_list()
    x = alt.X(
        "us:Q",
        title="time between refreshes (us, log scale)",
        scale=alt.Scale(type="log", nice=False),
        axis=alt.Axis(values=[20, 45, 100, 360, 1000, 1440, 5400, 20000], format=",d", labelOverlap=True),
    )
    y = alt.Y(
        "failures:Q",
        title="cells that lose their bit (share, log scale)",
        scale=alt.Scale(type="log"),
        axis=alt.Axis(format="~e", values=[10.0**n for n in range(-8, 0)]),
    )
    hue = colour(dict(zip(names, CURVES, strict=False)), "curve", names, alt.Legend(title=None, orient="top", symbolOpacity=1))
    tips = [
        alt.Tooltip("curve:N"),
        alt.Tooltip("name:N", title="group"),
        alt.Tooltip("us:Q", title="us", format=",.0f"),
        alt.Tooltip("failures:Q", format=".2~e"),
    ]
    line = base.mark_line().encode(x, y, hue, strokeWidth=alt.condition("datum.is_default", alt.value(3.5), alt.value(1.5)))
    marked = base.transform_filter("datum.name !== ''")
    marks = marked.mark_point(size=60).encode(x, y, hue, tooltip=tips)
    words = [
        marked.transform_filter(f"datum.is_default && indexof(datum.name, {theme.quote(kind)}) === 0")
        .mark_text(dx=dx, dy=dy, align="left", fontSize=12, color=theme.INK)
        .encode(x, y, text="name:N")
        for kind, dx, dy in (("HST", 8, 38), ("LST", -4, -26))
    ]
    drawn = alt.layer(line, marks, *words).properties(width=900, height=300)
    return stacked([drawn], source(reading="assumed curves"))


def _lives_figure(lives: pl.DataFrame) -> Figure:
    question = "How long do transient data live, and what does the scheduler shorten?"
    if lives.is_empty():
        return Figure("lifetimes", question, None, {}, (), "", NO_LIVES)
    row = lives.row(0, named=True)
    reading = (
        f"The paper's Figure 12, at a budget of {row['budget']:,} tokens and batch {row['batch']}: inputs (X), queries, keys and "
        "values of one layer from when they are made to when they were last read. Kelle's scheduler lets K and V flow into the "
        "KV memory, so they do not live on; a bar without length is drawn as a tick. Times of the array are neglected, as the "
        "paper does. Refresh of transient data is in proportion to their lives."
    )
    return Figure("lifetimes", question, _lives_chart(lives), {"": lives_answer(lives)}, (), reading, NO_LIVES)


def lives_answer(lives: pl.DataFrame) -> str:
    """The sum of lives under both schedules, model by model."""
    said = []
    for (model,), of in lives.group_by(["model"], maintain_order=True):
        total = {name: float(of.filter(pl.col("schedule") == name)["ms"].sum()) for name in SCHEDULES}
        if total["kelle"]:
            ratio = total["baseline"] / total["kelle"]
            said.append(f"{total['baseline']:.2f} ms in all becomes {total['kelle']:.2f} ms, {ratio:.2f} × less, on {model}")
    return f"{'; '.join(said)}." if said else "Both schedules were not computed."


def _lives_chart(lives: pl.DataFrame) -> alt.VConcatChart:
    base = alt.Chart(alt.NamedData("lifetimes"))
    y = alt.Y("tensor:N", title=None, sort=list(TENSORS), axis=alt.Axis(ticks=False, domain=False, labelFontSize=13))
    x = alt.X("start:Q", title="time in a layer (ms)")
    tips = [alt.Tooltip("tensor:N"), alt.Tooltip("start:Q", format=".3f"), alt.Tooltip("ms:Q", title="lives (ms)", format=".3f")]
    hue = colour(TENSORS, "tensor", list(TENSORS), None)
    bars = base.mark_bar(height=16).encode(x, y, hue, alt.X2("until:Q"), tooltip=tips)
    ticks = base.transform_filter("datum.ms === 0").mark_tick(thickness=3, size=18).encode(x, y, hue, tooltip=tips)
    drawn = alt.layer(bars, ticks).properties(width=460, height=105)
    return stacked(
        [
            drawn.facet(
                column=alt.Column("model:N", title=None, header=HEADER),
                row=alt.Row("said:N", title=None, sort=list(SCHEDULES.values()), header=alt.Header(
                    labelFontSize=13, labelFontWeight=600, labelAngle=0, labelAlign="left", labelLimit=140
                )),
                spacing=22,
            )
        ],
        source(reading="equations of the paper's section 6"),
    )  # fmt: skip
