"""The expert-cache page: which policy, at which capacity, at what latency and energy."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

from tokentape.dashboards import rows, theme
from tokentape.dashboards.engine import Ask, Control, Drawn, Page, some, with_figures
from tokentape.dashboards.engine.ask import queries

FILE, TITLE = "experts.html", "Expert cache"
SETTING = ("trace", "hardware", "scope", "rules")
FIGURES = ("hits", "cost")
PHASES = ("decode", "prefill")
SCOPES = {"global": "one cache for all layers", "per-layer": "an equal share for each layer"}
LEAD = (
    "How large a cache of experts must be, which policy should manage it, and what that costs per token. "
    "Belady sees the future: a bound, no method."
)


def page(connection: duckdb.DuckDBPyConnection, max_traces: int) -> Page:
    """The page over the first `max_traces` tapes of the catalogue (rows.traces), replayed ones first."""
    catalogue = rows.traces(connection)
    shown = catalogue.head(max_traces)
    trace_ids = shown["trace_id"].to_list()
    ask = Ask(connection, Path(__file__).parent, max_traces, {"traces": trace_ids})
    runs = ask.made(_replays)
    few = f" Shown: {shown.height} of {catalogue.height} tapes, those with most replays first."
    own = Page(
        FILE,
        TITLE,
        LEAD + few * (catalogue.height > shown.height),
        "page.html",
        controls=_controls(shown, runs),
        choices=tuple(_choices(runs, trace_ids)),
    )
    return with_figures(own, ask, FIGURES)


def hits(ask: Ask) -> Drawn:
    """Hit rate against capacity."""
    runs, facts = _runs(ask)
    counted = " and ".join(runs["denominator"].drop_nulls().unique().sort().to_list()) or "unique lookups"
    each = pl.concat(runs.with_columns(phase=pl.lit(phase), hit=f"hit_{phase}") for phase in PHASES)
    return Drawn({"runs": shown(runs)}, facts=facts | {"counted": counted}, said=each)


def cost(ask: Ask) -> Drawn:
    """Latency and energy against capacity."""
    runs, facts = _runs(ask)
    return Drawn({"runs": shown(runs)}, facts=facts, said=some(runs.drop_nulls("step_ms")))


def _replays(ask: Ask) -> pl.DataFrame:
    ask.keep(queries(rows.SQL)["runs"], studied=False)
    return rows.runs(ask.connection, ask.params["traces"])


def _runs(ask: Ask) -> tuple[pl.DataFrame, dict[str, Any]]:
    """The replays, and what the figures' files call by name."""
    runs = some(ask.made(_replays))
    return runs, {"reference": rows.reference_of, **theme.lines(runs.select("family", "policy", "bound").iter_rows())}


def shown(runs: pl.DataFrame) -> pl.DataFrame:
    return runs.drop("family", "policy_params", "denominator", "turn")


def _choices(runs: pl.DataFrame, trace_ids: list[str]) -> list[dict[str, str]]:
    """Selections that exist, in the order of the catalogue."""
    settings = runs.select(SETTING).unique().sort("hardware", "scope", "rules").rows_by_key("trace", named=True)
    return [
        {"trace": trace, **{name: setting[name] for name in SETTING[1:]}, "phase": phase}
        for trace in trace_ids
        for setting in settings.get(trace, ())
        for phase in PHASES
    ]


def _controls(shown: pl.DataFrame, runs: pl.DataFrame) -> tuple[Control, ...]:
    """The menus, outermost first."""
    if shown.is_empty():
        return ()
    words = "{trace_id}: {model_id}, {dataset} ({origin})"
    rules: Iterable[str] = runs["rules"].unique().sort().to_list()
    return (
        Control("trace", "Tape", {tape["trace_id"]: words.format(**tape) for tape in shown.to_dicts()}),
        Control("hardware", "Hardware"),
        Control("scope", "Cache scope", SCOPES),
        Control("rules", "Semantics", {r: rows.rules_sentence(r) for r in rules}),
        Control("phase", "Phase"),
    )
