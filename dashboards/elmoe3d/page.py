"""The ELMoE-3D page: which scheme wins and from which batch speculation pays, the paper's table beside ours, and past it."""

from __future__ import annotations

from pathlib import Path

import duckdb

from tokentape.dashboards.elmoe3d.drawn import written
from tokentape.dashboards.elmoe3d.words import DIGITS, HONESTY, LAW, LAWS, LEVEL, PAPER
from tokentape.dashboards.engine import Ask, Control, Page, options, with_figures
from tokentape.warehouse import models

FILE, TITLE = "elmoe3d.html", "ELMoE-3D"
LEAD = (
    "A small, fast memory bonded onto the logic die keeps hot experts of a mixture; at larger batches the same experts, read "
    "as 4-bit slices, draft tokens that the whole model verifies. Which scheme wins, from which batch speculation pays, and "
    "what the paper's numbers allow to say."
)
MACHINE = Control("machine", "Machine's HB")
CONTROLS = (LAW, LEVEL, Control("model", "Model"), MACHINE, Control("batch", "Batch"))
SHOWN = {"paper_law", "physical", "events"}  # hit models of the menu; Che is among the checks
FIGURES = (
    "winners", "thresholds", "explorer", "cells", "checks", "claims", "intensity", "mapping", "latency", "platforms", "energy",
    "misses", "unions", "pool", "shared", "bits", "drafters", "replayed", "sweeps", "alpha", "measured",
)  # fmt: skip


def asked(connection: duckdb.DuckDBPyConnection, size: int = 16) -> Ask:
    """The page's questions; most of them are of its points, `shown`."""
    top_k = {name: models.load(name).geometry.top_k for name in models.names()}
    told = {"study": PAPER, "models": list(top_k), "top_k": list(top_k.values())}
    ask = Ask(connection, Path(__file__).parent, size, told)
    ask.name("shown", "points")
    return ask


def page(connection: duckdb.DuckDBPyConnection, size: int) -> Page:
    """The page over everything recorded; `size` says how many tapes and live models it carries.

    Menus open at L1, the paper's first model, the larger machine, the largest of its batches.
    """
    ask = asked(connection, size)
    points, cells = ask("points"), ask("table3")
    laws = {law for of in (points, ask("platforms"), ask("energy")) for law in of["law"]} & SHOWN
    shown = points.filter(fit="calibrate") if cells.is_empty() else cells
    choices = (
        *options("law", (law for law in LAWS if law in laws)),
        *options("level", shown["level"].unique().sort(descending=True)),
        *options("model", shown["model"].unique().sort(descending=True)),
        *options("machine", shown.sort("gib", descending=True)["machine"].unique(maintain_order=True)),
        *options("batch", shown["batch"].unique().sort(descending=True)),
    )
    n_cells = 2 * cells.height // max(1, cells.select("law", "level").n_unique())
    extra = {"tables": [made | {"n_cells": n_cells} for made in written(cells)], "honesty": HONESTY}
    return with_figures(Page(FILE, TITLE, LEAD, "elmoe3d.html", (), CONTROLS, choices, extra=extra), ask, FIGURES, DIGITS)
