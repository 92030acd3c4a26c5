"""The front page: what is in the store, the answer for the best replayed tape, and how each number was made."""

from __future__ import annotations

import json
from typing import Any

import altair as alt
import duckdb
import polars as pl

from dashboards import answers, experts, rows, theme
from dashboards.expert_charts import cost_panel
from dashboards.shell import Figure, Page

FILE, TITLE = "index.html", "What is in the store"
MAX_MACHINES = 3  # panels beside each other
EMPTY = (
    "The warehouse is empty. Run: tokentape capture --model embedded --dataset code, then tokentape study baselines, "
    "tokentape load and tokentape site."
)


def page(connection: duckdb.DuckDBPyConnection) -> Page:
    """Tapes, one headline chart, a table of its numbers, and the provenance of every replay."""
    tapes = rows.traces(connection)
    replayed = tapes.filter(pl.col("n_replays") > 0)
    runs = _headline_runs(rows.runs(connection, replayed["trace_id"].head(1).to_list()))
    lead = f"{tapes.height} tapes, {int(tapes['n_replays'].sum() or 0):,} replays. Record once, replay anywhere."
    return Page(
        FILE,
        TITLE,
        lead if not tapes.is_empty() else EMPTY,
        "index.html",
        figures=(_figure(runs, replayed),),
        data={} if runs.is_empty() else {"runs": runs.drop("family", "policy_params", "denominator")},
        extra={"tapes": [_tape(t) for t in tapes.to_dicts()], "numbers": _numbers(runs), "provenance": _provenance(connection)},
    )


def _headline_runs(runs: pl.DataFrame) -> pl.DataFrame:
    """The rows of the setting that most replays share (global scope on a tie), on every hardware."""
    if runs.is_empty():
        return runs
    counts = runs.group_by("scope", "rules").len()
    shared = counts.sort("len", "scope", "rules", descending=[True, False, False]).row(0, named=True)
    return runs.filter((pl.col("scope") == shared["scope"]) & (pl.col("rules") == shared["rules"]))


def _figure(runs: pl.DataFrame, replayed: pl.DataFrame) -> Figure:
    """Latency and energy against capacity, one column per hardware."""
    chart, answer, reading = None, "", ""
    if not runs.is_empty():
        answer, chart = answers.headline(runs), _chart(runs)
        reading = (
            "Tape {trace_id}: {model_id} on {dataset}, {origin}; ".format(**replayed.row(0, named=True))
            + f"{_scope(runs['scope'][0])}; {rows.rules_sentence(runs['rules'][0])}. Dashed: the bound. "
            f"Other tapes and settings are on the page {experts.TITLE}."
        )
    question = "Which policy, at which capacity, at what latency and energy?"
    return Figure("headline", question, chart, {"": answer}, (), reading, experts.REPLAY_FIRST)


def _chart(runs: pl.DataFrame) -> alt.HConcatChart | None:
    lines = theme.lines(runs.select("family", "policy", "bound").unique().iter_rows())
    machines = runs.drop_nulls("step_ms")["hardware"].unique().sort().to_list()[:MAX_MACHINES]
    columns: list[alt.VConcatChart] = []
    width = 1140 // max(1, len(machines)) - 80
    for machine in machines:
        base = alt.Chart(alt.NamedData("runs")).transform_filter(f"datum.hardware === {theme.quote(machine)}")
        latency = cost_panel(base, lines, "step", "ms", "latency (ms per decoded token)", width, 230, picks=not columns)
        energy = cost_panel(base, lines, "energy", "mJ", "energy (mJ per decoded token)", width, 180)
        columns.append(alt.vconcat(latency.properties(title=machine), energy))
    return alt.hconcat(*columns, spacing=30) if columns else None


def _numbers(runs: pl.DataFrame) -> dict[str, Any] | None:
    """The table under the headline: every policy at half capacity, on each hardware."""
    if runs.is_empty():
        return None
    machines = {key[0]: answers.reference(group) for key, group in runs.group_by("hardware", maintain_order=True)}
    first = next(iter(machines.values()))
    table = []
    for row in first.iter_rows(named=True):
        costs = [g.filter(pl.col("policy") == row["policy"]) for g in machines.values()]
        cells = [answers.significant(v) if v is not None else "–" for c in costs for v in _costs(c)]
        table.append({"policy": row["policy"], "bound": row["bound"], "hit": answers.percent(row["hit_decode"]), "cells": cells})
    return {"capacity": answers.percent(first["capacity"][0], 0), "machines": list(machines), "rows": table}


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
