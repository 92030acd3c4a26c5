"""The hardware page's menus, and the numbers of every machine: all machines, recorded steps spread over them."""

from __future__ import annotations

import re
from typing import Any

import polars as pl

from tokentape.dashboards.engine import Ask, Control
from tokentape.dashboards.hardware import recorded
from tokentape.dashboards.hardware.recorded import EARLY_LAYERS
from tokentape.dashboards.units import number

WINDOWS = {"all": "the whole step", "early": f"its first {EARLY_LAYERS} layers"}
LINKS = re.compile(r"(https?://[^\s;,)]*[^\s;,).])")  # split() then gives text and addresses in turn


def own(ask: Ask) -> dict[str, Any]:
    machines, steps = ask("machines"), ask("steps")
    few = next((f" Shown: {steps.height} of {n} recorded steps." for n in steps["n_steps"].head(1) if n > steps.height), "")
    tables = _tables(machines, ask("numbers"))
    return {"controls": _controls(machines, steps), "choices": tuple(_choices(ask)), "more": few, "extra": {"tables": tables}}


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
