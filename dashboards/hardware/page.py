"""The hardware page: what a machine can do, where the steps recorded on it lie, and what each of its numbers rests on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import duckdb
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.hardware import answers as hardware_answers
from tokentape.dashboards.hardware import charts as hardware_charts
from tokentape.dashboards.hardware import roofline
from tokentape.dashboards.hardware import rows as hardware_rows
from tokentape.dashboards.shell import Control, Figure, Page
from tokentape.dashboards.units import number, quantity

FILE, TITLE = "hardware.html", "Hardware"
LEAD = (
    "What a machine can compute and move, where the operations of a step lie under that roof, which resource a step waits for, "
    "and what each number rests on."
)
LOAD_FIRST = "Nothing to draw: the warehouse holds no machine. Run: tokentape load, then tokentape site."
STEP_FIRST = (
    "No step is recorded on this machine: choose another one. Or run: tokentape timeline RESULT for a step of a replay, or "
    "tokentape step MODEL --hardware NAME --record for an estimated one, then tokentape load and tokentape site."
)
NO_ENERGY = "Nothing to draw: the machines' files give no energy per bit."
ROOF_READING = (
    "Both axes are logarithmic. A circle is an operation of the step, its layers together; its size and the percentage are its "
    "share of the step's time. On the slope it waits for memory, on the level for the engine; below the line something else "
    "holds it up. Operations that only move data are on the clock below. Rates, bytes and operations are those of one device."
)
EARLY_LAYERS = 4
WINDOWS = {"all": "the whole step", "early": f"its first {EARLY_LAYERS} layers"}
LINKS = re.compile(r"(https?://[^\s;,)]*[^\s;,).])")  # split() then gives text and addresses in turn
GROUPS = {"engines": "engine", "tiers": "tier", "links": "link"}


def page(connection: duckdb.DuckDBPyConnection, max_steps: int) -> Page:
    """The page over all machines and at most `max_steps` recorded steps, spread over the machines."""
    machines, ceilings = hardware_rows.machines(connection), hardware_rows.ceilings(connection)
    steps = hardware_rows.steps(connection, max_steps)
    step_ids = steps["step"].to_list()
    points = hardware_rows.points(connection, step_ids).join(steps.select("step", "hardware"), on="step")
    bars, busy = _bars(hardware_rows.bars(connection, step_ids), steps)
    frames, roofs, words, placed = roofline.roofs(ceilings, points)
    energy = _energy(hardware_rows.energy(connection))
    choices = _choices(machines, steps)
    start = choices[0] if choices else {}
    longest_first = points.group_by("operation").agg(pl.max("share")).sort("share", "operation", descending=[True, False])
    colours = theme.colours(longest_first["operation"])
    legend = {step: sorted(set(names), key=list(colours).index) for step, names in _names(points).items()}
    drawn = ceilings.filter(pl.col("hardware").is_in(list(frames)))
    few = f" Shown: {steps.height} of {steps['n_steps'][0]} recorded steps." if _is_cut(steps) else ""
    data = {"roofs": roofs, "roof_words": words, "points": placed, "bars": bars, "energy": energy}
    return Page(
        FILE,
        TITLE,
        LEAD + few,
        "hardware.html",
        figures=(
            Figure(
                "roofline",
                "What limits each operation: memory or computing?",
                roofline.chart(start, frames, colours, not placed.is_empty()) if frames else None,
                dict(_roof_answers(drawn, points, choices)),
                ("hardware", "step"),
                ROOF_READING,
                LOAD_FIRST,
            ),
            _clock_figure(bars, busy, points, steps, start, colours, legend),
            _energy_figure(energy, start),
        ),
        controls=_controls(machines, steps),
        choices=tuple(choices),
        data={name: frame for name, frame in data.items() if not frame.is_empty()},
        extra={"tables": _tables(machines, hardware_rows.numbers(connection))},
    )


def _roof_answers(ceilings: pl.DataFrame, points: pl.DataFrame, choices: list[dict[str, str]]) -> Iterator[tuple[str, str]]:
    by_machine, by_step = (frame.partition_by(key, as_dict=True) for frame, key in ((ceilings, "hardware"), (points, "step")))
    for hardware, step in dict.fromkeys((c["hardware"], c["step"]) for c in choices):
        if (hardware,) in by_machine:
            of_step = by_step.get((step,), points.clear())
            yield f"{hardware}|{step}", hardware_answers.roof(by_machine[hardware,], of_step)


def _clock_figure(
    bars: pl.DataFrame,
    busy: pl.DataFrame,
    points: pl.DataFrame,
    steps: pl.DataFrame,
    start: dict[str, str],
    colours: dict[str, str],
    legend: dict[str, list[str]],
) -> Figure:
    by_step = points.partition_by("step", as_dict=True)
    lanes = busy.partition_by("step", as_dict=True)
    answers = {
        f"{row['hardware']}|{row['step']}": hardware_answers.clock(row, lanes[row["step"],], by_step[row["step"],])
        for row in steps.to_dicts()
        if (row["step"],) in lanes
    }
    early = (
        bars.filter("early").group_by("step").agg(pl.max("end").alias("early_s")).rows_by_key("step")
        if not bars.is_empty()
        else {}
    )
    ends = {row["step"]: [row["seconds"], early[row["step"]][0][0]] for row in steps.to_dicts() if row["step"] in early}
    return Figure(
        "clock",
        "When is each resource busy?",
        None if bars.is_empty() else hardware_charts.clock(start, colours, legend, ends),
        answers,
        ("hardware", "step"),
        "One lane per engine, tier and link of the step; a gap is waiting. Busy shares count overlapping operations once.",
        STEP_FIRST,
    )


def _energy_figure(energy: pl.DataFrame, start: dict[str, str]) -> Figure:
    by_machine = energy.explode("machines").sort("machines").partition_by("machines", as_dict=True)
    return Figure(
        "energy",
        "What does it cost to move a bit?",
        None if energy.is_empty() else hardware_charts.energy(start, energy["place"].n_unique()),
        {str(key[0]): hardware_answers.energy(str(key[0]), rows) for key, rows in by_machine.items()},
        ("hardware",),
        "Every tier and link of every machine, cheapest first; the chosen machine's in blue. The pale bar is the range from the "
        "file's low to its high value. Energy of opening rows, refresh and leakage is not in it.",
        NO_ENERGY,
    )


def _bars(spans: pl.DataFrame, steps: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The bars of the clock, lanes named with their busy share; and busy seconds per step and resource, busiest first."""
    if spans.is_empty():
        return spans, spans
    lanes = spans.group_by("step", "resource", maintain_order=True).agg(pl.sum("adds_s").alias("busy_s"), pl.min("lane"))
    lanes = lanes.join(steps.select("step", "seconds"), on="step").with_columns(busy=pl.col("busy_s") / pl.col("seconds"))
    lanes = lanes.sort("step", "busy", descending=[False, True])
    words = pl.col("busy").map_elements(hardware_answers.share, return_dtype=pl.String)
    lanes = lanes.with_columns(word=pl.format("{}: {} busy", "resource", words))
    layers = spans.filter(pl.col("op_layer") >= 0).with_columns(pl.col("op_layer").rank("dense").over("step").alias("nth"))
    until = layers.filter(pl.col("nth") <= EARLY_LAYERS).group_by("step").agg(pl.max("end_s").alias("until_s"))
    shown = spans.join(lanes.select("step", "resource", "word"), on=["step", "resource"], maintain_order="left")
    shown = shown.join(until, on="step", how="left", maintain_order="left").select(
        "step",
        "operation",
        pl.col("word").alias("busy"),
        "lane",
        pl.when(pl.col("op_layer") >= 0).then(pl.format("{}", "op_layer")).otherwise(pl.lit("outside the layers")).alias("layer"),
        pl.col("start_s").round_sig_figs(6).alias("start"),
        pl.col("end_s").round_sig_figs(6).alias("end"),
        (pl.col("end_s") - pl.col("start_s")).map_elements(lambda s: quantity(s, "s"), return_dtype=pl.String).alias("time"),
        (pl.col("start_s") < pl.col("until_s")).fill_null(True).alias("early"),
    )
    return shown, lanes


def _energy(places: pl.DataFrame) -> pl.DataFrame:
    """One row per tier or link and side, equal read and write costs as one; `place` names it with its first machines."""
    rows = []
    for order, row in enumerate(places.to_dicts()):
        costs = row["costs"]
        alike = len(costs) == 2 and all(costs[0][end] == costs[1][end] for end in ("value", "low", "high"))
        shown = [{**costs[0], "side": "read and write"}] if alike else costs
        few = ", ".join(row["machines"][:2]) + (f" and {len(row['machines']) - 2} more" if len(row["machines"]) > 2 else "")
        words = [("" if len(shown) == 1 else f"{cost['side']} ") + _band(cost) for cost in shown]
        rows += [
            {
                "name": row["name"], "place": f"{row['name']} · {few}", "order": order, "machines": row["machines"],
                "everywhere": ", ".join(row["machines"]), "assumed": row["assumed"], "word": ", ".join(words),
                "is_first": n == 0, **cost,
            }
            for n, cost in enumerate(shown)
        ]  # fmt: skip
    schema: dict[str, Any] = dict.fromkeys(("name", "place", "side"), pl.String)
    schema |= {"machines": pl.List(pl.String), "value": pl.Float64}
    return pl.DataFrame(rows) if rows else pl.DataFrame(schema=schema)


def _band(cost: dict[str, Any]) -> str:
    value, low, high = (f"{cost[end]:.3g}" for end in ("value", "low", "high"))
    return value if low == high else f"{value} ({low} to {high})"


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


def _names(points: pl.DataFrame) -> dict[str, list[str]]:
    return {str(key[0]): group["operation"].to_list() for key, group in points.group_by("step", maintain_order=True)}


def _is_cut(steps: pl.DataFrame) -> bool:
    return not steps.is_empty() and steps.height < steps["n_steps"][0]
