"""The numbers of every machine on the hardware page, and recorded steps under the roof, whose labels roofline.py places, and on
the clock."""

import re
from typing import Any

import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.engine import Ask, Drawn, some
from tokentape.dashboards.hardware import roofline
from tokentape.dashboards.hardware.words import EARLY_LAYERS
from tokentape.dashboards.units import number, quantity, share

LINKS = re.compile(r"(https?://[^\s;,)]*[^\s;,).])")  # split() then gives text and addresses in turn


def own(ask: Ask) -> dict[str, Any]:
    return {"extra": {"tables": _tables(ask("machines"), ask("numbers"))}}


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


def roof(ask: Ask) -> Drawn:
    """Labels are placed where they cover nothing. frames: machine -> the ends of both axes, as the chart's parameter has them."""
    ceilings, found, hues = ask("ceilings"), ask.made(points), ask.made(colours)
    frames, roofs, words, placed = roofline.roofs(ceilings, found)
    held = ask("pairs").filter(pl.col("hardware").is_in(list(frames)))
    ends = [{"expr": f"frames[hardware][{n}]"} for n in range(4)]
    limits = {machine: [*frame.x, *frame.y] for machine, frame in frames.items()}
    own: dict[str, Any] = {"frames": limits, "across": ends[:2], "up": ends[2:]}
    own |= {"ceilings": ceilings, "on": found, "names": list(hues), "colours": list(hues.values())}
    return Drawn({"roofs": roofs, "roof_words": words, "points": placed}, facts=own, said=held)


def points(ask: Ask) -> pl.DataFrame:
    """Their operations, with the machine."""
    found = ask("steps")
    return ask("points", steps=found["step"].to_list()).join(found.select("step", "hardware"), on="step")


def colours(ask: Ask) -> dict[str, str]:
    """A colour for each operation, the longest first."""
    longest = ask.made(points).group_by("operation").agg(pl.max("share")).sort("share", "operation", descending=[True, False])
    return theme.colours(longest["operation"])


def clock(ask: Ask) -> Drawn:
    """operations_of: step -> its operations, for the legend; ends: step -> seconds that each window shows."""
    found = ask("steps")
    bars, busy = lanes(ask("bars", steps=found["step"].to_list()), found)
    some(bars)
    early = dict(bars.filter("early").group_by("step").agg(pl.max("end")).iter_rows())
    hues = ask.made(colours)
    own = {
        "busy": busy,
        "points": ask.made(points),
        "names": list(hues),
        "colours": list(hues.values()),
        "operations_of": {step: sorted(set(of), key=list(hues).index) for step, of in _names(ask.made(points)).items()},
        "ends": {row["step"]: [row["seconds"], early[row["step"]]] for row in found.to_dicts() if row["step"] in early},
        "shown": {"expr": "operations_of[step] || [' ']"},
        "domain": [0, {"expr": "(ends[step] || [1, 1])[window === 'all' ? 0 : 1]"}],
    }
    return Drawn({"bars": bars}, facts=own, said=found.join(busy, on="step", how="semi", maintain_order="left"))


def lanes(spans: pl.DataFrame, steps: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The bars of the clock, named with their busy share; and this share per step and resource, busiest first, with any's."""
    if spans.is_empty():
        return spans, spans
    held = spans.group_by("step", "resource", maintain_order=True).agg(pl.sum("adds_s", "any_adds_s"), pl.min("lane"))
    held = held.join(steps.select("step", "seconds"), on="step")
    seconds, any_s = pl.col("seconds"), pl.sum("any_adds_s").over("step")
    held = held.with_columns(busy=pl.col("adds_s") / seconds, worked=any_s / seconds)
    held = held.sort("step", "busy", descending=[False, True])
    words = pl.col("busy").map_elements(share, return_dtype=pl.String)
    held = held.with_columns(word=pl.format("{}: {} busy", "resource", words))
    layers = spans.filter(pl.col("op_layer") >= 0).with_columns(pl.col("op_layer").rank("dense").over("step").alias("nth"))
    until = layers.filter(pl.col("nth") <= EARLY_LAYERS).group_by("step").agg(pl.max("end_s").alias("until_s"))
    shown = spans.join(held.select("step", "resource", "word"), on=["step", "resource"], maintain_order="left")
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
    return shown, held


def _names(points: pl.DataFrame) -> dict[str, list[str]]:
    return {str(key[0]): group["operation"].to_list() for key, group in points.group_by("step", maintain_order=True)}
