"""The ELMoE-3D page on what is reproduced: errors against their bars under every hit model, and the paper's summary numbers."""

from __future__ import annotations

import altair as alt
import duckdb
import polars as pl

from tokentape.dashboards import claims, claims_chart, theme
from tokentape.dashboards.answers import percent
from tokentape.dashboards.elmoe3d.rows import PAPER
from tokentape.dashboards.elmoe3d.words import HEADLINE_FIT, HONESTY, LAW_COLOURS, LAWS, LEGEND, STUDY, source
from tokentape.dashboards.panels import known, stacked
from tokentape.dashboards.shell import Figure, Part
from tokentape.dashboards.units import joined

NO_CHECKS = f"Nothing to draw: no error against the paper's rows was computed. {STUDY}"
NO_CLAIMS = f"Nothing to draw: no number of the paper is answered. {STUDY}"
ERRORS, SHARES = "error (%; lower is better)", "share, ratio or rank correlation (%; 100 is best)"
LEVEL_SHAPES = {"L1": "circle", "L0": "triangle-up"}
TABLE_PLACE = "Table 3"  # shown cell by cell in figures of its own
MOST_ERROR = 0.32  # of the axis; larger ones stand at its end


def part(connection: duckdb.DuckDBPyConnection, checks: pl.DataFrame) -> Part:
    """checks: rows.checks."""
    summary = claims.rows(connection, PAPER).filter(pl.col("location") != TABLE_PLACE)
    found = held(checks)
    data = {"checks": found, "claims": summary.drop_nulls("replay")}
    return Part(
        (_checks_figure(found), _claims_figure(summary)),
        data={name: frame for name, frame in data.items() if not frame.is_empty()},
    )


def held(checks: pl.DataFrame) -> pl.DataFrame:
    """Errors, shares and ratios of the fit that predicts, the panel they belong to, and whether the bar is held."""
    if checks.is_empty():
        return checks
    is_error = pl.col("block").str.contains("error") & ~pl.col("block").str.contains("share within")
    kept = checks.filter((pl.col("fit") == HEADLINE_FIT) & (pl.col("unit") == "1"))
    inside = (pl.col("bar_low") <= pl.col("value")) & (pl.col("value") <= pl.col("bar_high"))
    return kept.with_columns(
        panel=pl.when(is_error).then(pl.lit(ERRORS)).otherwise(pl.lit(SHARES)),
        law_words=pl.col("law").replace(LAWS),
        inside=inside,
        shown=pl.when(is_error).then(pl.min_horizontal("value", pl.lit(MOST_ERROR))).otherwise("value"),
        form=pl.format("{}, {}", pl.col("law").replace(LAWS), "level"),
    )


def _checks_figure(found: pl.DataFrame) -> Figure:
    question = "Is the paper's table reproduced, and does a physical cache reproduce it too?"
    if found.is_empty():
        return Figure("checks", question, None, {}, (), "", NO_CHECKS)
    reading = (
        "Shaded: what counts as reproduced, set before the fit for the paper law at L1. The paper law lets a share x^beta of "
        "the bytes hit, whatever the batch; the physical bound lets no more hit than are resident; Che's approximation is an "
        f"LRU under independent draws. Only the paper law was fitted. Errors above {percent(MOST_ERROR, 0)} stand at the end "
        "of the axis."
    )
    return Figure("checks", question, _checks_chart(found), {"": checks_answer(found)}, (), reading, NO_CHECKS)


def checks_answer(found: pl.DataFrame) -> str:
    """How many bars the headline and each other hit model hold, and the mean errors of each."""
    said = []
    for law in known(LAWS, found["law"]):
        of = found.filter(pl.col("law") == law, pl.col("level") == "L1")
        barred = of.drop_nulls("bar_low")
        if barred.is_empty():
            continue
        missed = barred.filter(~pl.col("inside"))["block"].to_list()
        errors = dict(of.select("block", "value").iter_rows())
        means = [
            f"{words} {percent(errors[block])}"
            for words, block in (("AR", "Phi_AR error, open rows, mean"), ("SD", "Phi_SD error, open rows, mean"))
            if block in errors
        ]
        kept = f"{LAWS.get(law, law)} holds {barred.height - len(missed)} of {barred.height} bars"
        said.append(kept + (f" (mean errors over open rows: {joined(means)})" if means else ""))
    first = "; ".join(said)
    return f"{first[:1].upper()}{first[1:]}. {HONESTY}" if said else f"No bar is set. {HONESTY}"


def _checks_chart(found: pl.DataFrame) -> alt.VConcatChart:
    base = alt.Chart(alt.NamedData("checks"))
    laws = known(LAWS, found["law"])
    colour = alt.Color(
        "law_words:N",
        scale=alt.Scale(domain=[LAWS.get(n, n) for n in laws], range=[LAW_COLOURS.get(n, theme.QUIET) for n in laws]),
        legend=LEGEND,
    )
    shape = alt.Shape(
        "level:N",
        scale=alt.Scale(domain=list(LEVEL_SHAPES), range=list(LEVEL_SHAPES.values())),
        legend=LEGEND,
    )
    tips = [
        alt.Tooltip("block:N", title="what"),
        alt.Tooltip("form:N"),
        alt.Tooltip("value:Q", format=".4f"),
        alt.Tooltip("n:Q", title="rows"),
        alt.Tooltip("bar_low:Q", title="least"),
        alt.Tooltip("bar_high:Q", title="most"),
    ]
    panels = []
    for panel, width, form, domain in ((ERRORS, 290, ".0%", [0, MOST_ERROR]), (SHARES, 230, ".0%", None)):
        of = base.transform_filter(f"datum.panel === {theme.quote(panel)}")
        scale = alt.Scale(domain=domain) if domain else alt.Scale(zero=False, nice=True)
        names = found.filter(pl.col("panel") == panel)["block"].unique(maintain_order=True).sort().to_list()
        y = alt.Y("block:N", title=None, sort=names, axis=alt.Axis(labelLimit=390, ticks=False, domain=False, grid=True))
        x = alt.X("shown:Q", title=panel, scale=scale, axis=alt.Axis(format=form, tickCount=6))
        bar = of.transform_filter("isValid(datum.bar_low)").transform_aggregate(
            low="min(bar_low)", high="max(bar_high)", groupby=["block"]
        )
        shade = bar.mark_bar(color="#cfe8dc", height=13).encode(alt.X("low:Q", scale=scale), y, alt.X2("high:Q"))
        marks = of.mark_point(size=70, filled=True, opacity=0.9).encode(x, y, colour, shape, tooltip=tips)
        panels.append(alt.layer(shade, marks).properties(width=width, height=alt.Step(21)))
    title = source(found, "shaded: counts as reproduced", law=None)
    return stacked([alt.hconcat(*panels, spacing=20)], title)


def _claims_figure(stated: pl.DataFrame) -> Figure:
    question = "How near are our numbers to what the paper says in its text?"
    if stated.drop_nulls("replay").is_empty():
        return Figure("claims", question, None, {}, (), "", NO_CLAIMS)
    reading = (
        "Bands: over what the paper does not give (verified nodes, near-memory bandwidth and placement, energy constants). "
        "Figures 14 and 15 of the paper average four data sets, of which only MT-Bench's acceptance is printed; they are "
        "reported, no bar is set. Counted physically: the same number under the physical bound. Table 3 has figures of its "
        "own."
    )
    chart = stacked(
        [claims_chart.ratios(spread="over what is not given")],
        source(stated.drop("fidelity", strict=False), law="paper law unless said", level="L1"),
    )
    return Figure("claims", question, chart, {"": f"{claims.answer(stated)} {HONESTY}"}, (), reading, NO_CLAIMS)
