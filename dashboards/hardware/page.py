"""The hardware page: what a machine can do, where the steps recorded on it lie, and what each of its numbers rests on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

from tokentape.dashboards.engine import Ask, Control, Page, with_figures
from tokentape.dashboards.hardware import recorded
from tokentape.dashboards.hardware.recorded import EARLY_LAYERS
from tokentape.dashboards.hardware.words import OWN_MEMORY
from tokentape.dashboards.units import number

FILE, TITLE = "hardware.html", "Hardware"
LEAD = (
    "What a machine can compute and move, where the operations of a step lie under that roof, which resource a step waits for, "
    "and what each number rests on."
)
WINDOWS = {"all": "the whole step", "early": f"its first {EARLY_LAYERS} layers"}
LINKS = re.compile(r"(https?://[^\s;,)]*[^\s;,).])")  # split() then gives text and addresses in turn
FIGURES = ("roofline", "clock", "energy")


def asked(connection: duckdb.DuckDBPyConnection, size: int = 16) -> Ask:
    return Ask(connection, Path(__file__).parent, size, {"n": size, "memory": OWN_MEMORY})


def page(connection: duckdb.DuckDBPyConnection, max_steps: int) -> Page:
    """The page over all machines and at most `max_steps` recorded steps, spread over the machines."""
    ask = asked(connection, max_steps)
    machines, steps = ask("machines"), ask.made(recorded.steps)
    few = next((f" Shown: {steps.height} of {n} recorded steps." for n in steps["n_steps"].head(1) if n > steps.height), "")
    own = Page(
        FILE,
        TITLE,
        LEAD + few,
        "hardware.html",
        controls=_controls(machines, steps),
        choices=tuple(_choices(ask)),
        extra={"tables": _tables(machines, ask("numbers"))},
    )
    return with_figures(own, ask, FIGURES)


def _choices(ask: Ask) -> list[dict[str, str]]:
    return [
        {"hardware": row["hardware"], "step": row["step"], "window": window}
        for row in ask.made(recorded.pairs).to_dicts()
        for window in WINDOWS
        if window == "all" or row["n_layers"] > EARLY_LAYERS
    ]


def _controls(machines: pl.DataFrame, steps: pl.DataFrame) -> tuple[Control, ...]:
    titles = {row["step"]: row["title"] for row in steps.to_dicts()}
    return (
        Control("hardware", "Machine", {row["hardware"]: f"{row['hardware']}: {row['title']}" for row in machines.to_dicts()}),
        Control("step", "Step", titles | {"": "none recorded"}),
        Control("window", "Clock shows", WINDOWS),
    )


def _tables(machines: pl.DataFrame, numbers: pl.DataFrame) -> list[dict[str, Any]]:
    """Every machine's numbers for the template, grouped by what they belong to: the machine, an engine, a tier, a link."""
    return [
        {**machine, "groups": [{"title": title, "numbers": [_row(row) for row in of.to_dicts()]} for (title,), of in groups]}
        for machine in machines.to_dicts()
        for groups in [numbers.filter(hardware=machine["hardware"]).group_by(["title"], maintain_order=True)]
    ]


def _row(row: dict[str, Any]) -> dict[str, Any]:
    value, low, high = (number(row["key"], row[end], row["unit"]) for end in ("value", "low", "high"))
    band = "" if row["low"] == row["high"] else f"{low} to {high}"
    return {**row, "value": value, "band": band, "source": LINKS.split(row["source"])}
