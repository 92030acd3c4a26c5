"""The page of systems: what composed decisions gain on a tape, machine by machine, and why some cannot be had."""

from __future__ import annotations

from pathlib import Path

import duckdb
import polars as pl

from tokentape.dashboards.engine import Ask, Control, Drawn, Page, options, sentences, some, with_figures
from tokentape.dashboards.units import joined, quantity, signed

FILE, TITLE = "systems.html", "Systems"
LEAD = (
    "A system is up to eight decisions: schedule, draft, route, precision, residency, place, KV, refresh. Every system serves "
    "the same requests of a tape, with equal room for experts, on every machine."
)
BOUND, PLAIN = "bound", "lru_offload"  # as tokentape compare names them


def page(connection: duckdb.DuckDBPyConnection, size: int) -> Page:
    """The page over everything that was compared."""
    ask = Ask(connection, Path(__file__).parent, size)
    chosen = Control("chosen", "Comparison")
    own = Page(FILE, TITLE, LEAD, "page.html", controls=(chosen,), choices=options("chosen", ask("cells")["chosen"].unique()))
    return with_figures(own, ask, ("compared",), 4)


def compared(ask: Ask) -> Drawn:
    cells = some(ask("cells"))
    return Drawn({"cells": cells}, sentences(cells, ["chosen"], answer))


def answer(cells: pl.DataFrame) -> str:
    """The fastest system on every machine, beside plain LRU, and why some cannot be had."""
    said, ran = [], cells.filter(pl.col("tokens").is_not_null() & (pl.col("system") != BOUND))
    for (machine,), of in ran.group_by("machine", maintain_order=True):
        best, thrifty = of.sort("tokens")[-1], of.sort("joules")[0]
        plain = of.filter(pl.col("system") == PLAIN)["tokens"].to_list()
        over = f", {signed(best['tokens'][0] / plain[0] - 1.0)} against {PLAIN}" if plain and best["system"][0] != PLAIN else ""
        said.append(
            f"On {machine} {best['system'][0]} is fastest, {best['tokens'][0]:.3g} tokens/s{over}; "
            f"{thrifty['system'][0]} takes least energy, {quantity(thrifty['joules'][0], 'J')} per token."
        )
    empty = cells.drop_nulls("reason").group_by("reason", maintain_order=True).agg(pl.format("{} on {}", "system", "machine"))
    return " ".join([*said, *(f"No {joined(of)}: {reason}." for reason, of in empty.iter_rows())])
