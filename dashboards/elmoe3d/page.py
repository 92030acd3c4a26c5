"""The ELMoE-3D page: which scheme wins and from which batch speculation pays, the paper's table beside ours, and past it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import duckdb
import polars as pl
import polars.selectors as cs

from tokentape.dashboards.elmoe3d import acceptance as elmoe3d_acceptance
from tokentape.dashboards.elmoe3d import checks as elmoe3d_checks
from tokentape.dashboards.elmoe3d import energy as elmoe3d_energy
from tokentape.dashboards.elmoe3d import explorer as elmoe3d_explorer
from tokentape.dashboards.elmoe3d import intensity as elmoe3d_intensity
from tokentape.dashboards.elmoe3d import mapping as elmoe3d_mapping
from tokentape.dashboards.elmoe3d import misses as elmoe3d_misses
from tokentape.dashboards.elmoe3d import platforms as elmoe3d_platforms
from tokentape.dashboards.elmoe3d import rows as elmoe3d_rows
from tokentape.dashboards.elmoe3d import sweeps as elmoe3d_sweeps
from tokentape.dashboards.elmoe3d import table as elmoe3d_table
from tokentape.dashboards.elmoe3d import winners as elmoe3d_winners
from tokentape.dashboards.elmoe3d.words import DIGITS, HEADLINE_FIT, HONESTY, LAW, LEVEL, models
from tokentape.dashboards.shell import Control, Page, with_parts

FILE, TITLE = "elmoe3d.html", "ELMoE-3D"
LEAD = (
    "A small, fast memory bonded onto the logic die keeps hot experts of a mixture; at larger batches the same experts, read "
    "as 4-bit slices, draft tokens that the whole model verifies. Which scheme wins, from which batch speculation pays, and "
    "what the paper's numbers allow to say."
)
MACHINE = Control("machine", "Machine's HB")
CONTROLS = (LAW, LEVEL, Control("model", "Model"), MACHINE, Control("batch", "Batch"))


def page(connection: duckdb.DuckDBPyConnection, size: int) -> Page:
    """The page over everything recorded; `size` says how many tapes and live models it carries."""
    points = elmoe3d_rows.points(connection)
    table = elmoe3d_table.rows(points)
    platforms, energy = elmoe3d_rows.platforms(connection), elmoe3d_rows.energy(connection)
    laws = {law for of in (points, platforms, energy) for law in of["law"]}
    choices = (*({"law": law} for law in elmoe3d_table.SHOWN_LAWS if law in laws), *_choices(points, table))
    own = Page(FILE, TITLE, LEAD, "elmoe3d.html", controls=CONTROLS, choices=choices)
    start = own.opening
    tables = [
        made | {"n_cells": 2 * table.height // max(1, table.select("law", "level").n_unique())}
        for made in elmoe3d_table.written(table)
    ]
    own = Page(
        FILE,
        TITLE,
        LEAD,
        "elmoe3d.html",
        controls=tuple(control for control in CONTROLS if control.name in start),
        choices=choices,
        extra={"tables": tables, "honesty": HONESTY},
    )
    batches = points.filter((pl.col("series") == "batch") & pl.col("can_draft"))
    whole = with_parts(
        own,
        elmoe3d_winners.part(table, batches, start),
        elmoe3d_explorer.part(points, start),
        elmoe3d_table.part(table, start),
        elmoe3d_checks.part(connection, elmoe3d_rows.checks(connection)),
        elmoe3d_intensity.part(elmoe3d_rows.intensity(connection), table, start),
        elmoe3d_mapping.mapping_part(elmoe3d_rows.mapping(connection), table, start),
        elmoe3d_mapping.latency_part(table, start),
        elmoe3d_platforms.part(platforms, start),
        elmoe3d_energy.part(energy, start),
        elmoe3d_misses.misses_part(elmoe3d_rows.misses(connection), size, start),
        elmoe3d_misses.unions_part(elmoe3d_rows.unions(connection), size),
        elmoe3d_acceptance.part(elmoe3d_rows.acceptance(connection), size, elmoe3d_rows.published_gain_frac(connection)),
        elmoe3d_sweeps.sweeps_part(points, start),
        elmoe3d_sweeps.alpha_part(points, start),
        elmoe3d_acceptance.measured_part(points),
    )
    return replace(
        whole, data={name: frame.with_columns(cs.float().round_sig_figs(DIGITS)) for name, frame in whole.data.items()}
    )


def _choices(points: pl.DataFrame, table: pl.DataFrame) -> Iterator[dict[str, str]]:
    """Menus but the law's; they open at L1, the paper's first model, the larger machine, the largest of its batches."""
    if points.is_empty():
        return
    shown = table if not table.is_empty() else points.filter(pl.col("fit") == HEADLINE_FIT)
    for level in shown["level"].unique().sort(descending=True):
        yield {"level": level}
    for model in models(shown):
        yield {"model": model}
    for machine in shown.select("machine", "gib").unique().sort("gib", descending=True)["machine"].unique(maintain_order=True):
        yield {"machine": machine}
    for batch in shown["batch"].unique().sort(descending=True):
        yield {"batch": str(batch)}
