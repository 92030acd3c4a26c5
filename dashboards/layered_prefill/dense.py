"""The Layered Prefill page on where it must lose: a dense model, and what relaxed limits change."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import duckdb
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.layered_prefill.explorer import grid
from tokentape.dashboards.layered_prefill.words import STUDY, of_series
from tokentape.dashboards.shell import Figure, Part
from tokentape.dashboards.units import joined, quantity

QUESTION = "Does it help a model without experts, and do relaxed limits close the gap?"
NO_DENSE = f"Nothing to draw: no dense model was served by both schedulers. {STUDY}"
SERIES = "dense"
MEASURES = {"ttft_mean_s": ("mean TTFT", theme.BLUE), "tbt_mean_s": ("mean TBT", theme.ORANGE)}
CLOSED_FRAC = 0.02  # a gap in attainment that is called closed
N_LIMITS = 3  # TBT limits that are drawn: the tightest, the middle and the loosest


def part(connection: duckdb.DuckDBPyConnection, points: pl.DataFrame) -> Part:
    """points: rows.points."""
    held = of_series(points, SERIES)
    ratios = _ratios(held)
    if ratios.is_empty():
        return Part((Figure("dense", QUESTION, None, {}, (), "", NO_DENSE),))
    gaps = _gaps(grid(connection, held))
    data = {"dense": ratios} | ({} if gaps.is_empty() else {"dense_gaps": gaps})
    limits = gaps["panel"].unique(maintain_order=True).to_list() if not gaps.is_empty() else []
    return Part(
        (
            Figure(
                "dense",
                QUESTION,
                _chart(limits),
                {"": answer(ratios, gaps)},
                (),
                f"{ratios['setting'][0]}: every token passes the same weights, so a prompt cut along its layers saves no reads "
                "and waits for its last group. Left: layered over chunked, above 1 it is slower. Right: requests in time under "
                "layered less those under chunked, in points, as the first limit is relaxed; a panel per second limit. "
                "Medians over seeds.",
                NO_DENSE,
            ),
        ),
        data=data,
    )


def _ratios(held: pl.DataFrame) -> pl.DataFrame:
    """setting, rate and layered over chunked in every measure, where both were served."""
    if held.is_empty():
        return held
    ours, theirs = (held.filter(pl.col("scheduler") == name) for name in ("layered", "chunked"))
    both = ours.join(theirs, on=["setting", "rate"], suffix="_chunked").drop_nulls("rate")
    return both.select("setting", "rate", *((pl.col(name) / pl.col(f"{name}_chunked")).alias(name) for name in MEASURES)).sort(
        "rate"
    )


def _gaps(found: pl.DataFrame) -> pl.DataFrame:
    """rate, both limits and what layered attains more, at N_LIMITS of the TBT limits."""
    if found.is_empty():
        return found
    keys = ["setting", "rate", "ttft_limit_s", "tbt_limit_s"]
    kind = pl.col("system").str.split(" ").list.first()
    ours, theirs = (found.filter(kind == name).select(*keys, "attained_frac") for name in ("layered", "chunked"))
    both = ours.join(theirs, on=keys, suffix="_chunked").with_columns(
        gap=pl.col("attained_frac") - pl.col("attained_frac_chunked")
    )
    limits = both["tbt_limit_s"].unique().sort().to_list()
    kept = sorted({limits[round(n * (len(limits) - 1) / (N_LIMITS - 1))] for n in range(N_LIMITS)}) if limits else []
    panel = pl.col("tbt_limit_s").map_elements(lambda limit: f"no gap above {quantity(limit, 's')}", pl.String)
    return both.filter(pl.col("tbt_limit_s").is_in(kept)).with_columns(panel=panel).sort("tbt_limit_s", "rate", "ttft_limit_s")


def answer(ratios: pl.DataFrame, gaps: pl.DataFrame) -> str:
    """At how many rates layered is slower and by how much at the highest; the gap at the tightest and the loosest limits."""
    slower = ratios.filter(pl.all_horizontal(pl.col(name) > 1 for name in MEASURES)).height
    last = ratios.row(-1, named=True)
    by = joined([f"{last[name]:.2f} × the {said}" for name, (said, _) in MEASURES.items()])
    verdict = "No" if slower else "It is not slower"
    said = f"{verdict}: layered is slower in both at {slower} of {ratios.height} rates; at {last['rate']:g}/s it has {by}."
    if gaps.is_empty():
        return said
    by_limit = gaps.filter(pl.col("rate") == last["rate"]).sort("tbt_limit_s", "ttft_limit_s")
    loosest = by_limit.row(-1, named=True)
    worst = gaps.sort("gap").row(0, named=True)
    told = (
        f" Its worst gap is {_points(worst['gap'])} at {worst['rate']:g}/s (first token within "
        f"{quantity(worst['ttft_limit_s'], 's')}, {worst['panel']})"
    )
    closes = "closes" if abs(loosest["gap"]) <= CLOSED_FRAC else "does not close"
    return f"{said}{told}; at the loosest limits it is {_points(loosest['gap'])} at {last['rate']:g}/s: the gap {closes}."


def _points(gap: float) -> str:
    return f"{100 * gap:+.0f} points" if abs(gap) >= 0.005 else "0 points"


def _chart(limits: Sequence[str]) -> alt.HConcatChart | alt.LayerChart:
    base = alt.Chart(alt.NamedData("dense"))
    folded = base.transform_fold(list(MEASURES), as_=["measure", "ratio"])
    words = f"({theme.literal({name: said for name, (said, _) in MEASURES.items()})})[datum.measure]"
    folded = folded.transform_calculate(words=words)
    x = alt.X("rate:Q", title="rate (requests per second)", scale=alt.Scale(zero=False, nice=False, padding=12))
    y = alt.Y("ratio:Q", title="layered / chunked (×)", scale=alt.Scale(zero=False))
    scale = alt.Scale(domain=[said for said, _ in MEASURES.values()], range=[colour for _, colour in MEASURES.values()])
    colour = alt.Color("words:N", scale=scale, legend=alt.Legend(title=None, orient="top"))
    tips = [alt.Tooltip("words:N"), alt.Tooltip("rate:Q"), alt.Tooltip("ratio:Q", format=".3f")]
    even = base.transform_aggregate(n="count()").transform_calculate(one="1").mark_rule(color=theme.INK, strokeDash=[6, 4])
    line, marks = folded.mark_line().encode(x, y, colour), folded.mark_point().encode(x, y, colour, tooltip=tips)
    left = alt.layer(even.encode(alt.Y("one:Q")), line, marks).properties(width=300, height=230)
    if not limits:
        return left
    return alt.hconcat(left, _gaps_chart(limits), spacing=40).resolve_scale(color="independent")


def _gaps_chart(limits: Sequence[str]) -> alt.FacetChart:
    base = alt.Chart(alt.NamedData("dense_gaps"))
    log = alt.Scale(type="log", nice=False, padding=8)
    x = alt.X("ttft_limit_s:Q", title="first token within (s, log scale)", scale=log, axis=alt.Axis(format="~g", tickCount=5))
    y = alt.Y("gap:Q", title="layered less chunked (points)", axis=alt.Axis(labelExpr="format(100 * datum.value, '+~g')"))
    colour = alt.Color(
        "rate:O",
        scale=alt.Scale(scheme="viridis"),
        legend=alt.Legend(title="requests per second", orient="top", titleOrient="left"),
    )
    tips = [
        alt.Tooltip("rate:Q"),
        alt.Tooltip("ttft_limit_s:Q", title="first token within (s)"),
        alt.Tooltip("gap:Q", format="+.1%"),
    ]
    zero = (
        base.transform_aggregate(n="count()", groupby=["panel"])
        .transform_calculate(zero="0")
        .mark_rule(color=theme.INK, strokeDash=[6, 4])
    )
    line, marks = base.mark_line().encode(x, y, colour), base.mark_point(size=35).encode(x, y, colour, tooltip=tips)
    header = alt.Header(labelFontSize=13, labelLimit=220, labelFontWeight=600)
    facet = alt.Facet("panel:N", title=None, sort=list(limits), header=header)
    return (
        alt.layer(zero.encode(alt.Y("zero:Q")), line, marks).properties(width=195, height=230).facet(facet, columns=3, spacing=14)
    )
