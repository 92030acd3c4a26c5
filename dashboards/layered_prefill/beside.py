"""The Layered Prefill page's side-by-side figures: the same schedulers under other arrivals, beside older ones, elsewhere."""

from collections.abc import Sequence

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


def drawn(ask: Ask, name: str, series: Sequence[str], row: Sequence[str]) -> Drawn:
    """series: of the figure; row: what of a point names its row."""
    found = some(_rows(ask.made(rows.points), name, series, row))
    scales = {True: "log tight padding=16", False: "free padding=16 tight"}
    measures = [
        {"of": of, "title": title, "factor": factor, "form": form, "scale": scales[of in LOG]}
        for of, (title, factor, form) in MEASURES.items()
        if of in found.columns
    ]
    return Drawn({name: found}, facts={"name": name, "measures": measures, **looks(found["system"])})


def _rows(points: pl.DataFrame, figure: str, series: Sequence[str], row: Sequence[str]) -> pl.DataFrame:
    """A row per point, named by place and rate; only where the first of the series or more than one system is there."""
    held = of_series(points, *series)
    if held.is_empty():
        return held
    metrics = [name for name in MEASURES if name in held.columns and held[name].count()]
    turn = [turn_of("series", held["series"].unique(maintain_order=True)), "model", "hardware", "arrival", "rate", "system"]
    told = held.filter(pl.col("rate").is_not_null()).sort(turn).with_columns(label=_label(row))
    if figure == "others":
        is_other = ~pl.col("scheduler").is_in(["chunked", "layered"]) | pl.col("series").eq("other schedulers")
        told = told.filter(pl.col("rate").is_in(told.filter(is_other)["rate"].unique().implode()))
    if figure == "arrivals" and told["arrival"].n_unique() < 2:
        return told.clear()
    bands = [f"{name}{end}" for name in metrics for end in ("", "_low", "_high")]
    order = turn_of("label", told["label"].unique(maintain_order=True))
    return told.select("label", "system", "scheduler", "n_seeds", *bands, order=order)


def _label(row: Sequence[str]) -> pl.Expr:
    """A row's name; a trace is called as its series, not as its tape."""
    cached = pl.when(pl.col("workload").str.contains("prefix cache")).then(pl.lit(" with prefix cache")).otherwise(pl.lit(""))
    named = pl.concat_str([pl.col(name) for name in row], separator=", ")
    trace = pl.format("{} trace{}", pl.col("series").str.to_titlecase(), cached)
    return pl.format("{}, {}/s", pl.when(pl.col("arrival") == "trace").then(trace).otherwise(named), "rate")
