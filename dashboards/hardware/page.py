"""The hardware page: what a machine can do, where the steps recorded on it lie, and what each of its numbers rests on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

from tokentape.dashboards.engine import Ask, Control, Figure, Page, Part, with_figures
from tokentape.dashboards.hardware import answers as hardware_answers
from tokentape.dashboards.hardware import recorded, roofline
from tokentape.dashboards.hardware.recorded import EARLY_LAYERS
from tokentape.dashboards.units import number

FILE, TITLE = "hardware.html", "Hardware"
LEAD = (
    "What a machine can compute and move, where the operations of a step lie under that roof, which resource a step waits for, "
    "and what each number rests on."
)
LOAD_FIRST = "Nothing to draw: the warehouse holds no machine. Run: tokentape load, then tokentape site."
ROOF_READING = (
    "Both axes are logarithmic. A circle is an operation of the step, its layers together; its size and the percentage are its "
    "share of the step's time. On the slope it waits for memory, on the level for the engine; below the line something else "
    "holds it up. Operations that only move data are on the clock below. Rates, bytes and operations are those of one device."
)
WINDOWS = {"all": "the whole step", "early": f"its first {EARLY_LAYERS} layers"}
LINKS = re.compile(r"(https?://[^\s;,)]*[^\s;,).])")  # split() then gives text and addresses in turn
GROUPS = {"engines": "engine", "tiers": "tier", "links": "link"}


def asked(connection: duckdb.DuckDBPyConnection, size: int = 16) -> Ask:
    return Ask(connection, Path(__file__).parent, size, {"n": size, "memory": hardware_answers.OWN_MEMORY})


def page(connection: duckdb.DuckDBPyConnection, max_steps: int) -> Page:
    """The page over all machines and at most `max_steps` recorded steps, spread over the machines."""
    ask = asked(connection, max_steps)
    machines, steps, points = ask("machines"), ask.made(recorded.steps), ask.made(recorded.points)
    few = f" Shown: {steps.height} of {steps['n_steps'][0]} recorded steps." if _is_cut(steps) else ""
    own = Page(
        FILE,
        TITLE,
        LEAD + few,
        "hardware.html",
        controls=_controls(machines, steps),
        choices=tuple(_choices(machines, steps)),
        extra={"tables": _tables(machines, ask("numbers"))},
    )
    return with_figures(own, ask, (_roofline(own, ask, points), "clock", "energy"))


def _roofline(page: Page, ask: Ask, points: pl.DataFrame) -> Part:
    """Drawn by code: labels are placed where they cover nothing."""
    ceilings = ask("ceilings")
    frames, roofs, words, placed = roofline.roofs(ceilings, points)
    drawn = ceilings.filter(pl.col("hardware").is_in(list(frames)))
    start = dict(page.choices[0]) if page.choices else {}
    figure = Figure(
        "roofline",
        "What limits each operation: memory or computing?",
        roofline.chart(start, frames, ask.made(recorded.colours), not placed.is_empty()) if frames else None,
        dict(_roof_answers(drawn, points, page.choices)),
        ("hardware", "step"),
        ROOF_READING,
        LOAD_FIRST,
    )
    data = {"roofs": roofs, "roof_words": words, "points": placed}
    return Part((figure,), data={name: frame for name, frame in data.items() if not frame.is_empty()})


def _roof_answers(
    ceilings: pl.DataFrame, points: pl.DataFrame, choices: Iterable[Mapping[str, str]]
) -> Iterator[tuple[str, str]]:
    by_machine, by_step = (frame.partition_by(key, as_dict=True) for frame, key in ((ceilings, "hardware"), (points, "step")))
    for hardware, step in dict.fromkeys((c["hardware"], c["step"]) for c in choices):
        if (hardware,) in by_machine:
            of_step = by_step.get((step,), points.clear())
            yield f"{hardware}|{step}", hardware_answers.roof(by_machine[hardware,], of_step)


def _choices(machines: pl.DataFrame, steps: pl.DataFrame) -> list[dict[str, str]]:
    by_machine = steps.rows_by_key("hardware", named=True)
    none = {"step": "", "n_layers": 0}
    return [
        {"hardware": hardware, "step": step["step"], "window": window}
        for hardware in machines["hardware"]
        for step in by_machine.get(hardware, [none])
        for window in WINDOWS
        if window == "all" or step["n_layers"] > EARLY_LAYERS
    ]


def _controls(machines: pl.DataFrame, steps: pl.DataFrame) -> tuple[Control, ...]:
    if machines.is_empty():
        return ()
    titles = {row["step"]: row["title"] for row in steps.to_dicts()}
    return (
        Control("hardware", "Machine", {row["hardware"]: f"{row['hardware']}: {row['title']}" for row in machines.to_dicts()}),
        Control("step", "Step", titles | {"": "none recorded"}),
        Control("window", "Clock shows", WINDOWS),
    )


def _tables(machines: pl.DataFrame, numbers: pl.DataFrame) -> list[dict[str, Any]]:
    """Every machine's numbers for the template, grouped by what they belong to: the machine, an engine, a tier, a link."""
    by_machine = numbers.rows_by_key("hardware", named=True)
    return [{**machine, "groups": list(_grouped(by_machine.get(machine["hardware"], [])))} for machine in machines.to_dicts()]


def _grouped(numbers: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    def group_of(row: dict[str, Any]) -> tuple[int, str]:
        kind, _, rest = row["key"].partition(".")
        place = list(GROUPS).index(kind) if kind in GROUPS else len(GROUPS)
        return place, f"{rest.split('.')[0]} ({GROUPS[kind]})" if kind in GROUPS else "whole machine"

    for (_, title), rows in groupby(sorted(numbers, key=group_of), key=group_of):
        yield {"title": title, "numbers": [_row(row) for row in rows]}


def _row(row: dict[str, Any]) -> dict[str, Any]:
    kind, _, rest = row["key"].partition(".")
    name = rest.partition(".")[2] if kind in GROUPS else row["key"]
    value, low, high = (number(row["key"], row[end], row["unit"]) for end in ("value", "low", "high"))
    band = "" if row["low"] == row["high"] else f"{low} to {high}"
    return {"key": name, "value": value, "band": band, "source": LINKS.split(row["source"]), "assumed": row["is_assumed"]}


def _is_cut(steps: pl.DataFrame) -> bool:
    return not steps.is_empty() and steps.height < steps["n_steps"][0]
