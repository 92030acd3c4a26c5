"""The Layered Prefill page's side-by-side figures: the same schedulers under other arrivals, beside older ones, elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from tokentape.dashboards.engine import Ask, Drawn, some, turn_of
from tokentape.dashboards.layered_prefill import rows
from tokentape.dashboards.layered_prefill.words import looks, of_series

# Metric -> title and what turns it into what is shown; times on logarithmic axes.
MEASURES = {
    "ttft_mean_s": ("mean TTFT (s, log)", "1", "~s"),
    "tbt_p99_s": ("TBT p99 (ms, log)", "1000", "~s"),
    "energy_j_per_token": ("energy per token (mJ)", "1000", ",.0f"),
    "jain": ("Jain index (1: all alike)", "1", ".2f"),
}
LOG = ("ttft_mean_s", "tbt_p99_s")


@dataclass(frozen=True)
class Beside:
    """One figure: its series, and what of a point names its row."""

    name: str
    series: Sequence[str]
    row: Sequence[str]


def drawn(ask: Ask, **given: Any) -> Drawn:
    """given: fields of a Beside."""
    beside = Beside(**given)
    found = some(_rows(ask.made(rows.points), beside))
    scales = {True: "log tight padding=16", False: "free padding=16 tight"}
    measures = [
        {"of": name, "title": title, "factor": factor, "form": form, "scale": scales[name in LOG]}
        for name, (title, factor, form) in MEASURES.items()
        if name in found.columns
    ]
    return Drawn({beside.name: found}, facts={"name": beside.name, "measures": measures, **looks(found["system"])})


def _rows(points: pl.DataFrame, beside: Beside) -> pl.DataFrame:
    """A row per point, named by place and rate; only where the first series of `beside` or more than one system is there."""
    held = of_series(points, *beside.series)
    if held.is_empty():
        return held
    metrics = [name for name in MEASURES if name in held.columns and held[name].count()]
    turn = [turn_of("series", held["series"].unique(maintain_order=True)), "model", "hardware", "arrival", "rate", "system"]
    told = held.filter(pl.col("rate").is_not_null()).sort(turn).with_columns(label=_label(beside))
    if beside.name == "others":
        is_other = ~pl.col("scheduler").is_in(["chunked", "layered"]) | pl.col("series").eq("other schedulers")
        told = told.filter(pl.col("rate").is_in(told.filter(is_other)["rate"].unique().implode()))
    if beside.name == "arrivals" and told["arrival"].n_unique() < 2:
        return told.clear()
    bands = [f"{name}{end}" for name in metrics for end in ("", "_low", "_high")]
    order = turn_of("label", told["label"].unique(maintain_order=True))
    return told.select("label", "system", "scheduler", "n_seeds", *bands, order=order)


def _label(beside: Beside) -> pl.Expr:
    """A row's name; a trace is called as its series, not as its tape."""
    cached = pl.when(pl.col("workload").str.contains("prefix cache")).then(pl.lit(" with prefix cache")).otherwise(pl.lit(""))
    named = pl.concat_str([pl.col(name) for name in beside.row], separator=", ")
    trace = pl.format("{} trace{}", pl.col("series").str.to_titlecase(), cached)
    return pl.format("{}, {}/s", pl.when(pl.col("arrival") == "trace").then(trace).otherwise(named), "rate")
