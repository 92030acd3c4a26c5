"""The front page: a scoreboard of what was found and how far off it is; what is in the store, and how each number was made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import altair as alt
import duckdb
import polars as pl

from tokentape.dashboards import rows, theme
from tokentape.dashboards.engine import Ask, Drawn, Page, some, with_figures
from tokentape.dashboards.engine.ask import rows_of
from tokentape.dashboards.experts import page as experts
from tokentape.dashboards.experts.charts import cost_panel
from tokentape.dashboards.units import percent, significant
from tokentape.warehouse.sql import named

FILE, TITLE = "index.html", "Scoreboard"
Held = dict[str, list[Any]]
MAX_COLUMNS = 4  # panels beside each other
EMPTY = (
    "The warehouse is empty. Run: tokentape capture --model embedded --dataset code, then tokentape study baselines, "
    "tokentape load and tokentape site."
)


def held(connection: duckdb.DuckDBPyConnection) -> Held:
    """Of every study how many runs there are, and a number that changes with them."""
    return {row["study"]: [row["n"], row["ids"]] for row in rows_of(connection, rows.SQL, "held").to_dicts()}


def page(connection: duckdb.DuckDBPyConnection, before: Held | None = None) -> Page:
    """Verdicts, the papers' systems, all claims; one headline chart, a table of its numbers, and the provenance of every replay.

    before: what was held when pages were last written, if they were.
    """
    tapes, ask = rows.traces(connection), Ask(connection, Path(__file__).parent)
    lead = f"{tapes.height} tapes, {int(tapes['n_replays'].sum() or 0):,} replays. Record once, replay anywhere."
    runs, now, earlier = ask.made(_headline_runs), held(connection), before or {}
    changed = [(name, n - earlier.get(name, [0])[0]) for name, (n, ids) in now.items() if earlier.get(name) != [n, ids]]
    extra = {
        "tapes": [_tape(t) for t in tapes.to_dicts()],
        "numbers": _numbers(runs),
        "provenance": _provenance(connection),
        "verdicts": [] if runs.is_empty() else ask.sql("verdicts", rows.reference(runs)).to_dicts(),
        "studied": ask.made(_studied).head(1).to_dicts(),
        "standings": ask.sql("standings", connection.sql(named()["claim_errors"].sql).pl()).to_dicts(),
        "health": ask("health").row(0, named=True),
        "changed": sorted(changed, key=lambda of: -abs(of[1])),
        "is_first": before is None,
    }
    own = Page(FILE, TITLE, EMPTY if tapes.is_empty() else lead, "index.html", extra=extra)
    return with_figures(own, ask, ["parity", "headline"])


def _studied(ask: Ask) -> pl.DataFrame:
    """Tapes of a study, captured ones first. One-off replays decide nothing here: they have not what one compares them with."""
    tapes = rows.traces(ask.connection).filter(pl.col("n_studied") > 0)
    return tapes.sort(pl.col("origin") == "captured", "n_studied", descending=True, maintain_order=True)


def _headline_runs(ask: Ask) -> pl.DataFrame:
    """Of the best studied tape: the rows of the rules that most replays share, on every hardware and in both scopes."""
    runs = rows.runs(ask.connection, ask.made(_studied)["trace_id"].head(1).to_list(), studied=True)
    if runs.is_empty():
        return runs
    shared = runs.group_by("rules").len().sort("len", "rules", descending=[True, False])["rules"][0]
    return runs.filter(pl.col("rules") == shared)


def headline(ask: Ask) -> Drawn:
    """Latency and energy against capacity, one column per hardware and scope."""
    runs, studied = some(ask.made(_headline_runs)), ask.made(_studied)
    n = runs.filter("extrapolated").height
    outside = f"{n:,} of the {runs.height:,} settings drawn lie outside what the hardware's costs were measured on. " if n else ""
    facts = {
        "where": "Tape {trace_id}: {model_id} on {dataset}, {origin}".format(**studied.row(0, named=True)),
        "semantics": rows.rules_sentence(runs["rules"][0]),
        "in_one": experts.SCOPES["global"],
        "in_each": experts.SCOPES["per-layer"],
        "experts": experts.TITLE,
        "extrapolated": outside,
        "reference": rows.reference_of,
    }
    chart = _chart(runs)
    return Drawn({"runs": experts.shown(runs)}, facts=facts, said=runs, chart=lambda start: chart)


def _chart(runs: pl.DataFrame) -> alt.HConcatChart | None:
    lines = theme.lines(runs.select("family", "policy", "bound").unique().iter_rows())
    timed = runs.drop_nulls("step_ms")
    machines = timed["hardware"].unique().sort().to_list()[: MAX_COLUMNS // max(1, timed["scope"].n_unique())]
    shown = timed.filter(pl.col("hardware").is_in(machines)).select("hardware", "scope").unique().sort("hardware", "scope").rows()
    columns: list[alt.VConcatChart] = []
    width = 1140 // max(1, len(shown)) - 80
    for machine, scope in shown:
        here = f"datum.hardware === {theme.quote(machine)} && datum.scope === {theme.quote(scope)}"
        base = alt.Chart(alt.NamedData("runs")).transform_filter(here)
        latency = cost_panel(base, lines, "step", "ms", "latency (ms per decoded token)", width, 230, picks=not columns)
        energy = cost_panel(base, lines, "energy", "mJ", "energy (mJ per decoded token)", width, 180)
        columns.append(alt.vconcat(latency.properties(title=[machine, scope]), energy))
    return alt.hconcat(*columns, spacing=30) if columns else None


def _numbers(runs: pl.DataFrame) -> dict[str, Any] | None:
    """The table under the headline at half capacity: every policy in each scope, one below the other, on each hardware.

    Fastest first, on the first hardware; bounds last.
    """
    if runs.is_empty():
        return None
    half = rows.reference(runs)
    machines = half["hardware"].unique().sort().to_list()
    first = pl.col("step_ms").filter(pl.col("hardware") == machines[0])
    order = half.group_by("policy", "bound").agg(first.min().alias("step_ms"), pl.col("hit_decode").max())
    order = order.sort("bound", "step_ms", -pl.col("hit_decode"), "policy", nulls_last=True)
    table = []
    for policy, bound, *_ in order.iter_rows():
        for (scope,), of in half.filter(pl.col("policy") == policy).sort("scope").group_by("scope", maintain_order=True):
            costs = [_costs(of.filter(pl.col("hardware") == machine)) for machine in machines]
            cells = [significant(value) if value is not None else "–" for cost in costs for value in cost]
            hit = percent(of["hit_decode"][0])
            table.append({"policy": policy, "scope": scope, "bound": bound, "hit": hit, "cells": cells})
    return {"capacity": percent(half["capacity"][0], 0), "machines": machines, "rows": table}


def _costs(row: pl.DataFrame) -> tuple[float | None, ...]:
    if row.is_empty():
        return None, None, None, None
    return row.select("step_ms", "p99_ms", "tokens_per_s", "energy_mj").row(0)


def _tape(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the catalogue as the template prints it."""
    return {**row, "flags": _flags(row["flags"]), "tables": row["tables"].replace(",", ", ")}


def _flags(text: str) -> list[str]:
    """Contamination findings, one line each: name: key value, key value."""
    return [f"{name.replace('_', ' ')}: {_finding(found)}" for name, found in json.loads(text).items()]


def _finding(found: Any) -> str:
    if not isinstance(found, dict):
        return str(found)
    inner = {key.replace("_", " "): value for key, value in found.items()}
    return ", ".join(f"{key} ({_finding(v)})" if isinstance(v, dict) else f"{key} {v}" for key, v in inner.items())


def _provenance(connection: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    return [
        {**row, "rules": rows.rules_sentence(row["rules"]), "scope": _scope(row["scope"])}
        for row in rows.provenance(connection).to_dicts()
    ]


def _scope(name: str) -> str:
    return experts.SCOPES.get(name, name)
