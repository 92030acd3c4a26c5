"""The SliceMoE page on implied operating points: which miss rates a gain in energy and one in speed imply together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt
import duckdb
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.answers import percent
from tokentape.dashboards.shell import Figure, Part
from tokentape.dashboards.units import joined

NO_POINTS = (
    "Nothing to draw: no implied operating point is recorded. Run: tokentape study slicemoe, then tokentape load and tokentape "
    "site."
)
SIDES = {"baseline": "square", "ours": "circle"}
ORIGINS = {"paper": "diamond", "replay": "circle"}
MORE_THAN_ALL = 1.25  # least end of the axis, so that the impossible is seen to be

# One row per pair of gains; the band is over the assumed shares of accesses that read the LSB slice.
_POINTS = """
with names as (select distinct lower(model) as model, model as name from claims where paper = 'slicemoe' and model <> ''),
pairs as (
    select claim, model_id as model, hardware, origin, energy_gain, speed_gain,
        min(lsb_frac) as lsb_low, max(lsb_frac) as lsb_high,
        min(baseline_miss_frac) as baseline_low, max(baseline_miss_frac) as baseline_high,
        min(ours_miss_frac) as ours_low, max(ours_miss_frac) as ours_high,
        bool_or(least(baseline_miss_frac, ours_miss_frac) >= 0 and greatest(baseline_miss_frac, ours_miss_frac) <= 1) as possible
    from operating_points where study = 'slicemoe' group by all
)
select pairs.* replace (coalesce(name, model) as model) from pairs left join names using (model)
order by origin, claim, model, hardware
"""


def part(connection: duckdb.DuckDBPyConnection) -> Part:
    points = _worded(connection.sql(_POINTS).pl())
    if points.is_empty():
        return Part((_figure(None, {}, ""),))
    machines = joined(points["hardware"].unique().sort().to_list())
    first = points.row(0, named=True)
    shares = f"{percent(first['lsb_low'], 0)} to {percent(first['lsb_high'], 0)}"
    reading = (
        f"Energy and time of a token are straight lines in the miss rate on {machines}, so two gains fix two miss rates. Misses: "
        f"Flash bytes over those of high-bit experts for every access. Bands: {shares} of the accesses read the LSB slice; the "
        "paper does not say how many. Replayed gains are means over seeds. Right: the gains themselves; a published pair that "
        "names no model is read for each."
    )
    return Part((_figure(_chart(points), {"": answer(points)}, reading),), data={"operating": points})


def _figure(chart: alt.TopLevelMixin | None, answers: Mapping[str, str], reading: str) -> Figure:
    return Figure("operating", "Which miss rates would explain the gains?", chart, answers, (), reading, NO_POINTS)


def _worded(points: pl.DataFrame) -> pl.DataFrame:
    """With the words of the axis, and the name and the area of a point in the plane of the gains."""
    gained = pl.format("energy {} ×, speed {} ×", _gain("energy_gain"), _gain("speed_gain"))
    label = pl.format("{}, {}|{}: {}", "model", pl.col("origin"), pl.col("claim").str.replace(" at matched.*", ""), gained)
    models = pl.col("model").rank("dense") - 1
    return points.with_columns(
        label=label, method=pl.col("claim").str.extract(r"^(\S+)"), order=pl.int_range(pl.len()), area=300 / (2 * models + 1)
    )


def _gain(column: str) -> pl.Expr:
    return pl.col(column).map_elements(lambda gain: f"{gain:.2f}", return_dtype=pl.String)


def answer(points: pl.DataFrame) -> str:
    """What every published pair implies on every model, which are impossible, and whether our own are possible."""
    published, replayed = (points.filter(pl.col("origin") == origin) for origin in ("paper", "replay"))
    said = []
    for (claim,), of in published.group_by(["claim"], maintain_order=True):
        method = str(claim).split(" ", 1)[0]
        possible, impossible = of.filter("possible").to_dicts(), of.filter(~pl.col("possible")).to_dicts()
        told = [f"{_range(row, 'baseline')} and {_range(row, 'ours')} on {row['model']}" for row in possible]
        parts = [f"imply misses without and with {method} of {joined(told)}"] if told else []
        parts += [f"are impossible on {row['model']}: {_excess(row)}" for row in impossible]
        said.append(f"The published gains of {claim} {'; they '.join(parts)}.")
    if not replayed.is_empty():
        said.append(f"Of our own pairs, as replayed, {replayed.filter('possible').height} of {replayed.height} can be explained.")
    return " ".join(said)


def _excess(row: Mapping[str, Any]) -> str:
    """Of the side that no miss rate explains."""
    side = "ours" if 0 <= row["baseline_low"] <= 1 else "baseline"
    return f"{_range(row, side)} of all accesses would have to miss"


def _range(row: Mapping[str, Any], side: str) -> str:
    low, high = (f"{100 * miss:.{int(abs(miss) < 0.1)}f}" for miss in (row[f"{side}_low"], row[f"{side}_high"]))
    return f"{low} %" if low == high else f"{low} to {high} %"


def _chart(points: pl.DataFrame) -> alt.HConcatChart:
    """Miss rates of both sides, a row per pair of gains; the pairs in the plane of energy and time."""
    models = points["model"].unique().sort().to_list()
    colours = alt.Scale(domain=models, range=list(theme.colours(models).values()))
    legend = alt.Legend(title=None, orient="top", symbolOpacity=1, symbolSize=110, symbolStrokeWidth=0)
    colour = alt.Color("model:N", scale=colours, legend=legend)
    return alt.hconcat(_misses_chart(points, colour), _gains_chart(colour), spacing=40).resolve_scale(
        color="shared", shape="independent"
    )


def _misses_chart(points: pl.DataFrame, colour: alt.Color) -> alt.LayerChart:
    base = alt.Chart(alt.NamedData("operating"))
    end = max(MORE_THAN_ALL, 1.05 * points.select(pl.max_horizontal("baseline_high", "ours_high").max()).item())
    start = min(0.0, 1.05 * points.select(pl.min_horizontal("baseline_low", "ours_low").min()).item())
    axis = alt.Axis(labelExpr="split(datum.label, '|')", labelLimit=460, labelLineHeight=14, ticks=False, domain=False)
    y = alt.Y("label:N", title=None, sort=alt.EncodingSortField("order", op="min"), axis=axis)
    marks = alt.Axis(format=".0%", values=[0, 0.25, 0.5, 0.75, 1], grid=True)
    scale = alt.Scale(domain=[start, end], nice=False)
    folded = base.transform_fold(list(SIDES), as_=["side", "unused"]).transform_calculate(
        low="datum[datum.side + '_low']", high="datum[datum.side + '_high']", middle="(datum.low + datum.high) / 2"
    )
    x = alt.X("middle:Q", title="Flash miss rate that the two gains imply (%)", scale=scale, axis=marks)
    shape = alt.Shape(
        "side:N",
        scale=alt.Scale(domain=list(SIDES), range=list(SIDES.values())),
        legend=alt.Legend(title=None, orient="top", symbolFillColor=theme.QUIET),
    )
    tips = [
        alt.Tooltip("model:N"),
        alt.Tooltip("claim:N", title="gains of"),
        alt.Tooltip("origin:N"),
        alt.Tooltip("side:N"),
        alt.Tooltip("low:Q", title="misses from", format=".1%"),
        alt.Tooltip("high:Q", title="misses to", format=".1%"),
    ]
    region = base.transform_aggregate(n="count()").transform_calculate(all="1", end=f"{end}", words="'impossible'")
    shade = region.mark_rect(color=theme.VERMILLION, opacity=0.13).encode(alt.X("all:Q"), alt.X2("end:Q"))
    word = region.mark_text(align="left", dx=4, fontSize=12, color=theme.VERMILLION).encode(
        alt.X("all:Q"), y=alt.value(-8), text="words:N"
    )
    span = base.mark_rule(color=theme.GRID, strokeWidth=2).encode(alt.X("ours_low:Q"), y, alt.X2("baseline_low:Q"))
    band = folded.mark_rule(strokeWidth=8, opacity=0.4).encode(alt.X("low:Q"), y, colour, alt.X2("high:Q"))
    points_drawn = folded.mark_point(size=60).encode(x, y, colour, shape, tooltip=tips)
    return alt.layer(shade, word, span, band, points_drawn).properties(width=360, height=alt.Step(38))


def _gains_chart(colour: alt.Color) -> alt.LayerChart:
    """The larger marks lie below: a published pair that names no model stands for each."""
    base = alt.Chart(alt.NamedData("operating"))
    scale = alt.Scale(zero=False, padding=24, nice=False)
    x = alt.X("speed_gain:Q", title="times less time per token (×)", scale=scale, axis=alt.Axis(tickCount=5))
    y = alt.Y("energy_gain:Q", title="times less energy per token (×)", scale=scale, axis=alt.Axis(tickCount=6))
    shape = alt.Shape(
        "origin:N",
        scale=alt.Scale(domain=list(ORIGINS), range=list(ORIGINS.values())),
        legend=alt.Legend(title=None, orient="top", symbolFillColor=theme.QUIET),
    )
    size = alt.Size("area:Q", scale=None)
    tips = [
        alt.Tooltip("model:N"),
        alt.Tooltip("claim:N", title="gains of"),
        alt.Tooltip("origin:N"),
        alt.Tooltip("energy_gain:Q", title="times less energy", format=".2f"),
        alt.Tooltip("speed_gain:Q", title="times less time", format=".2f"),
    ]
    points = base.mark_point().encode(x, y, colour, shape, size, tooltip=tips)
    words = [
        base.transform_filter(f"datum.origin === '{origin}'")
        .mark_text(align="center", dy=dy, fontSize=12, color=theme.INK)
        .encode(x, y, text="method:N")
        for origin, dy in (("paper", -15), ("replay", 17))
    ]
    return alt.layer(points, *words).properties(width=340, height=300)
