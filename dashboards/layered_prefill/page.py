"""The Layered Prefill page: the paper's numbers beside ours, what schedulers and their knobs do, and where layers do not help."""

from __future__ import annotations

import duckdb

from tokentape.dashboards.layered_prefill import beside as layered_beside
from tokentape.dashboards.layered_prefill import claims as layered_claims
from tokentape.dashboards.layered_prefill import coverage as layered_coverage
from tokentape.dashboards.layered_prefill import dense as layered_dense
from tokentape.dashboards.layered_prefill import energy as layered_energy
from tokentape.dashboards.layered_prefill import explorer as layered_explorer
from tokentape.dashboards.layered_prefill import knobs as layered_knobs
from tokentape.dashboards.layered_prefill import rates as layered_rates
from tokentape.dashboards.layered_prefill import rows as layered_rows
from tokentape.dashboards.layered_prefill import window as layered_window
from tokentape.dashboards.shell import Page, with_parts

FILE, TITLE = "layered_prefill.html", "Layered Prefill"
LEAD = (
    "Serving MoE models: chunked prefill reads nearly all experts once per chunk, layered prefill takes the whole prompt "
    "through one group of layers at a time and reads them once. Which scheduler and which knob suit a model, a rate and a "
    "service level."
)


def page(connection: duckdb.DuckDBPyConnection, size: int) -> Page:
    """The page over everything recorded; `size` says how many settings and coverages its menus carry."""
    points = layered_rows.points(connection)
    return with_parts(
        Page(FILE, TITLE, LEAD, "page.html"),
        layered_claims.part(connection),
        layered_coverage.coverage_part(connection, size),
        layered_coverage.chunk_part(points),
        layered_rates.part(points),
        layered_explorer.part(connection, points, size),
        layered_window.part(connection, points),
        layered_knobs.part(points),
        layered_energy.part(points),
        layered_dense.part(connection, points),
        layered_beside.part(points),
    )
