"""The front page: a scoreboard of what was found and how far off it is; what is in the store, and how each number was made."""

import json
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

from tokentape.dashboards import rows
from tokentape.dashboards.engine import Ask, Page, with_figures
from tokentape.dashboards.engine.ask import words_of
from tokentape.warehouse.sql import named

FILE, TITLE = "index.html", "Scoreboard"
Held = dict[str, list[Any]]
FIGURES = ("parity",)
EMPTY = (
    "The warehouse is empty. Run: tokentape capture --model embedded --dataset code, then tokentape study baselines, "
    "tokentape load and tokentape site."
)


def held(connection: duckdb.DuckDBPyConnection) -> Held:
    """Of every study how many runs there are, and a number that changes with them."""
    return {row["study"]: [row["n"], row["ids"]] for row in Ask(connection, Path(__file__).parent)("held").to_dicts()}


def page(connection: duckdb.DuckDBPyConnection, before: Held | None = None) -> Page:
    """Verdicts, the papers' systems, all claims; tapes, and the provenance of every replay.

    before: what was held when pages were last written, if they were.
    """
    tapes, ask = rows.traces(connection), Ask(connection, Path(__file__).parent)
    # One-off replays decide nothing here: they have not what one compares them with.
    studied = tapes.filter(pl.col("n_studied") > 0)
    studied = studied.sort(pl.col("origin") == "captured", "n_studied", descending=True, maintain_order=True)
    counts = {"tape": tapes.height, "replay": int(tapes["n_replays"].sum() or 0)}
    lead = ", ".join(f"{n:,} {what}{'' if n == 1 else 's'}" for what, n in counts.items()) + ". Record once, replay anywhere."
    runs, now, earlier = _compared(ask, studied), held(connection), before or {}
    changed = [(name, n - earlier.get(name, [0])[0]) for name, (n, ids) in now.items() if earlier.get(name) != [n, ids]]
    extra = {
        "tapes": [{**tape, "flags": json.loads(tape["flags"])} for tape in tapes.to_dicts()],
        "provenance": ask("provenance").to_dicts(),
        "in_words": rows.rules_sentence,
        "scopes": words_of(ask.folder.name)["SCOPES"],
        "verdicts": [] if runs.is_empty() else ask.sql("verdicts", rows.reference(runs)).to_dicts(),
        "n_compared": 0 if runs.is_empty() else rows.reference(runs)["n_replays"].sum(),
        "studied": [*studied.head(1).to_dicts(), *runs.head(1).to_dicts()],
        "standings": ask.sql("standings", connection.sql(named()["claim_errors"].sql).pl()).to_dicts(),
        "health": ask("health").row(0, named=True),
        "changed": sorted(changed, key=lambda of: -abs(of[1])),
        "is_first": before is None,
    }
    own = Page(FILE, TITLE, EMPTY if tapes.is_empty() else lead, "index.html", extra=extra)
    return with_figures(own, ask, FIGURES)


def _compared(ask: Ask, studied: pl.DataFrame) -> pl.DataFrame:
    """Of the best studied tape: the rows of the rules that most replays share, on every hardware and in both scopes."""
    runs = rows.runs(ask.connection, studied["trace_id"].head(1).to_list(), studied=True)
    shared = runs.group_by("rules").len().sort("len", "rules", descending=[True, False])["rules"].head(1)
    return runs.filter(pl.col("rules").is_in(shared.implode()))
