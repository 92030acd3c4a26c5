"""The numbers of docs/findings: tables and values of a page, from the runs of its study in a store.

TOKENTAPE_STORE=STORE python -m bench.docs.findings PAGE [PAGE ...]

A page is named after its study. A table, a row per panel and line and a column per x, and a value, or the ratio of two:

    <!-- table SERIES; METRIC; UNIT -->  or, of one panel,  <!-- table SERIES; METRIC; UNIT; PANEL -->
    <!-- is METRIC; UNIT; SERIES | PANEL | LINE | X -->  or  <!-- is METRIC; x; SERIES | PANEL | LINE | X / SERIES | ... -->

Cells are medians over seeds and tapes, with the lowest and the highest of them where these are several.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from bench.docs import rewritten, write
from tokentape.flows.system_runs import VIEW
from tokentape.warehouse.results import read_rows, stored_run
from tokentape.warehouse.tape import Store

Place = tuple[str, ...]  # series, panel, line, x
Cells = Mapping[Place, Sequence[Mapping[str, float]]]  # metrics of every run, in the order of their seeds and tapes
UNITS = {"MB": 1e6, "GB": 1e9, "ms": 1e-3, "s": 1.0, "J": 1.0, "%": 0.01, "": 1.0}
KINDS = "table |is "


def cells(store: Store, study: str) -> Cells:
    """Every place of the study's figures that has runs."""
    found: dict[Place, list[dict[str, float]]] = {}
    rows = (row for row in read_rows(store, "study_points") if row["study"] == study)
    for row in sorted(rows, key=lambda row: (row["place"], row["trace_id"])):
        if row["result_id"] and (run := stored_run(store, VIEW, row["result_id"])):
            values = dict(run[1].select("metric", "value").iter_rows())
            found.setdefault((row["series"], row["panel"], row["line"], row["x"]), []).append(values)
    return found


def values_of(told: str, found: Cells) -> dict[Place, str]:
    """By place, what a table or a value says; `told`: what stands in its comment. Empty where runs are missing."""
    parts = [" ".join(part.split()) for part in told.split(";")]
    if "|" not in parts[2]:
        series, metric, unit, *panel = parts
        shown = {place: runs for place, runs in found.items() if place[0] == series and place[1] in (panel or [place[1]])}
        return {place: _worded([run[metric] for run in runs], unit) for place, runs in shown.items()}
    metric, unit, places = parts
    asked = [tuple(name.strip() for name in place.split(" | ")) for place in places.split(" / ")]
    if any(place not in found for place in asked):
        return {}
    each = [[run[metric] for run in found[place]] for place in asked]
    numbers = each[0] if len(each) == 1 else [a / b for a, b in zip(*each, strict=True)]
    return {asked[0]: _worded(numbers, "" if unit == "x" else unit)}


def _worded(numbers: Sequence[float], unit: str) -> str:
    """`13.1 (12.8-13.5)`; the unit stands in the page."""
    scaled = [number / UNITS[unit] for number in numbers]
    middle, low, high = (
        f"{value:.3g}" if abs(value) < 1e3 else f"{value:,.0f}" for value in (median(scaled), min(scaled), max(scaled))
    )
    return middle if low == high else f"{middle} ({low} to {high})"


def table(values: Mapping[Place, str]) -> str:
    """Rows of panels and lines, columns of x."""
    across = list(dict.fromkeys(place[3] for place in values))
    panels = len({place[1] for place in values}) > 1
    head = [*(["panel"] if panels else []), "line", *across]
    lines = [head, ["---"] * len(head)]
    for panel, line in dict.fromkeys(place[1:3] for place in values):
        own = {place[3]: text for place, text in values.items() if place[1:3] == (panel, line)}
        lines.append([*([panel] if panels else []), line, *(own.get(x, "") for x in across)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def refreshed(text: str, found: Cells) -> str:
    """The page with these cells. Raises ValueError naming what the study has not run."""

    def made(words: str, _: str) -> str:
        kind, _, told = words.partition(" ")
        values = values_of(told, found)
        if not values:
            raise ValueError(f"{told}: no such runs in this store; run the study first")
        return f"\n{table(values)}\n" if kind == "table" else next(iter(values.values()))

    return rewritten(text, KINDS, made)


if __name__ == "__main__":
    for page in sys.argv[1:]:
        made = cells(Store(os.environ.get("TOKENTAPE_STORE")), Path(page).stem)
        write("findings PAGE [PAGE ...]", [page], partial(refreshed, found=made))
