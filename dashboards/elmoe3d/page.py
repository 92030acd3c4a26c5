"""The ELMoE-3D page's points, by name, the paper's table beside ours, and what a live model accepts."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle
from typing import Any

import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.engine import Ask, Control, Drawn, known, options, some
from tokentape.dashboards.engine.ask import words_of
from tokentape.dashboards.units import joined, signed
from tokentape.warehouse import models

WORDS = words_of("elmoe3d")
HOTNESS, RUNS = "hotness", ("pool", "replay")
LOOKS = (theme.VERMILLION, theme.QUIET, theme.BLUE, theme.GREEN, theme.PURPLE, theme.INK)


def ready(ask: Ask) -> Ask:
    """Most of the page's questions are of its points, `shown`."""
    top_k = {name: models.load(name).geometry.top_k for name in models.names()}
    made = replace(ask, params={**ask.params, "models": list(top_k), "top_k": list(top_k.values())})
    made.name("shown", "points")
    return made


def own(ask: Ask) -> dict[str, Any]:
    """The paper's table."""
    cells = ask("table3")
    n_cells = 2 * cells.height // max(1, cells.select("law", "level").n_unique())
    return {"extra": {"tables": [made | {"n_cells": n_cells} for made in _written(cells)], "honesty": WORDS["HONESTY"]}}


def _written(table: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """The table below the chart, one per hit model and level: groups of a model and machine, rows of a scheme and batch."""
    for (law, level), of in table.group_by(["law", "level"], maintain_order=True):
        groups = [
            {"title": f"{model}, {machine}", "rows": [_row(row) for row in group.to_dicts()]}
            for (model, machine), group in of.group_by(["model", "machine"], maintain_order=True)
        ]
        title = joined([WORDS["LAWS"][law], WORDS["LEVELS"][level]])
        yield {"law": law, "level": level, "title": title, "groups": groups}


def _row(row: dict[str, Any]) -> dict[str, Any]:
    cells = []
    for mode in WORDS["MODES"]:
        ours, published = row[f"phi_{mode}"], row[f"published_{mode}"]
        stated = ("withheld", "predicted") if published is None else (f"{published:.2f}", signed(ours / published - 1))
        cells += [stated[0], f"{ours:.2f}", stated[1], row[f"role_{mode}"] or ""]
    return {"scheme": row["scheme"], "batch": row["batch"], "alpha": f"{row['alpha']:.2f}", "cells": cells}


def accepted(ask: Ask, name: str, series: str, metric: str, x: str, colour: str) -> Drawn:
    """What a live model accepts, one figure's lines: what varies along x and what a colour means. The first live models."""
    lives = some(ask("acceptance"))["live"].unique().sort().head(ask.size)
    is_of = pl.col("series") == series
    if colour == "run":  # a replay stands beside the live run of the same pools
        is_of = pl.col("series").is_in(RUNS) & (pl.col("pool_policy") == HOTNESS)
    is_single = series in ("bits", "drafters", "replay")  # else a panel per draft
    order = -pl.col("bits_low").cast(pl.Int64) if x == "bits" else pl.lit(0)
    kept = ["live", "n_seeds", "n_rounds", "fidelity", "value", "low", "high", colour]
    rows = ask("acceptance").filter(
        is_of, pl.col("metric").is_in([metric, f"tree_{metric}"]), pl.col("live").is_in(lives.implode())
    )
    told = rows.select(*kept, pl.col(x).alias("at"), panel=pl.lit("") if is_single else pl.col("how"), order=order)
    found = some(told.sort("live", "panel", colour, "order", "at", maintain_order=True))
    names = known(dict.fromkeys((*WORDS["CUTS"].values(), "live run", "replayed from a tape"), ""), found[colour])
    spare, n_panels = cycle(LOOKS), found["panel"].n_unique()
    own = {
        "of": colour,
        "names": names,
        "colours": [WORDS["ACCEPTED"].get(one) or next(spare) for one in names],
        "panels": found["panel"].unique(maintain_order=True).to_list(),
        "facet": "panel:N | - | sort=@panels | @HEADER" if n_panels > 1 else "",
        "width": 430 if n_panels > 1 else 680,
        "stated": ask("published_gain_frac").drop_nulls("gain"),
        "x_words": "batch {at:g}" if x == "batch" else "a pool of {at:percent 0}",
    }
    control, choices = Control("live", "Live model"), options("live", lives)
    return Drawn({f"accepted_{name}": found}, facts=own, controls=(control,), choices=choices)
