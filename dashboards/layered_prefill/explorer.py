"""The Layered Prefill page's SLO explorer: two limits on sliders, who attains them at which rate, and the capacity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import altair as alt
import duckdb
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.answers import percent
from tokentape.dashboards.layered_prefill.rows import attainment
from tokentape.dashboards.layered_prefill.words import (
    ATTAINED_FRAC,
    JITTER,
    LEGEND,
    STUDY,
    Capacity,
    capacity,
    drawing_order,
    in_order,
    level,
    looks,
    settings,
    systems,
)
from tokentape.dashboards.shell import Control, Figure, Part
from tokentape.dashboards.units import joined, quantity

NO_GRID = f"Nothing to draw: attainment is not recorded over a grid of limits. {STUDY}"
QUESTION = "Which rate does each scheduler serve within limits of your own?"
OPENS_AT_S = {"ttft": {"sharegpt": 5.0, "arxiv": 10.0}, "tbt": {"sharegpt": 0.125, "arxiv": 0.125}}  # of Table 5, for Qwen
LEFT, RIGHT, HEIGHT = 560, 400, 270


def part(connection: duckdb.DuckDBPyConnection, points: pl.DataFrame, size: int) -> Part:
    """The explorer over the first `size` settings. points: rows.points."""
    found = grid(connection, points)
    if found.is_empty():
        return Part((Figure("explorer", QUESTION, None, {}, (), "", NO_GRID),))
    found = found.filter(pl.col("setting").is_in(in_order(found)[:size]))
    choices = tuple(_choices(found))
    told = capacities(found)
    start = {name: next(row[name] for row in choices if name in row) for name in ("served", "ttft", "tbt")}
    limits = {name: _labels(found[f"{name}_limit_s"]) for name in ("ttft", "tbt")}
    return Part(
        (
            Figure(
                "explorer",
                QUESTION,
                _chart(start, drawing_order(found["system"])),
                dict(_answers(told)),
                ("served", "ttft", "tbt"),
                "The sliders above set the limits: the longest wait for the first token and the longest gap between two tokens "
                f"that a request may have. Dashed: {percent(ATTAINED_FRAC, 0)} of the requests in time; the capacity is the "
                "rate at which a scheduler falls below it, linear between two simulated rates. Right: the capacity against the "
                "first limit, at the chosen second one; faded marks are bounds, because every rate simulated keeps the level "
                f"(at least) or none does (below). Medians over seeds. {JITTER}",
                NO_GRID,
            ),
        ),
        controls=(
            Control("served", "Model and workload"),
            Control("ttft", "First token within", limits["ttft"], "slider"),
            Control("tbt", "No gap above", limits["tbt"], "slider"),
        ),
        choices=choices,
        data={"grid": _packed(found), "capacities": _flat(told)},
    )


def grid(connection: duckdb.DuckDBPyConnection, points: pl.DataFrame) -> pl.DataFrame:
    """setting, system, rate, both limits, attained_frac; settings of limits ascending."""
    if points.is_empty():
        return pl.DataFrame()
    rows = attainment(connection, points["point_id"].to_list())
    held = points.filter(pl.col("point_id").is_in(rows["point_id"].unique().implode()) & pl.col("rate").is_not_null())
    named = systems(held.with_columns(settings(held)), "setting", "rate")
    found = rows.join(named.select("point_id", "setting", "system", "rate", "model", "workload", "is_dense"), on="point_id")
    return found.drop("point_id").sort("setting", "system", "rate", "ttft_limit_s", "tbt_limit_s")


def capacities(found: pl.DataFrame) -> dict[tuple[str, str, str], dict[str, Capacity]]:
    """(setting, TTFT limit, TBT limit) as the sliders name them -> system -> capacity."""
    told: dict[tuple[str, str, str], dict[str, Capacity]] = {}
    keys = ["setting", "ttft_limit_s", "tbt_limit_s", "system"]
    for (setting, ttft, tbt, system), of in found.sort("rate").group_by(keys, maintain_order=True):
        place = str(setting), f"{ttft:g}", f"{tbt:g}"
        told.setdefault(place, {})[str(system)] = capacity(of["rate"].to_list(), of["attained_frac"].to_list())
    return told


def answer(ttft: str, tbt: str, found: Mapping[str, Capacity]) -> str:
    """The capacity of every scheduler at these limits, and what layered adds to those that fall below the level."""
    told = [f"{str(found[name]).removesuffix('/s')} ({name})" for name in drawing_order(found)]
    said = (
        f"With the first token within {quantity(float(ttft), 's')} and no gap above {quantity(float(tbt), 's')}, "
        f"{percent(ATTAINED_FRAC, 0)} of the requests are in time up to, in requests per second: {joined(told)}."
    )
    ours = max((of for name, of in found.items() if name.startswith("layered")), key=lambda of: of.rate, default=None)
    if ours is None or ours.kind == "below":
        return said
    more = []
    for name in drawing_order(found):
        of, change = found[name], ours.rate / found[name].rate - 1
        if not name.startswith("layered") and not of.kind:
            least = "at least " if ours.kind else ""
            more.append(f"{least}{percent(abs(change), 0)} {'more' if change >= 0 else 'less'} than {name}")
    return f"{said} Layered serves {joined(more)}." if more else said


def _answers(told: Mapping[tuple[str, str, str], Mapping[str, Capacity]]) -> Iterator[tuple[str, str]]:
    for place, found in told.items():
        yield "|".join(place), answer(*place[1:], found)


def _choices(found: pl.DataFrame) -> Iterator[dict[str, str]]:
    """Each setting with its limits; the paper's come first, so that the sliders open there."""
    for setting in in_order(found):
        of = found.filter(pl.col("setting") == setting)
        for name in ("ttft", "tbt"):
            opens = OPENS_AT_S[name].get(of["workload"][0], 0.0)
            limits = of[f"{name}_limit_s"].unique().sort().to_list()
            for limit in sorted(limits, key=lambda limit: (abs(limit - opens) > 1e-9, limit)):
                yield {"served": setting, name: f"{limit:g}"}


def _labels(limits: pl.Series) -> dict[str, str]:
    return {f"{limit:g}": quantity(limit, "s") for limit in limits.unique().sort().to_list()}


def _packed(found: pl.DataFrame) -> pl.DataFrame:
    """A row per setting, system and rate with the attainment at all limits as one list: a page stays small."""
    keys = ["setting", "system", "rate"]
    texts = found.with_columns(
        ttft=pl.col("ttft_limit_s").map_elements(lambda limit: f"{limit:g}", pl.String),
        tbt=pl.col("tbt_limit_s").map_elements(lambda limit: f"{limit:g}", pl.String),
    )
    return texts.group_by(keys, maintain_order=True).agg(
        pl.col("ttft").unique(maintain_order=True),
        pl.col("tbt").unique(maintain_order=True),
        pl.col("attained_frac").round(4).alias("attained"),
    )


def _flat(told: Mapping[tuple[str, str, str], Mapping[str, Capacity]]) -> pl.DataFrame:
    rows = [
        {"setting": setting, "tbt": tbt, "ttft": ttft, "system": system, "per_s": round(of.rate, 4), "kind": of.kind or "at"}
        for (setting, ttft, tbt), systems in told.items()
        for system, of in systems.items()
    ]
    return pl.DataFrame(rows)


def _chart(start: Mapping[str, str], names: Sequence[str]) -> alt.HConcatChart:
    params = [alt.param(name=name, value=start[name]) for name in ("served", "ttft", "tbt")]
    colour, shape = looks(names, LEGEND)
    base = (
        alt.Chart(alt.NamedData("grid"))
        .transform_filter("datum.setting === served")
        .transform_calculate(
            frac="datum.attained[indexof(datum.ttft, ttft) * length(datum.tbt) + indexof(datum.tbt, tbt)]",
        )
    )
    x = alt.X("rate:Q", title="rate (requests per second)", scale=alt.Scale(zero=False, nice=False, padding=12))
    y = alt.Y("frac:Q", title="requests in time (%)", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format=".0%"))
    tips = [alt.Tooltip("system:N"), alt.Tooltip("rate:Q"), alt.Tooltip("frac:Q", title="in time", format=".1%")]
    rule = level("grid", ATTAINED_FRAC).encode(alt.Y("level:Q"))
    line, marks = base.mark_line().encode(x, y, colour), base.mark_point().encode(x, y, colour, shape, tooltip=tips)
    left = alt.layer(rule, line, marks).properties(width=LEFT, height=HEIGHT)
    return alt.hconcat(left, _capacity_chart(colour, shape), spacing=50).add_params(*params)


def _capacity_chart(colour: alt.Color, shape: alt.Shape) -> alt.LayerChart:
    base = (
        alt.Chart(alt.NamedData("capacities"))
        .transform_filter("datum.setting === served && datum.tbt === tbt")
        .transform_calculate(limit="toNumber(datum.ttft)", strength="datum.kind === 'at' ? 1 : 0.3")
    )
    scale = alt.Scale(type="log", nice=False, padding=12)
    x = alt.X("limit:Q", title="first token within (s, log scale)", scale=scale, axis=alt.Axis(tickCount=6, format="~g"))
    y = alt.Y("per_s:Q", title="capacity (requests per second)", scale=alt.Scale(zero=False))
    tips = [
        alt.Tooltip("system:N"),
        alt.Tooltip("limit:Q", title="first token within (s)"),
        alt.Tooltip("kind:N", title="capacity is"),
        alt.Tooltip("per_s:Q", title="requests per second", format=".2f"),
    ]
    chosen = base.transform_filter("datum.ttft === ttft").mark_rule(color=theme.GRID, strokeWidth=8).encode(x)
    line = base.mark_line().encode(x, y, colour)
    marks = base.mark_point(strokeWidth=1.5).encode(
        x, y, colour, shape, opacity=alt.Opacity("strength:Q", scale=None), tooltip=tips
    )
    return alt.layer(chosen, line, marks).properties(width=RIGHT, height=HEIGHT)
