"""The Layered Prefill page on a stretch of one run: its schedule as a Gantt chart, its requests' lives, the tokens of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import altair as alt
import duckdb
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.layered_prefill import rows
from tokentape.dashboards.layered_prefill.words import STUDY, drawing_order, looks, settings, systems
from tokentape.dashboards.shell import Figure, Part
from tokentape.dashboards.units import joined, quantity

NO_WINDOW = f"Nothing to draw: the iterations of a run are not recorded. {STUDY}"
NO_TOKENS = f"Nothing to draw: the tokens of a request are not recorded. {STUDY}"
QUESTIONS = {
    "schedule": "What does each iteration do to which layers?",
    "lives": "What does each request go through?",
    "tokens": "When do the tokens of one request come?",
}
READINGS = {
    "schedule": "One run, the same arrivals for both: {where}. Each column is an iteration, as wide as it lasts; from top to "
    "bottom all layers of the model. Orange: these layers process prompt tokens, and the decodes with them; blue: decodes "
    "alone. Chunked takes a slice of the prompt through all layers, layered the whole prompt through one group of them.",
    "lives": "The requests of the same stretch, by arrival: {where}. Grey: waiting; orange: prefill, a piece for each "
    "chunk or group of layers, darker the deeper the group; blue: decoding. What happens outside the stretch is cut off.",
    "tokens": "Request {request_id} of one run: {where}. Tokens so far against the time since its arrival; a flat "
    "stretch is a wait.",
}
STATES = {"queued": theme.GRID, **theme.PHASE_COLOURS}
WORK = {"decode": theme.PHASE_COLOURS["decode"], "prefill": theme.PHASE_COLOURS["prefill"]}
WIDE = 1040
LEGEND = alt.Legend(title=None, orient="top", symbolType="square", symbolOpacity=1)


def part(connection: duckdb.DuckDBPyConnection, points: pl.DataFrame) -> Part:
    """points: rows.points."""
    schedule, lives = _together(
        _of(points, rows.iterations(connection, _ids(points))), _of(points, rows.spans(connection, _ids(points)))
    )
    found = {
        "schedule": schedule,
        "lives": lives,
        "tokens": _shared(_of(points, rows.tokens(connection, _ids(points)))),
    }
    made = {
        "schedule": (_schedule_chart, schedule_answer),
        "lives": (_lives_chart, lives_answer),
        "tokens": (_tokens_chart, tokens_answer),
    }
    figures = tuple(_figure(name, frame, *made[name]) for name, frame in found.items())
    return Part(figures, data={name: frame for name, frame in found.items() if not frame.is_empty()})


def _figure(
    name: str, found: pl.DataFrame, chart: Callable[[Sequence[str]], alt.TopLevelMixin], answer: Callable[[pl.DataFrame], str]
) -> Figure:
    missing = NO_TOKENS if name == "tokens" else NO_WINDOW
    if found.is_empty():
        return Figure(name, QUESTIONS[name], None, {}, (), "", missing)
    reading = READINGS[name].format(where=_where(found), **found.row(0, named=True))
    return Figure(name, QUESTIONS[name], chart(drawing_order(found["system"])), {"": answer(found)}, (), reading, missing)


def _ids(points: pl.DataFrame) -> list[str]:
    return [] if points.is_empty() else points["point_id"].to_list()


def _of(points: pl.DataFrame, found: pl.DataFrame) -> pl.DataFrame:
    """The rows with setting, rate and system of their points, of the setting and rate that most of them share."""
    if found.is_empty():
        return found
    held = points.filter(pl.col("point_id").is_in(found["point_id"].unique().implode()))
    named = systems(held.with_columns(settings(held)), "setting", "rate").select("point_id", "setting", "rate", "system")
    told = found.join(named.unique("point_id"), on="point_id", maintain_order="left").drop("point_id")
    first = (
        told.group_by("setting", "rate")
        .agg(pl.col("system").n_unique(), pl.len().alias("n"))
        .sort("system", "n", "setting")
        .tail(1)
    )
    return told.join(first.select("setting", "rate"), on=["setting", "rate"], how="semi", maintain_order="left", nulls_equal=True)


def _together(*found: pl.DataFrame) -> list[pl.DataFrame]:
    """What lies in the stretch that all frames tell of every scheduler, cut at its ends; start_s counts from its beginning."""
    stop = pl.col("start_s") + pl.col("seconds")
    told = [of.group_by("system").agg(pl.min("start_s"), stop.max().alias("end")) for of in found if not of.is_empty()]
    if not told:
        return list(found)
    begin, end = pl.concat(told).select(pl.max("start_s"), pl.min("end")).row(0)
    return [of if of.is_empty() else _cut(of, begin, end) for of in found]


def _cut(found: pl.DataFrame, begin: float, end: float) -> pl.DataFrame:
    start = pl.max_horizontal("start_s", pl.lit(begin))
    left = pl.min_horizontal(pl.col("start_s") + pl.col("seconds"), pl.lit(end)) - start
    return found.with_columns(start_s=start - begin, seconds=left, whole_s="seconds").filter(pl.col("seconds") > 1e-9)


def _shared(found: pl.DataFrame) -> pl.DataFrame:
    """Tokens of the request that most schedulers have."""
    if found.is_empty():
        return found
    counts = found.group_by("request_id").agg(pl.col("system").n_unique().alias("n"), pl.len().alias("tokens"))
    first = counts.sort("n", "tokens", "request_id", descending=[True, True, False])["request_id"][0]
    return found.filter(pl.col("request_id") == first)


def _where(found: pl.DataFrame) -> str:
    row = found.row(0, named=True)
    return row["setting"] + ("" if row["rate"] is None else f" at {row['rate']:g} requests per second")


def schedule_answer(found: pl.DataFrame) -> str:
    """Iterations with prefill, their length, and how many prompt tokens and layers they carry, per scheduler."""
    said = []
    for name in drawing_order(found["system"]):
        of = found.filter(pl.col("system") == name)
        prefill = of.filter(pl.col("n_prefill_tokens") > 0)
        if prefill.is_empty():
            said.append(f"{name}: no prefill in {of.height} iterations")
            continue
        groups = int(prefill["n_groups"].max())  # type: ignore[arg-type]
        where = "through all layers" if groups == 1 else f"through one of up to {groups} groups"
        said.append(
            f"{name}: {prefill.height} of {of.height} iterations carry prefill, {prefill['n_prefill_tokens'].mean():,.0f} "
            "tokens on "
            f"average {where}; the longest iteration takes {quantity(float(of['whole_s'].max()), 's')}"  # type: ignore[arg-type]
        )
    length = quantity(float((found["start_s"] + found["seconds"]).max()), "s")  # type: ignore[arg-type]
    return f"In the same {length}, {'; '.join(said)}."


def _schedule_chart(names: Sequence[str]) -> alt.FacetChart:
    base = alt.Chart(alt.NamedData("schedule")).transform_calculate(
        end="datum.start_s + datum.seconds",
        all="1",
        top="datum.layer_group / datum.n_groups",
        bottom="(datum.layer_group + 1) / datum.n_groups",
        ms="datum.whole_s * 1000",
    )
    x = alt.X("start_s:Q", title="time from the start of the stretch (s)", scale=alt.Scale(zero=False, nice=False))
    axis = alt.Axis(values=[0, 1], labelExpr="datum.value === 0 ? 'first' : 'last'", grid=False)
    scale = alt.Scale(domain=[1, 0], nice=False)
    colours = alt.Scale(domain=list(WORK), range=list(WORK.values()))
    tips = [
        alt.Tooltip("iteration:Q"),
        alt.Tooltip("ms:Q", title="ms", format=".1f"),
        alt.Tooltip("n_decodes:Q", title="decodes"),
        alt.Tooltip("n_prefill_tokens:Q", title="prompt tokens"),
        alt.Tooltip("layer_group:Q", title="group of layers, from 0"),
        alt.Tooltip("n_groups:Q", title="groups"),
    ]

    def bars(work: str, low: str, high: str, shown: str) -> alt.Chart:
        drawn = base.transform_filter(shown).transform_calculate(work=theme.quote(work), zero="0")
        y = alt.Y(f"{low}:Q", title="layer", axis=axis, scale=scale)
        colour = alt.Color("work:N", scale=colours, legend=LEGEND)
        mark = drawn.mark_rect(stroke="white", strokeWidth=0.6)
        return mark.encode(x, y, colour, alt.X2("end:Q"), alt.Y2(f"{high}:Q"), tooltip=tips)

    layers = [
        bars("decode", "zero", "all", "datum.n_decodes > 0"),
        bars("prefill", "top", "bottom", "datum.n_prefill_tokens > 0"),
    ]
    drawn = alt.layer(*layers).properties(width=WIDE, height=150)
    return drawn.facet(row=alt.Row("system:N", title=None, sort=list(names), header=_beside()), spacing=14)


def _beside() -> alt.Header:
    return alt.Header(labelFontSize=14, labelFontWeight=600, labelAngle=0, labelOrient="top", labelAnchor="start", labelPadding=4)


def lives_answer(found: pl.DataFrame) -> str:
    """Time in each state of the drawn stretch, per scheduler, over its requests."""
    said = []
    for name in drawing_order(found["system"]):
        of = found.filter(pl.col("system") == name)
        spent = dict(of.group_by("state").agg(pl.col("seconds").sum()).iter_rows())
        told = [
            f"{quantity(spent[state], 's')} {'in prefill' if state == 'prefill' else state}" for state in STATES if state in spent
        ]
        said.append(f"{name}: {of['request_id'].n_unique()} requests, together {joined(told)}")
    return f"In this stretch, {'; '.join(said)}.".replace(" decode", " decoding")


def _lives_chart(names: Sequence[str]) -> alt.FacetChart:
    base = alt.Chart(alt.NamedData("lives")).transform_calculate(
        end="datum.start_s + datum.seconds",
        ms="datum.whole_s * 1000",
        strength="datum.state === 'prefill' && isValid(datum.layer_group) ? 0.45 + 0.55 * min(datum.layer_group / 15, 1) : 1",
    )
    x = alt.X("start_s:Q", title="time from the start of the stretch (s)", scale=alt.Scale(zero=False, nice=False))
    y = alt.Y("request_id:O", title="request (number)", axis=alt.Axis(labelOverlap=True, ticks=False, grid=False))
    colour = alt.Color("state:N", scale=alt.Scale(domain=list(STATES), range=list(STATES.values())), legend=LEGEND)
    tips = [
        alt.Tooltip("request_id:N", title="request"),
        alt.Tooltip("state:N"),
        alt.Tooltip("start_s:Q", title="from (s)", format=".3f"),
        alt.Tooltip("ms:Q", title="ms", format=".1f"),
        alt.Tooltip("layer_group:Q", title="group of layers, from 0"),
    ]
    opacity = alt.Opacity("strength:Q", scale=None)
    bars = base.mark_bar(stroke="white", strokeWidth=0.4).encode(x, y, colour, opacity, alt.X2("end:Q"), tooltip=tips)
    drawn = bars.properties(width=WIDE, height=alt.Step(13))
    facets = drawn.facet(row=alt.Row("system:N", title=None, sort=list(names), header=_beside()), spacing=14)
    return facets.resolve_scale(y="independent")


def tokens_answer(found: pl.DataFrame) -> str:
    """First token, last token and longest gap of the request, per scheduler."""
    said = []
    for name in drawing_order(found["system"]):
        times = found.filter(pl.col("system") == name).sort("place")["time_s"]
        gap = times.diff().max()
        longest = f", longest gap {quantity(float(gap), 's')}" if gap is not None else ""  # type: ignore[arg-type]
        said.append(f"{quantity(times[0], 's')} and {quantity(times[-1], 's')} with {name}{longest}")
    return f"The first and the last of {found['place'].n_unique()} tokens come after {'; '.join(said)}."


def _tokens_chart(names: Sequence[str]) -> alt.LayerChart:
    colour, _ = looks(names)
    base = alt.Chart(alt.NamedData("tokens")).transform_calculate(n="datum.place + 1")
    x = alt.X("time_s:Q", title="time since the request arrived (s)", scale=alt.Scale(domainMin=0, nice=False))
    y = alt.Y("n:Q", title="output so far (tokens)")
    tips = [alt.Tooltip("system:N"), alt.Tooltip("n:Q", title="tokens"), alt.Tooltip("time_s:Q", title="after (s)", format=".3f")]
    line = base.mark_line(interpolate="step-after").encode(x, y, colour)
    first = base.transform_filter("datum.place === 0").mark_point(size=70).encode(x, y, colour, tooltip=tips)
    return alt.layer(line, first).properties(width=WIDE - 60, height=270)
