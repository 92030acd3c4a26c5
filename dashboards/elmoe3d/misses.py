"""The ELMoE-3D page on reuse (Figure 16): misses by batch, model and data set, and experts of one request or of many."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.answers import percent
from tokentape.dashboards.elmoe3d.words import LAW_COLOURS, LAWS, LEGEND, PLAIN_LEGEND, STUDY, law_words, source
from tokentape.dashboards.panels import known, params, stacked
from tokentape.dashboards.shell import Control, Figure, Part
from tokentape.dashboards.units import joined

NO_MISSES = f"Nothing to draw: no tape's misses were replayed. {STUDY}"
NO_UNIONS = f"Nothing to draw: no tape's experts were counted. {STUDY}"
REPLAYED = "lru"
TOKENS_OF = {"decode": "of different requests", "one_request": "of one request", "prefill": "of one prompt"}
OPENS_AT = 0.125  # the cached share nearest to the paper's machines
COLUMNS = 4


def misses_part(misses: pl.DataFrame, size: int, start: dict[str, str]) -> Part:
    """Figure 16 a, c and d over the first `size` tapes. misses: rows.misses."""
    question = "How fast does a batch outgrow the cache?"
    if misses.is_empty():
        return Part((Figure("misses", question, None, {}, (), "", NO_MISSES),))
    found = _panels(misses, size).with_columns(
        law_words=law_words(), share=pl.col("cache_frac").map_elements(lambda frac: f"{frac:g}", pl.String)
    )
    shares = sorted(found["share"].unique(), key=lambda share: (abs(float(share) - OPENS_AT), float(share)))
    said = {str(share): misses_answer(of) for (share,), of in found.group_by(["share"], maintain_order=True)}
    reading = (
        "Share of a step's expert lookups that were not resident when the step started, requests decoded side by side. "
        "Replayed: a per-layer LRU over the tape, exact. The laws are closed forms: the paper's does not know the batch, the "
        "physical bound does not know the order. Panels are tapes; the paper's traces (GLM-4.7-Flash, four data sets) are "
        "not public, so synthetic tapes of its models stand in for them, and captured tapes of the store come with their "
        "data set."
    )
    chart = _misses_chart(found, shares[0])
    return Part(
        (Figure("misses", question, chart, said, ("share",), reading, NO_MISSES),),
        controls=(Control("share", "Cached share of a layer", {share: percent(float(share), 1) for share in shares}),),
        choices=tuple({"share": share} for share in shares),
        data={"misses": found.drop("source", "origin")},
    )


def _panels(found: pl.DataFrame, size: int) -> pl.DataFrame:
    """With `panel`: model and data set, and the tape's end where several have both; the first `size`, captured ones first."""
    name, end = pl.format("{}, {}", "model", "dataset"), pl.col("source").str.tail(4)
    is_one = pl.col("source").n_unique().over("model", "dataset") == 1
    told = found.with_columns(
        panel=pl.when(is_one).then(name).otherwise(pl.format("{}, {}", name, end)), is_made=pl.col("origin") == "synthetic"
    )
    order = told.select("is_made", "model", "panel").unique().sort("is_made", "model", "panel", descending=[False, True, False])
    kept = order["panel"].head(size)
    place = {name: n for n, name in enumerate(kept)}
    return told.filter(pl.col("panel").is_in(kept.implode())).sort(
        pl.col("panel").replace_strict(place, return_dtype=pl.Int64), maintain_order=True
    )


def misses_answer(found: pl.DataFrame) -> str:
    """Replayed misses at the smallest and the largest batch, and what the laws say there; rows of one cached share."""
    said = []
    for (panel,), of in found.group_by(["panel"], maintain_order=True):
        ends = of.filter(pl.col("batch").is_in([of["batch"].min(), of["batch"].max()])).sort("batch")
        replayed = ends.filter(pl.col("law") == REPLAYED)["missed"].to_list()
        stated = ends.filter(pl.col("law") == "paper_law")["missed"].to_list()
        if replayed:
            words = f"{percent(replayed[0], 0)} to {percent(replayed[-1], 0)} on {panel}"
            said.append(words + (f" (paper law {percent(stated[-1], 0)})" if stated else ""))
    batches = found["batch"].unique().sort().to_list()
    return (
        f"From batch {batches[0]} to {batches[-1]}, the replayed miss rate goes from {'; '.join(said)}."
        if said
        else "Nothing was replayed."
    )


def _misses_chart(found: pl.DataFrame, opens: str) -> alt.VConcatChart:
    base = alt.Chart(alt.NamedData("misses")).transform_filter("datum.share === share")
    laws = known(LAWS, found["law"])
    x = _tokens("batch", "batch (requests, log scale)", found["batch"].unique().sort().to_list())
    y = alt.Y("missed:Q", title="missed lookups (%)", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format=".0%", tickCount=5))
    domain = [LAWS.get(n, n) for n in laws]
    colour = alt.Color(
        "law_words:N", scale=alt.Scale(domain=domain, range=[LAW_COLOURS.get(n, theme.QUIET) for n in laws]), legend=PLAIN_LEGEND
    )
    dash = alt.StrokeDash(
        "law_words:N",
        scale=alt.Scale(domain=domain, range=[[1, 0] if n == REPLAYED else [6, 4] for n in laws]),
        legend=PLAIN_LEGEND,
    )
    tips = [
        alt.Tooltip("law_words:N", title="by"),
        alt.Tooltip("batch:Q"),
        alt.Tooltip("missed:Q", format=".1%"),
        alt.Tooltip("cache_experts:Q", title="experts of a layer cached", format=".1f"),
        alt.Tooltip("fidelity:N"),
    ]
    line, marks = base.mark_line().encode(x, y, colour, dash), base.mark_point(size=35).encode(x, y, colour, tooltip=tips)
    drawn = alt.layer(line, marks).properties(width=205, height=190)
    panels = found["panel"].unique(maintain_order=True).to_list()
    title = source(found, "no value in the paper's text", law="one line each")
    return stacked([drawn.facet(_facet(panels), columns=COLUMNS, spacing=20)], title, params({"share": opens}, "share"))


def unions_part(unions: pl.DataFrame, size: int) -> Part:
    """Figure 16 b over the first `size` tapes. unions: rows.unions."""
    question = "Do the tokens of one request share experts more than those of many?"
    if unions.is_empty():
        return Part((Figure("unions", question, None, {}, (), "", NO_UNIONS),))
    most = int(unions.filter(pl.col("tokens_of") == "one_request")["n_tokens"].max() or unions["n_tokens"].max())
    found = _panels(unions.filter(pl.col("n_tokens") <= most), size).with_columns(
        whose=pl.col("tokens_of").replace(TOKENS_OF),
        fidelity=pl.when(pl.col("form") == "recorded").then(pl.lit("exact")).otherwise(pl.lit("approximate")),
    )
    reading = (
        "Distinct experts of a layer that n tokens touch, mean over layers; solid: counted on the tape, dashed: the closed "
        "form U(n) of the fit, which takes tokens for independent. Tokens of one request are what a verification takes in, "
        "tokens of different requests what a batch decodes. In a synthetic tape the two differ only by the stickiness that "
        "it was made with."
    )
    chart = _unions_chart(found)
    return Part(
        (Figure("unions", question, chart, {"": unions_answer(found)}, (), reading, NO_UNIONS),),
        data={"unions": found.drop("source", "origin")},
    )


def unions_answer(found: pl.DataFrame) -> str:
    """At the most tokens that both have: experts of one request against those of many, panel by panel."""
    said, tokens = [], 0
    recorded = found.filter(pl.col("form") == "recorded")
    for (panel,), of in recorded.group_by(["panel"], maintain_order=True):
        both = of.pivot("tokens_of", index="n_tokens", values="experts").sort("n_tokens")
        if not {"decode", "one_request"} <= set(both.columns):
            continue
        last = both.drop_nulls(["decode", "one_request"]).filter(pl.col("n_tokens") <= 16).tail(1).to_dicts()
        for row in last:
            tokens = row["n_tokens"]
            said.append(f"{row['one_request']:.1f} against {row['decode']:.1f} ({panel})")
    return (
        f"{tokens} tokens of one request touch, against as many of different ones, {joined(said)} experts of a layer."
        if said
        else "No tape has both."
    )


def _unions_chart(found: pl.DataFrame) -> alt.VConcatChart:
    base = alt.Chart(alt.NamedData("unions"))
    x = _tokens("n_tokens", "tokens of an iteration (log scale)", found["n_tokens"].unique().sort().to_list())
    y = alt.Y("experts:Q", title="distinct experts of a layer (count)")
    whose = [words for words in TOKENS_OF.values() if words in set(found["whose"])]
    colours = dict(zip(TOKENS_OF.values(), (theme.BLUE, theme.VERMILLION, theme.GREEN), strict=True))
    colour = alt.Color("whose:N", scale=alt.Scale(domain=whose, range=[colours[n] for n in whose]), legend=LEGEND)
    forms = known({"recorded": 0, "power-law": 1}, found["form"])
    dash = alt.StrokeDash("form:N", scale=alt.Scale(domain=forms, range=[[1, 0], *[[6, 4]] * 5][: len(forms)]), legend=LEGEND)
    tips = [
        alt.Tooltip("whose:N", title="tokens"),
        alt.Tooltip("form:N"),
        alt.Tooltip("n_tokens:Q"),
        alt.Tooltip("experts:Q", format=".1f"),
    ]
    line = base.mark_line(point=alt.OverlayMarkDef(size=30)).encode(x, y, colour, dash, tooltip=tips)
    panels = found["panel"].unique(maintain_order=True).to_list()
    drawn = (
        line.properties(width=205, height=190).facet(_facet(panels), columns=COLUMNS, spacing=20).resolve_scale(y="independent")
    )
    return stacked([drawn], source(found, "no value in the paper's text", law=None))


def _facet(panels: Sequence[str]) -> alt.Facet:
    return alt.Facet(
        "panel:N", title=None, sort=list(panels), header=alt.Header(labelFontSize=13, labelFontWeight=600, labelLimit=225)
    )


def _tokens(field: str, title: str, values: Sequence[int]) -> alt.X:
    scale = alt.Scale(type="log", base=2, nice=False, padding=10)
    return alt.X(f"{field}:Q", title=title, scale=scale, axis=alt.Axis(values=list(values), format=",d", labelOverlap="greedy"))
