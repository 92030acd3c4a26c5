"""The Kelle page on recorded attention: how much of it each policy keeps, which tokens are popular, and where a replay drifts."""

from __future__ import annotations

import altair as alt
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.answers import percent
from tokentape.dashboards.kelle.live_words import SEEDS, first_of, looks, named
from tokentape.dashboards.kelle.words import SQUARES, STUDY, source
from tokentape.dashboards.panels import colour, params, stacked
from tokentape.dashboards.shell import Control, Figure, Part
from tokentape.dashboards.units import joined

REPLAY = (
    "Run: tokentape study kelle, or tokentape capture with --tables requests,tokens,passes,attention and tokentape decide kv "
    "TRACE --policy aerp --param budget=64 (again with other policies and budgets), then tokentape load and tokentape site."
)
FORMS = {"as keys and values": theme.QUIET, "as layer inputs": theme.GREEN}
NO_KEPT = f"Nothing to draw: no recorded attention went through a policy. {REPLAY}"
NO_DRIFT = f"Nothing to draw: no replayed policy was held against its live run. {STUDY}"


def part(kept: pl.DataFrame, timeline: pl.DataFrame, divergence: pl.DataFrame, size: int) -> Part:
    """The first `size` tapes. kept, timeline, divergence: live_rows' of these names."""
    held, along = (named(first_of(found, "tape", size)) for found in (kept, timeline))
    drift = named(divergence)
    choices = tuple(_choices(held))
    start = {name: value for row in reversed(choices) for name, value in row.items()}
    figures = (_kept_figure(held, start), _along_figure(along, start), _drift_figure(drift))
    data = {"kept": held, "along": along, "drift": drift}
    return Part(
        figures,
        controls=(Control("tape", "Tape"), Control("keeping", "Budget, replayed")) if choices else (),
        choices=choices,
        data={name: frame for name, frame in data.items() if not frame.is_empty()},
    )


def _choices(kept: pl.DataFrame) -> list[dict[str, str]]:
    """Each tape with its budgets; the middle one opens."""
    made = []
    for (tape,), of in kept.drop_nulls("budget").group_by(["tape"], maintain_order=True) if not kept.is_empty() else ():
        budgets = of["budget"].unique().sort().to_list()
        middle = budgets[(len(budgets) - 1) // 2]
        made += [{"tape": str(tape), "keeping": f"{n}"} for n in sorted(budgets, key=lambda n: (n != middle, n))]
    return made


def _kept_figure(kept: pl.DataFrame, start: dict[str, str]) -> Figure:
    question = "How much of the attention does each policy keep, and in how many bytes?"
    found = kept.drop_nulls("budget") if not kept.is_empty() else kept
    if found.is_empty():
        return Figure("kept", question, None, {}, (), "", NO_KEPT)
    said = {f"{tape}|{budget}": kept_answer(of) for (tape, budget), of in found.group_by(["tape", "budget"], maintain_order=True)}
    reading = (
        "Open loop: recorded attention rows go through each policy, and what lies on tokens that it still has is added up over "
        "all heads and layers. The oracle keeps what the rest of the tape attends to most, which no policy can know. Kept mass "
        "is no measure of quality: what it misses may be what matters. Right: bytes of a request's cache, mean over decoded "
        "tokens, over those of the whole cache; popular tokens of AERP are stored as layer inputs. Policies marked * start from "
        "what a tape keeps of the prompt, one sum over its queries, which is not all that they look at."
    )
    return Figure("kept", question, _kept_chart(found, start), said, ("tape", "keeping"), reading, NO_KEPT)


def kept_answer(found: pl.DataFrame) -> str:
    """Best policy, AERP, the worst and the bound, and what AERP stores; rows of one tape and budget."""
    ranked = found.filter(~pl.col("is_bound")).sort("kept", "who", descending=[True, False])
    if ranked.is_empty():
        return "Only bounds went over this tape."
    best, worst = ranked.row(0, named=True), ranked.row(-1, named=True)
    aerp = ranked.filter(pl.col("who") == "AERP").to_dicts()
    beside = {row["who"]: percent(row["kept"]) for row in (*aerp, worst) if row["who"] != best["who"]}
    said = [f"{who} {kept}" for who, kept in beside.items()]
    said += [f"the bound {percent(row['kept'])}" for row in found.filter("is_bound").head(1).to_dicts()]
    stored = [
        f" AERP stores {percent((row['x_bytes'] + row['kv_bytes']) / row['full_bytes'], 0)} of the whole cache's bytes, "
        f"{percent(row['x_bytes'] / (row['x_bytes'] + row['kv_bytes']), 0)} of that as layer inputs."
        for row in aerp
    ]
    more = f" ({joined(said)})" if said else ""
    return f"With {best['budget']} tokens per head {best['who']} keeps most, {percent(best['kept'])}{more}.{''.join(stored)}"


def _kept_chart(found: pl.DataFrame, start: dict[str, str]) -> alt.VConcatChart:
    here = "datum.tape === tape && datum.budget === toNumber(keeping)"
    base = alt.Chart(alt.NamedData("kept")).transform_filter(here)
    base = base.transform_calculate(said="datum.who + (datum.is_exact ? '' : ' *')")
    hue, _, _ = looks(found["who"], None)
    order = alt.EncodingSortField("kept", op="max", order="descending")
    tips = [
        alt.Tooltip("who:N", title="policy"),
        alt.Tooltip("kept:Q", format=".2%"),
        alt.Tooltip("popular:Q", format=".1%"),
        alt.Tooltip("is_exact:N", title="exact"),
    ]
    axis = alt.Axis(ticks=False, domain=False, labelLimit=180, labelFontSize=13)
    y = alt.Y("said:N", title=None, sort=order, axis=axis)
    x = alt.X("kept:Q", title="attention mass kept (%)", axis=alt.Axis(format=".0%"), scale=alt.Scale(domain=[0, 1]))
    bars = base.mark_bar().encode(x, y, hue, tooltip=tips)
    words = base.mark_text(align="left", dx=4, fontSize=12).encode(x, y, text=alt.Text("kept:Q", format=".1%"))
    left = alt.layer(bars, words).properties(width=430, height=alt.Step(20))
    folded = base.transform_fold(["kv_bytes", "x_bytes"], as_=["form", "bytes"]).transform_calculate(
        share="datum.bytes / datum.full_bytes", as_form="datum.form === 'x_bytes' ? 'as layer inputs' : 'as keys and values'"
    )
    forms = colour(FORMS, "as_form", list(FORMS), SQUARES)
    bare = alt.Y("said:N", title=None, sort=order, axis=alt.Axis(ticks=False, domain=False, labels=False))
    stack = folded.mark_bar().encode(
        alt.X("share:Q", title="bytes (% of the whole cache's)", axis=alt.Axis(format=".0%")),
        bare,
        forms,
        tooltip=[alt.Tooltip("who:N"), alt.Tooltip("as_form:N", title="form"), alt.Tooltip("share:Q", format=".1%")],
    )
    drawn = alt.hconcat(left, stack.properties(width=380, height=alt.Step(20)), spacing=50).resolve_scale(color="independent")
    return stacked([drawn], source("open loop", reading=None), params(start, "tape", "keeping"))


def _along_figure(along: pl.DataFrame, start: dict[str, str]) -> Figure:
    question = "Does the loss grow along the text?"
    found = along.drop_nulls("budget") if not along.is_empty() else along
    if found.is_empty():
        return Figure("along", question, None, {}, (), "", NO_KEPT)
    said = {
        f"{tape}|{budget}": along_answer(of) for (tape, budget), of in found.group_by(["tape", "budget"], maintain_order=True)
    }
    reading = (
        "Kept attention mass and popular tokens by the position of the query, over all layers, at the replayed budget that the "
        "menu names. A token is popular when more than half of the heads retain it; Kelle stores its layer input instead."
    )
    return Figure("along", question, _along_chart(found, start), said, ("tape", "keeping"), reading, NO_KEPT)


def along_answer(found: pl.DataFrame) -> str:
    """Kept mass of the first and the last stretch for the best policy and AERP; rows of one tape and budget."""
    methods = found.filter(~pl.col("is_bound"))
    means = methods.group_by("who").agg(pl.mean("kept")).sort("kept", "who", descending=[True, False])
    names = list(
        dict.fromkeys([*means["who"].head(1), *(["AERP"] if "AERP" in set(means["who"]) else []), *means["who"].tail(1)])
    )
    said = []
    for name in names:
        of = methods.filter(pl.col("who") == name).sort("position")
        first, last = of.row(0, named=True), of.row(-1, named=True)
        said.append(f"{name} from {percent(first['kept'])} to {percent(last['kept'])}")
    popular = methods.filter(pl.col("who") == "AERP").sort("position").tail(1).to_dicts()
    more = [f" At the end {percent(row['popular'])} of what any head of AERP retains is popular." for row in popular]
    return f"With {found['budget'][0]} tokens per head, from the first decoded tokens to the last: {joined(said)}.{''.join(more)}"


def _along_chart(found: pl.DataFrame, start: dict[str, str]) -> alt.VConcatChart:
    base = alt.Chart(alt.NamedData("along")).transform_filter("datum.tape === tape && datum.budget === toNumber(keeping)")
    hue, _, dash = looks(found["who"])
    x = alt.X("position:Q", title="position of the query (tokens)", scale=alt.Scale(zero=False, nice=False))
    panels = []
    for field, title in (("kept", "attention mass kept (%)"), ("popular", "popular (% of retained tokens)")):
        y = alt.Y(f"{field}:Q", title=title, scale=alt.Scale(zero=False), axis=alt.Axis(format=".0%"))
        tips = [alt.Tooltip("who:N"), alt.Tooltip("position:Q"), alt.Tooltip(f"{field}:Q", format=".2%")]
        panels.append(base.mark_line().encode(x, y, hue, strokeDash=dash, tooltip=tips).properties(width=480, height=250))
    return stacked([alt.hconcat(*panels, spacing=45)], source("open loop", reading=None), params(start, "tape", "keeping"))


def _drift_figure(drift: pl.DataFrame) -> Figure:
    question = "How far may a replayed tape be trusted?"
    if drift.is_empty():
        return Figure("drift", question, None, {}, (), "", NO_DRIFT)
    row = drift.row(0, named=True)
    where = f"{row['model']}, {row['dataset']}"
    reading = (
        "Of the tokens that the live run keeps, those that a replay of the recorded attention keeps too, over all steps and "
        f"heads ({where}). In the first layer nothing has changed yet, but for policies that start from more than a tape keeps "
        f"of a prompt. {SEEDS}"
    )
    return Figure("drift", question, _drift_chart(drift), {"": drift_answer(drift)}, (), reading, NO_DRIFT)


def drift_answer(drift: pl.DataFrame) -> str:
    """Policies that agree in every layer, and the least agreement of the others."""
    each = drift.group_by("who").agg(pl.min("same")).sort("who")
    exact = each.filter(pl.col("same") >= 1)["who"].to_list()
    rest = each.filter(pl.col("same") < 1).sort("same")
    alike = f"Replay and live run keep the same tokens in every layer with {joined(exact)}. " if exact else ""
    if rest.is_empty():
        return alike.strip()
    worst = drift.sort("same").row(0, named=True)
    return (
        f"{alike}They differ with {joined(rest['who'].to_list())}, most in layer {worst['layer']} of {worst['who']}: "
        f"{percent(worst['same'])} are the same."
    )


def _drift_chart(drift: pl.DataFrame) -> alt.VConcatChart:
    base = alt.Chart(alt.NamedData("drift"))
    hue, shape, dash = looks(drift["who"])
    x = alt.X("layer:O", title="layer (from 0)", axis=alt.Axis(labelAngle=0))
    y = alt.Y("same:Q", title="kept by both (% of the live run's)", scale=alt.Scale(zero=False), axis=alt.Axis(format=".0%"))
    tips = [
        alt.Tooltip("who:N", title="policy"),
        alt.Tooltip("layer:Q"),
        alt.Tooltip("same:Q", format=".2%"),
        alt.Tooltip("seeds:Q"),
    ]
    band = base.mark_rule(strokeWidth=5, opacity=0.25).encode(x, alt.Y("low:Q"), alt.Y2("high:Q"), hue)
    line, marks = base.mark_line().encode(x, y, hue, strokeDash=dash), base.mark_point().encode(x, y, hue, shape, tooltip=tips)
    drawn = alt.layer(band, line, marks).properties(width=720, height=250)
    return stacked([drawn], source("open against closed loop", reading=None))
