"""The Layered Prefill page: the paper's numbers beside ours, what schedulers and their knobs do, and where layers do not help."""

from __future__ import annotations

from pathlib import Path

import duckdb

from tokentape.dashboards.engine import Ask, Page, with_figures
from tokentape.dashboards.layered_prefill.rows import STUDY

FILE, TITLE = "layered_prefill.html", "Layered Prefill"
LEAD = (
    "Serving MoE models: chunked prefill reads nearly all experts once per chunk, layered prefill takes the whole prompt "
    "through one group of layers at a time and reads them once. Which scheduler and which knob suit a model, a rate and a "
    "service level."
)
FIGURES = (
    "claims", "coverage", "chunks", "attainment", "split", "explorer", "schedule", "lives", "tokens", "front", "groups", "energy",
    "dense", "arrivals", "others", "elsewhere",
)  # fmt: skip


def asked(connection: duckdb.DuckDBPyConnection, size: int = 16) -> Ask:
    return Ask(connection, Path(__file__).parent, size, {"study": STUDY})


def page(connection: duckdb.DuckDBPyConnection, size: int) -> Page:
    """The page over everything recorded; `size` says how many settings and coverages its menus carry."""
    ask = asked(connection, size)
    return with_figures(Page(FILE, TITLE, LEAD, "page.html"), ask, FIGURES)
