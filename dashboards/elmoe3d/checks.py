"""The ELMoE-3D page on what is reproduced: Table 3 cell by cell, errors against their bars, and the paper's summary numbers."""

from __future__ import annotations

from typing import Any

import polars as pl

from tokentape.dashboards import claims
from tokentape.dashboards.elmoe3d import rows
from tokentape.dashboards.elmoe3d.words import HEADLINE_FIT, LAWS, LEVEL, MODES, PAPER, facts
from tokentape.dashboards.engine import Ask, Drawn, some
from tokentape.dashboards.units import joined, percent, signed

ERRORS, SHARES = "error (%; lower is better)", "share, ratio or rank correlation (%; 100 is best)"
TABLE_PLACE = "Table 3"  # shown cell by cell in figures of its own
MOST_ERROR = 0.32  # of the axis; larger ones stand at its end


def cells(ask: Ask) -> Drawn:
    table = some(ask.made(rows.table))
    found = errors(table)
    own = facts(table)
    panels = [f"{mode}, {machine}" for mode in MODES.values() for machine in own["machines"]]
    return Drawn({"cells": found.drop("gib", "machine", "mode", "role")}, facts={**own, "panels": panels}, said=found)


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


def checks(ask: Ask) -> Drawn:
    found = some(held(ask("checks")))
    panels = [
        {
            "item": panel,
            "scale": scale,
            "width": width,
            "names": found.filter(pl.col("panel") == panel)["block"].unique().sort().to_list(),
        }
        for panel, width, scale in ((ERRORS, 290, f"domain=[0,{MOST_ERROR}]"), (SHARES, 230, "zero=no nice=yes"))
    ]
    own = {
        "most": percent(MOST_ERROR, 0),
        "panels": panels,
    }
    return Drawn({"checks": found}, facts=facts(found) | own)


def summary(ask: Ask) -> Drawn:
    """The paper's other numbers; Table 3 is shown cell by cell."""
    stated = claims.rows(ask.connection, PAPER).filter(pl.col("location") != TABLE_PLACE)
    answered = some(stated.drop_nulls("replay"))
    return Drawn({"claims": answered}, facts={"ours": "replay (over what is not given)"}, said=stated)


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
