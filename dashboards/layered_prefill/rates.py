"""The Layered Prefill page on service levels at rising rates: both limits together, and each alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.engine import Ask, Drawn, Figure, Part, some
from tokentape.dashboards.layered_prefill import rows
from tokentape.dashboards.layered_prefill.words import (
    ATTAINED_FRAC,
    BAND,
    JITTER,
    STUDY,
    Capacity,
    capacity,
    drawing_order,
    in_order,
    looks,
    of_series,
)
from tokentape.dashboards.units import joined, percent

QUESTION = "Which rate does each scheduler serve within the paper's limits?"
NO_RATES = f"Nothing to draw: no sweep of rates is recorded. {STUDY}"

SERIES, MAX_PANELS = "slo ", 4
HALVES = {"slo_ttft_frac": "first token in time", "slo_tbt_frac": "gaps in time"}


def attainment(ask: Ask) -> Part:
    """Drawn by code: a second axis, and panels that wrap."""
    told = ask.made(_rates)
    if told.is_empty():
        return Part((Figure("attainment", QUESTION, None, {}, (), "", NO_RATES),))
    reading = (
        "Share of requests whose first token comes in time and none of whose gaps is too long, at the limits of the paper's "
        f"Table 5. Dashed: {percent(ATTAINED_FRAC, 0)}. Dotted, on the right axis: requests that decode together, mean over "
        f"iterations. {JITTER} {BAND}"
    )
    chart = _attainment_chart(in_order(told), looks(told["system"]))
    return Part((Figure("attainment", QUESTION, chart, {"": answer(told)}, (), reading, NO_RATES),), data={"rates": _shown(told)})


def split(ask: Ask) -> Drawn:
    told = some(ask.made(_rates))
    panels = in_order(told)
    own = {"panels": panels, "width": 1040 / len(panels) - 20}
    halves = pl.concat(_half(told, *half) for half in HALVES.items())
    return Drawn({"halves": halves}, {"": split_answer(told)}, looks(told["system"]) | own)


def _rates(ask: Ask) -> pl.DataFrame:
    """Points of the first settings."""
    found = of_series(ask.made(rows.points), SERIES)
    return found if found.is_empty() else found.filter(pl.col("setting").is_in(in_order(found)[:MAX_PANELS]))


def _shown(told: pl.DataFrame) -> pl.DataFrame:
    bands = [f"{name}{end}" for name in ("slo_frac", *HALVES) for end in ("", "_low", "_high")]
    kept = ("setting", "system", "rate", "n_seeds", "decode_batch_mean")
    return told.select(*kept, *(name for name in bands if name in told.columns))


def capacities(found: pl.DataFrame, column: str = "slo_frac") -> dict[str, Capacity]:
    """System -> capacity, of the rows of one setting."""
    names = drawing_order(found["system"])
    of_system = {name: found.filter(pl.col("system") == name).drop_nulls(column).sort("rate") for name in names}
    return {name: capacity(of["rate"].to_list(), of[column].to_list()) for name, of in of_system.items() if not of.is_empty()}


def answer(found: pl.DataFrame) -> str:
    """The capacity of every scheduler, setting by setting."""
    said = []
    for (setting,), of in found.sort("setting").group_by(["setting"], maintain_order=True):
        told = [f"{_rate(rate)} by {name}" for name, rate in capacities(of).items()]
        said.append(f"{setting}: {joined(told)}")
    return f"{percent(ATTAINED_FRAC, 0)} of the requests are in time up to (requests per second) {'; '.join(said)}."


def split_answer(found: pl.DataFrame) -> str:
    """Which half gives way first, per setting and scheduler; who keeps both is counted."""
    said, n_kept = [], 0
    for (setting, system), of in found.sort("setting", "system").group_by(["setting", "system"], maintain_order=True):
        first, gaps = (capacities(of, name).get(str(system)) for name in HALVES)
        if first is None or gaps is None:
            continue
        if first.kind == gaps.kind == "at least":
            n_kept += 1
        elif gaps.kind == "at least" or (first.rate < gaps.rate and first.kind != "at least"):
            said.append((f"{setting}", f"{system} (first tokens, {_rate(first)})"))
        else:
            said.append((f"{setting}", f"{system} (gaps, {_rate(gaps)})"))
    by_setting = {setting: [words for of, words in said if of == setting] for setting in dict.fromkeys(of for of, _ in said)}
    sentence = "; ".join(f"{setting}: {joined(words)}" for setting, words in by_setting.items())
    lost = f"What first falls below {percent(ATTAINED_FRAC, 0)}, and where: {sentence}. " if said else ""
    return lost + (f"In {n_kept} {'case' if n_kept == 1 else 'cases'} both limits are kept at every rate." if n_kept else "")


def _rate(found: Capacity) -> str:
    return str(found).removesuffix("/s")


def _half(found: pl.DataFrame, column: str, words: str) -> pl.DataFrame:
    """One limit alone."""
    ends = {"frac": column, "low": f"{column}_low", "high": f"{column}_high"}
    return found.select("setting", "system", "rate", *(pl.col(of).alias(name) for name, of in ends.items()), words=pl.lit(words))


def _attainment_chart(panels: Sequence[str], look: Mapping[str, Any]) -> alt.ConcatChart:
    legend = alt.Legend(title=None, orient="top", columns=6, symbolOpacity=1, symbolStrokeWidth=0)
    colour = alt.Color("system:N", scale=alt.Scale(domain=look["names"], range=look["colours"]), legend=legend)
    shape = alt.Shape("system:N", scale=alt.Scale(domain=look["names"], range=look["shapes"]), legend=legend)
    level = alt.Chart(alt.NamedData("rates")).transform_aggregate(n="count()").transform_calculate(level=f"{ATTAINED_FRAC}")
    rule = level.mark_rule(color=theme.INK, strokeDash=[6, 4], strokeWidth=1.2).encode(alt.Y("level:Q"))
    drawn = []
    for panel in panels:
        base = alt.Chart(alt.NamedData("rates")).transform_filter(f"datum.setting === {theme.quote(panel)}")
        x = alt.X("rate:Q", title="rate (requests per second)", scale=alt.Scale(zero=False, nice=False, padding=10))
        y = alt.Y("slo_frac:Q", title="requests in time (%)", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format=".0%"))
        tips = [
            alt.Tooltip("system:N"),
            alt.Tooltip("rate:Q", title="requests per second"),
            alt.Tooltip("slo_frac:Q", title="in time", format=".1%"),
            alt.Tooltip("slo_frac_low:Q", title="5 % of seeds", format=".1%"),
            alt.Tooltip("slo_frac_high:Q", title="95 % of seeds", format=".1%"),
            alt.Tooltip("decode_batch_mean:Q", title="decode batch", format=".1f"),
            alt.Tooltip("n_seeds:Q", title="seeds"),
        ]
        band = base.mark_area(opacity=0.15).encode(x, alt.Y("slo_frac_low:Q"), alt.Y2("slo_frac_high:Q"), colour)
        line = base.mark_line().encode(x, y, colour)
        marks = base.mark_point().encode(x, y, colour, shape, tooltip=tips)
        left = alt.layer(rule, band, line, marks)
        batch = alt.Y(
            "decode_batch_mean:Q",
            title="decode batch (requests)",
            axis=alt.Axis(orient="right", grid=False),
            scale=alt.Scale(zero=True),
        )
        right = base.mark_line(strokeDash=[2, 3], strokeWidth=1.6).encode(x, batch, colour)
        both = alt.layer(left, right).resolve_scale(y="independent")
        drawn.append(both.properties(width=460, height=220, title=panel))
    return alt.concat(*drawn, columns=2, spacing=26)
