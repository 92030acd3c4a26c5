"""The Kelle page: what five systems gain and lose in a cost model, what eviction does to recorded and live attention, and both
beside the paper's numbers."""

from __future__ import annotations

from pathlib import Path

import duckdb

from tokentape.dashboards.engine import Ask, Page, options, with_figures
from tokentape.dashboards.kelle.words import DIGITS, LIVE, NAME, READING, readings

FILE, TITLE = "kelle.html", "Kelle"
LEAD = (
    "KV caches on embedded DRAM: tokens that heads hardly attend to are evicted, popular ones recomputed from their layer input, "
    "and what stays is refreshed as rarely as its worth allows. What that saves, what it costs in quality, and what the paper's "
    "numbers ask for."
)
FIGURES = (
    "gains", "chip", "budgets", "recall", "pareto", "flips", "refresh", "orderings", "kept", "along", "drift", "explorer",
    "tables", "sweeps", "memory", "settings", "retention", "lifetimes", "roof", "requests", "errors", "sensitivity", "checks",
    "area", "claims",
)  # fmt: skip


def asked(connection: duckdb.DuckDBPyConnection, size: int = 16) -> Ask:
    return Ask(connection, Path(__file__).parent, size, {"paper": NAME, "study": NAME})


def page(connection: duckdb.DuckDBPyConnection, size: int) -> Page:
    """The page over everything recorded; `size` says how many tapes and live models it carries."""
    ask = asked(connection, size)
    own = Page(
        FILE,
        TITLE,
        LEAD,
        "page.html",
        controls=(READING, LIVE),
        choices=(*options("reading", readings(ask)), *options("live", ask("lives")["model"])),
    )
    return with_figures(own, ask, FIGURES, DIGITS)
