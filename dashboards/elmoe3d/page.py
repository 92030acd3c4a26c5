"""The ELMoE-3D page's points, by name, its menus, and the paper's table beside ours."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tokentape.dashboards.elmoe3d.drawn import written
from tokentape.dashboards.elmoe3d.words import HONESTY, LAW, LAWS, LEVEL
from tokentape.dashboards.engine import Ask, Control, options
from tokentape.warehouse import models

MACHINE = Control("machine", "Machine's HB")
CONTROLS = (LAW, LEVEL, Control("model", "Model"), MACHINE, Control("batch", "Batch"))
SHOWN = {"paper_law", "physical", "events"}  # hit models of the menu; Che is among the checks


def ready(ask: Ask) -> Ask:
    """Most of the page's questions are of its points, `shown`."""
    top_k = {name: models.load(name).geometry.top_k for name in models.names()}
    made = replace(ask, params={**ask.params, "models": list(top_k), "top_k": list(top_k.values())})
    made.name("shown", "points")
    return made


def own(ask: Ask) -> dict[str, Any]:
    """Menus open at L1, the paper's first model, the larger machine, the largest of its batches."""
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
    return {"controls": CONTROLS, "choices": choices, "extra": extra}
