"""The ELMoE-3D page's Table 3: every cell's error as a heat map, and the cells written out."""

from __future__ import annotations

from typing import Any

import polars as pl

from tokentape.dashboards.elmoe3d import rows
from tokentape.dashboards.elmoe3d.words import HONESTY, LAWS, LEVEL, MODES, facts
from tokentape.dashboards.engine import Ask, Drawn, sentences, some
from tokentape.dashboards.units import joined, mean_of, percent, signed


def cells(ask: Ask) -> Drawn:
    table = some(ask.made(rows.table))
    found = errors(table)
    own = facts(table)
    panels = [f"{mode}, {machine}" for mode in MODES.values() for machine in own["machines"]]
    said = sentences(found, ["law", "level"], answer)
    return Drawn({"cells": found.drop("gib", "machine", "mode", "role")}, said, {**own, "panels": panels})


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
            f"{mode}: {percent(mean_of(ranked['size']))} on average, {within} of {of.height} cells within 10 %; worst "
            f"{signed(worst['error'])} ({worst['scheme']}, {worst['model']}, {worst['machine']}, batch {worst['batch']})"
        )
    hidden = found.filter(pl.col("error").is_null()).height
    withheld = f"; {hidden} cells have no open number and are predictions" if hidden else ""
    return f"{'; '.join(said) or 'No number of the paper is open'}{withheld}. {HONESTY}"


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
