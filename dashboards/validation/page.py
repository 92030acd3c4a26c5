"""The validation page: how far the cost models are from measurements, on rows fitted, held out and of other devices."""

from __future__ import annotations

from pathlib import Path

import duckdb

from tokentape.dashboards.engine import Ask, Control, Page, options, with_figures
from tokentape.dashboards.validation.words import OPERATORS

FILE, TITLE = "validation.html", "Validation"
LEAD = (
    "How far predictions are from measurements: real engines, beside what other simulators reach; GPU operators on the rows they "
    "were fitted on, on rows never seen, and on a device never seen; DRAM bandwidth in closed form against a simulator."
)
POINTS_PER_PAGE_UNIT = 12  # points of each operator, split and device, per unit of the page's size
FIGURES = ("engines", "stages", "over_time", "errors", "points", "regimes", "dram")


def asked(connection: duckdb.DuckDBPyConnection, size: int = 16) -> Ask:
    return Ask(connection, Path(__file__).parent, size, {"n": POINTS_PER_PAGE_UNIT * size})


def page(connection: duckdb.DuckDBPyConnection, size: int) -> Page:
    """The page over everything recorded; `size` says how many points of each operator, split and device it carries."""
    ask = asked(connection, size)
    found = ask("points")["operator"].replace(OPERATORS).str.replace_all("_", " ", literal=True)
    choices = options("operator", found.unique(maintain_order=True))
    own = Page(FILE, TITLE, LEAD, "page.html", controls=(Control("operator", "Operator"),), choices=choices)
    return with_figures(own, ask, FIGURES)
