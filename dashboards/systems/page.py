"""The page of systems: what composed decisions gain on a tape, machine by machine, and why some cannot be had."""

from __future__ import annotations

from pathlib import Path

import duckdb

from tokentape.dashboards.engine import Ask, Control, Page, options, with_figures

FILE, TITLE = "systems.html", "Systems"
LEAD = (
    "A system is up to eight decisions: schedule, draft, route, precision, residency, place, KV, refresh. Every system serves "
    "the same requests of a tape, with equal room for experts, on every machine."
)


def page(connection: duckdb.DuckDBPyConnection, size: int) -> Page:
    """The page over everything that was compared."""
    ask = Ask(connection, Path(__file__).parent, size)
    controls = Control("chosen", "Comparison"), Control("finding", "Study")
    found = ask("points")["finding"].unique(maintain_order=True)
    choices = (*options("chosen", ask("cells")["chosen"].unique()), *options("finding", found))
    own = Page(FILE, TITLE, LEAD, "page.html", controls=controls, choices=choices)
    return with_figures(own, ask, ("compared", "composed"), 4)
