"""The CXL GPU-NDP page: how much faster experts decode where they lie, what routing and low bits allow, and what it rests on."""

from __future__ import annotations

from pathlib import Path

import duckdb

from tokentape.dashboards.cxl_ndp.words import DIGITS, NAME, PAPER, ROUTING, SETUP, setups
from tokentape.dashboards.engine import Ask, Page, options, with_figures

FILE, TITLE = "cxl_ndp.html", "CXL GPU-NDP"
LEAD = (
    "A GPU holds the attention and a few hot experts of every layer; the others lie in a CXL memory that computes. Instead of "
    "experts, activations cross the link. What placing experts by the prompt, running the others at 2 or 3 bits where they "
    "lie, and working at the same time are worth, and what they cost a model."
)
FIGURES = (
    "throughput", "requests", "lanes", "use", "likeness", "tables", "bits", "losses", "quality", "variants", "orderings",
    "accuracy", "sweeps", "ablations", "others", "capacity", "claims", "checks",
)  # fmt: skip


def asked(connection: duckdb.DuckDBPyConnection, size: int = 16) -> Ask:
    return Ask(connection, Path(__file__).parent, size, {"study": NAME, "paper": PAPER})


def page(connection: duckdb.DuckDBPyConnection, size: int) -> Page:
    """The page over everything recorded; `size` says how many layers and loss tables it carries."""
    ask = asked(connection, size)
    models, routings = setups(ask("points"), ask("requests")), setups(ask("hits"), ask("similarity"), ask("use"))
    own = Page(
        FILE,
        TITLE,
        LEAD,
        "page.html",
        controls=(SETUP, ROUTING),
        choices=(*options(SETUP.name, models), *options(ROUTING.name, routings)),
    )
    return with_figures(own, ask, FIGURES, DIGITS)
