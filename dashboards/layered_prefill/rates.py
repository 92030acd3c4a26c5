"""The Layered Prefill page on service levels: who attains the paper's limits at which rate, each alone, and any two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import altair as alt
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.engine import Ask, Control, Drawn, Figure, Part, some
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
    settings,
    systems,
)
from tokentape.dashboards.units import joined, percent, quantity

QUESTION = "Which rate does each scheduler serve within the paper's limits?"
NO_RATES = f"Nothing to draw: no sweep of rates is recorded. {STUDY}"

SERIES, MAX_PANELS = "slo ", 4
HALVES = {"slo_ttft_frac": "first token in time", "slo_tbt_frac": "gaps in time"}
OPENS_AT_S = {"ttft": {"sharegpt": 5.0, "arxiv": 10.0}, "tbt": {"sharegpt": 0.125, "arxiv": 0.125}}  # of Table 5, for Qwen


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
    return Part(
        (Figure("attainment", QUESTION, chart, {"": attainment_answer(told)}, (), reading, NO_RATES),),
        data={"rates": _shown(told)},
    )


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


def attainment_answer(found: pl.DataFrame) -> str:
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


def explorer(ask: Ask) -> Drawn:
    """The first settings."""
    found = some(grid(ask, ask.made(rows.points)))
    found = found.filter(pl.col("setting").is_in(in_order(found)[: ask.size]))
    told = capacities_by_limits(found)
    return Drawn(
        {"grid": _packed(found), "capacities": _flat(told)},
        dict(_answers(told)),
        {"at": percent(ATTAINED_FRAC, 0), **looks(found["system"])},
        controls=(
            Control("served", "Model and workload"),
            Control("ttft", "First token within", _labels(found["ttft_limit_s"]), "slider"),
            Control("tbt", "No gap above", _labels(found["tbt_limit_s"]), "slider"),
        ),
        choices=tuple(_choices(found)),
    )


def grid(ask: Ask, points: pl.DataFrame) -> pl.DataFrame:
    """setting, system, rate, both limits, attained_frac; settings of limits ascending."""
    if points.is_empty():
        return pl.DataFrame()
    limits = ask("attainment").filter(pl.col("point_id").is_in(points["point_id"].implode()))
    held = points.filter(pl.col("point_id").is_in(limits["point_id"].unique().implode()) & pl.col("rate").is_not_null())
    named = systems(held.with_columns(settings(held)), "setting", "rate")
    found = limits.join(named.select("point_id", "setting", "system", "rate", "model", "workload", "is_dense"), on="point_id")
    return found.drop("point_id").sort("setting", "system", "rate", "ttft_limit_s", "tbt_limit_s")


def capacities_by_limits(found: pl.DataFrame) -> dict[tuple[str, str, str], dict[str, Capacity]]:
    """(setting, TTFT limit, TBT limit) as the sliders name them -> system -> capacity."""
    told: dict[tuple[str, str, str], dict[str, Capacity]] = {}
    keys = ["setting", "ttft_limit_s", "tbt_limit_s", "system"]
    for (setting, ttft, tbt, system), of in found.sort("rate").group_by(keys, maintain_order=True):
        place = str(setting), f"{ttft:g}", f"{tbt:g}"
        told.setdefault(place, {})[str(system)] = capacity(of["rate"].to_list(), of["attained_frac"].to_list())
    return told


def explorer_answer(ttft: str, tbt: str, found: Mapping[str, Capacity]) -> str:
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
        yield "|".join(place), explorer_answer(*place[1:], found)


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
