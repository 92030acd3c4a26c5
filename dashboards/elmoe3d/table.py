"""The ELMoE-3D page's Table 3: every cell's error as a heat map, and the cells written out."""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.answers import percent
from tokentape.dashboards.claims import signed
from tokentape.dashboards.elmoe3d.winners import NO_TABLE
from tokentape.dashboards.elmoe3d.words import HEADER, HEADLINE_FIT, HONESTY, LAWS, LEVEL, MODES, SCHEMES, TABLE, models, source
from tokentape.dashboards.panels import known, params, stacked
from tokentape.dashboards.shell import Figure, Part
from tokentape.dashboards.units import joined

QUESTION = "How wrong is each cell of Table 3?"
SHOWN_LAWS = ("paper_law", "physical")  # of the menu; Che is among the checks
SATURATED = 0.4  # errors beyond have the darkest colour
FAR = 0.2  # from which a cell's words are white


def rows(points: pl.DataFrame) -> pl.DataFrame:
    """Table 3 under the hit models of the menu and every level, at constants fitted on no predicted row."""
    kept = (pl.col("series") == TABLE) & (pl.col("fit") == HEADLINE_FIT) & pl.col("law").is_in(SHOWN_LAWS)
    turn = pl.col("scheme").replace_strict({name: n for n, name in enumerate(SCHEMES)}, default=len(SCHEMES))
    order = ["law", "level", "model", "gib", turn, "batch"]
    return points.filter(kept).sort(order, descending=[False, True, True, False, False, False])


def part(table: pl.DataFrame, start: dict[str, str]) -> Part:
    """The heat map. table: `rows`."""
    if table.is_empty():
        return Part((Figure("cells", QUESTION, None, {}, (), "", NO_TABLE),))
    found = errors(table)
    said = {f"{law}|{level}": answer(of) for (law, level), of in found.group_by(["law", "level"], maintain_order=True)}
    reading = (
        "Ours over the paper's number, less one, in percent; red: ours is faster. Grey: the paper's number is withheld, and "
        "the cell shows our predicted speed-up. The hit law x^beta is steep near x = 0, so cells with nearly no room for "
        "experts miss most. The physical bound lets no more bytes hit than are resident; it is not tuned to the table, and "
        "its errors at larger batches are a finding about the paper's numbers."
    )
    return Part(
        (Figure("cells", QUESTION, _chart(found, table, start), said, ("law", "level"), reading, NO_TABLE),),
        data={"cells": found.drop("gib", "machine", "mode", "role")},
    )


def errors(table: pl.DataFrame) -> pl.DataFrame:
    """A row per cell and mode: error, or the prediction where the paper's number is withheld."""
    keys = ["law", "level", "machine", "gib", "model", "scheme", "batch"]
    each = [
        table.select(
            *keys,
            value=f"phi_{mode}",
            published=f"published_{mode}",
            role=f"role_{mode}",
            mode=pl.lit(words),
            row=pl.format(f"{words}, {{}}", "machine"),
        )
        for mode, words in MODES.items()
    ]
    found = pl.concat(each).with_columns(error=pl.col("value") / pl.col("published") - 1)
    return found.with_columns(pl.Series("said", [_said(row) for row in found.to_dicts()], pl.String))


def _said(row: dict[str, Any]) -> str:
    if row["error"] is None:
        return f"{row['value']:.1f}×"
    text = f"{100 * row['error']:+.0f}"
    return "0" if text in ("+0", "-0") else text


def answer(found: pl.DataFrame) -> str:
    """Mean error, how many cells are near, and the worst, per mode; rows of one law and level."""
    said = []
    for (mode,), of in found.drop_nulls("error").group_by(["mode"], maintain_order=True):
        ranked = of.with_columns(size=pl.col("error").abs()).sort("size", "model", "scheme", descending=[True, False, False])
        worst = ranked.row(0, named=True)
        within = ranked.filter(pl.col("size") <= 0.1).height
        said.append(
            f"{mode}: {percent(float(ranked['size'].mean()))} on average, {within} of {of.height} cells within 10 %; worst "
            f"{signed(worst['error'])} ({worst['scheme']}, {worst['model']}, {worst['machine']}, batch {worst['batch']})"
        )
    hidden = found.filter(pl.col("error").is_null()).height
    withheld = f"; {hidden} cells have no open number and are predictions" if hidden else ""
    return f"{'; '.join(said) or 'No number of the paper is open'}{withheld}. {HONESTY}"


def _chart(found: pl.DataFrame, table: pl.DataFrame, start: dict[str, str]) -> alt.VConcatChart:
    base = alt.Chart(alt.NamedData("cells")).transform_filter("datum.law === law && datum.level === level")
    x = alt.X("batch:O", title="batch (requests)", axis=alt.Axis(labelAngle=0, domain=False, ticks=False))
    y = alt.Y("model:N", title=None, sort=models(found), axis=alt.Axis(domain=False, ticks=False, labelLimit=150))
    scale = alt.Scale(
        domain=[-SATURATED, 0, SATURATED], range=[theme.BLUE, "#ffffff", theme.VERMILLION], clamp=True, interpolate="rgb"
    )
    legend = alt.Legend(title="ours / paper - 1", format="+.0%", orient="top", gradientLength=220, titleOrient="left")
    tips = [
        alt.Tooltip("model:N"),
        alt.Tooltip("scheme:N"),
        alt.Tooltip("row:N", title="mode, HB"),
        alt.Tooltip("batch:Q"),
        alt.Tooltip("published:Q", title="paper (×)", format=".2f"),
        alt.Tooltip("value:Q", title="ours (×)", format=".2f"),
        alt.Tooltip("error:Q", format="+.1%"),
    ]
    stated = base.transform_filter("isValid(datum.error)")
    cell = stated.mark_rect(stroke=theme.GRID).encode(x, y, alt.Color("error:Q", scale=scale, legend=legend), tooltip=tips)
    hidden = base.transform_filter("!isValid(datum.error)").mark_rect(color="#d5d9de", stroke="white").encode(x, y, tooltip=tips)
    is_dark = f"abs(datum.error) >= {FAR}"
    words = [
        base.transform_filter(where).mark_text(fontSize=11.5, color=colour).encode(x, y, text="said:N")
        for where, colour in ((is_dark, "white"), (f"!({is_dark})", theme.INK))
    ]
    machines = table.select("machine", "gib").unique().sort("gib")["machine"].to_list()
    panels = [f"{mode}, {machine}" for mode in MODES.values() for machine in machines]
    drawn = alt.layer(hidden, cell, *words).properties(width=200, height=92)
    facet = drawn.facet(
        row=alt.Row("row:N", title=None, header=HEADER, sort=panels),
        column=alt.Column("scheme:N", title=None, header=HEADER, sort=known(SCHEMES, found["scheme"])),
        spacing=12,
    )
    return stacked([facet], source(table, "grey: withheld, predicted", level="level"), params(start, "law", "level"))


def written(table: pl.DataFrame) -> list[dict[str, Any]]:
    """The table below the chart, one per hit model and level: groups of a model and machine, rows of a scheme and batch."""
    found = []
    for (law, level), of in table.group_by(["law", "level"], maintain_order=True):
        groups = [
            {"title": f"{model}, {machine}", "rows": [_row(row) for row in group.to_dicts()]}
            for (model, machine), group in of.group_by(["model", "machine"], maintain_order=True)
        ]
        found.append({"law": law, "level": level, "title": joined([LAWS[str(law)], LEVEL.labels[str(level)]]), "groups": groups})
    return found


def _row(row: dict[str, Any]) -> dict[str, Any]:
    cells = []
    for mode in MODES:
        ours, published = row[f"phi_{mode}"], row[f"published_{mode}"]
        cells += [f"{published:.2f}" if published is not None else "withheld", f"{ours:.2f}"]
        cells.append(signed(ours / published - 1) if published is not None else "predicted")
        cells.append(row[f"role_{mode}"] or "")
    return {"scheme": row["scheme"], "batch": row["batch"], "alpha": f"{row['alpha']:.2f}", "cells": cells}
