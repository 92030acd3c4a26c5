"""The Kelle page on recorded attention: how much of it each policy keeps, which tokens are popular, and where a replay drifts."""

from __future__ import annotations

import altair as alt
import polars as pl

from dashboards.answers import percent
from dashboards.kelle_live_words import SEEDS, budget_axis, first_of, looks, named
from dashboards.kelle_words import STUDY, source
from dashboards.panels import params, stacked
from dashboards.shell import Control, Figure, Part
from dashboards.units import joined

REPLAY = (
    "Run: tokentape study kelle, or tokentape capture with --tables requests,tokens,passes,attention and tokentape kv TRACE "
    "--policy aerp --param budget=64 (again with other policies and budgets), then tokentape load and tokentape site."
)
NO_KEPT = f"Nothing to draw: no recorded attention went through a policy. {REPLAY}"
NO_DRIFT = f"Nothing to draw: no replayed policy was held against its live run. {STUDY}"


def part(kept: pl.DataFrame, timeline: pl.DataFrame, divergence: pl.DataFrame, size: int) -> Part:
    """The first `size` tapes. kept, timeline, divergence: kelle_live_rows' of these names."""
    held, along = (named(first_of(found, "tape", size)) for found in (kept, timeline))
    drift = named(divergence.with_columns(variant=pl.lit("")))
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
    question = "How much of the attention does each policy keep?"
    found = kept.drop_nulls("budget") if not kept.is_empty() else kept
    if found.is_empty():
        return Figure("kept", question, None, {}, (), "", NO_KEPT)
    said = {str(tape): kept_answer(of) for (tape,), of in found.group_by(["tape"], maintain_order=True)}
    reading = (
        "Open loop: recorded attention rows go through each policy, and what lies on tokens that it still has is added up over "
        "all heads and layers. The oracle keeps what the rest of the tape attends to most, which no policy can know. Kept mass "
        "is no measure of quality: what it misses may be what matters."
    )
    return Figure("kept", question, _kept_chart(found, start), said, ("tape",), reading, NO_KEPT)


def kept_answer(found: pl.DataFrame) -> str:
    """Best policy, the bound and AERP at each budget; rows of one tape."""
    said = []
    for (budget,), of in found.sort("budget").group_by(["budget"], maintain_order=True):
        best = of.filter(~pl.col("is_bound")).sort("kept", "who", descending=[True, False]).head(1).to_dicts()
        for row in best:
            aerp = of.filter(pl.col("who") == "AERP").to_dicts()
            beside = [f"AERP {percent(other['kept'])}" for other in aerp if row["who"] != "AERP"]
            beside += [f"the bound {percent(other['kept'])}" for other in of.filter("is_bound").head(1).to_dicts()]
            more = f" ({joined(beside)})" if beside else ""
            said.append(f"with {budget} tokens per head {row['who']} keeps {percent(row['kept'])}{more}")
    text = "; ".join(said)
    return f"{text[:1].upper()}{text[1:]}."


def _kept_chart(found: pl.DataFrame, start: dict[str, str]) -> alt.VConcatChart:
    base = alt.Chart(alt.NamedData("kept")).transform_filter("datum.tape === tape && isValid(datum.budget)")
    hue, shape, dash = looks(found["who"])
    x = budget_axis(found["budget"].unique().sort().to_list())
    y = alt.Y("kept:Q", title="attention mass kept (%)", scale=alt.Scale(zero=False), axis=alt.Axis(format=".0%"))
    tips = [alt.Tooltip("who:N", title="policy"), alt.Tooltip("budget:Q"), alt.Tooltip("kept:Q", format=".2%")]
    popular = alt.Y("popular:Q", title="popular (% of retained tokens)", axis=alt.Axis(format=".0%"))
    panels = [
        alt.layer(base.mark_line().encode(x, of, hue, dash), base.mark_point().encode(x, of, hue, shape, tooltip=tips))
        for of in (y, popular)
    ]
    return stacked(
        [alt.hconcat(*(panel.properties(width=480, height=270) for panel in panels), spacing=45)],
        source("open loop", reading=None),
        params(start, "tape"),
    )


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
        panels.append(base.mark_line().encode(x, y, hue, dash, tooltip=tips).properties(width=480, height=250))
    return stacked([alt.hconcat(*panels, spacing=45)], source("open loop", reading=None), params(start, "tape", "keeping"))


def _drift_figure(drift: pl.DataFrame) -> Figure:
    question = "How far may a replayed tape be trusted?"
    if drift.is_empty():
        return Figure("drift", question, None, {}, (), "", NO_DRIFT)
    row = drift.row(0, named=True)
    where = f"{row['model']}, {row['dataset']}"
    reading = (
        "Of the tokens that the live run keeps, those that a replay of the recorded attention keeps too, over all steps and "
        f"heads ({where}). In the first layer nothing has changed yet. {SEEDS}"
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
    line, marks = base.mark_line().encode(x, y, hue, dash), base.mark_point().encode(x, y, hue, shape, tooltip=tips)
    drawn = alt.layer(band, line, marks).properties(width=720, height=250)
    return stacked([drawn], source("open against closed loop", reading=None))
