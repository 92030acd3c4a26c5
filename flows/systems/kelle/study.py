"""The Kelle study: its cost model swept over systems, models, workloads and what is uncertain, and what that says of its numbers.

Only claims of role `calibrate` are fitted, by the knobs in hw/fits/kelle.toml (replay/kelle/fit.py). All of it is closed form and
takes seconds: it is computed anew with every run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl

from flows.console import note
from flows.systems.kelle import details, sweeps
from flows.systems.kelle.answers import answers
from flows.systems.kelle.checks import checks, recompute_lines
from flows.systems.kelle.settings import NAME, Settings, settings
from flows.systems.kelle.setup import setup
from warehouse.results import write_rows
from warehouse.tape import Store

__all__ = ["run", "settings"]

# Tables and what makes their rows; the first two are what answers are read from.
TABLES: dict[str, Callable[..., Any]] = {
    "kelle_points": sweeps.points,
    "kelle_requests": sweeps.requests,
    "kelle_recompute": details.recompute,
    "kelle_lifetimes": details.layer_lifetimes,
    "kelle_parts": details.parts,
    "kelle_retention": details.retention,
    "kelle_checks": checks,
}


def run(
    store: Store,
    progress: Callable[..., None],
    chosen: Settings | None = None,
    runner: str = "processes",
    workers: int | None = None,
    say: Callable[[str], None] = note,
) -> list[dict[str, Any]]:
    """Computes every table, writes it whole, and returns the answers. say: told how the paper's recomputation checks out."""
    made = setup(chosen or settings())
    rows = {}
    for n_done, (table, rows_of) in enumerate(TABLES.items()):
        progress(n_done, len(TABLES), table)
        rows[table] = list(rows_of(made))
        write_rows(store, table, rows[table], of=NAME)
    progress(len(TABLES), len(TABLES), "")
    points, requests = (pl.DataFrame(rows[name], infer_schema_length=None) for name in ("kelle_points", "kelle_requests"))
    found = answers(made, points, requests)
    write_rows(store, "answers", found, of=NAME)
    for line in recompute_lines(made):
        say(line)
    return found
