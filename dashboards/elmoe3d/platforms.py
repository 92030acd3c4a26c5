"""The ELMoE-3D page on other platforms: speed-ups over the xPU (Figure 14)."""

from __future__ import annotations

from typing import Any

import polars as pl

from tokentape.dashboards.elmoe3d.words import LAWS, MODES, OURS, PLATFORMS, facts, models
from tokentape.dashboards.engine import Ask, Drawn, in_words, sentences, some
from tokentape.dashboards.units import highest, mean_of


def platforms(ask: Ask) -> Drawn:
    found = some(ask("platforms").filter(pl.col("law").is_in(list(LAWS))))
    told = found.with_columns(words=named(), mode=pl.col("mode").replace(MODES), panel=pl.format("{}, {}", "model", "dataset"))
    near = told.drop_nulls("least_ratio").head(1).to_dicts()
    inputs = [
        f", near-memory bandwidth {row['least_ratio']:g} to {row['most_ratio']:g} × EXT (line: {row['ratio']:g}), dense or "
        "experts placed there"
        for row in near
    ]
    first = told.row(0, named=True)
    own: dict[str, Any] = {name: f"{first[name]:g}" for name in ("least_nodes", "most_nodes", "nodes")}
    own["inputs"] = "".join(inputs)
    own["panels"] = [f"{model}, {dataset}" for model in models(told) for dataset in told["dataset"].unique().sort()]
    kept = told.select("law", "panel", "words", "mode", "batch", "speedup", "low", "high")
    return Drawn({"platforms": kept}, sentences(told, ["law"], platforms_answer), facts(told) | own)


def named() -> pl.Expr:
    """A platform as it is written."""
    return in_words("platform", PLATFORMS)


def platforms_answer(found: pl.DataFrame) -> str:
    """Our better mode over the xPU and over the best other platform without HB, over all models and batches; rows of one law."""
    best = found.group_by("platform", "model", "batch").agg(pl.max("speedup"), pl.max("low"), pl.max("high"))
    ours = best.filter(pl.col("platform") == OURS)
    prior = (
        best.filter(~pl.col("platform").is_in([OURS, "hb-xpu"]))
        .group_by("model", "batch")
        .agg(pl.max("speedup").alias("prior"), pl.max("low").alias("prior_low"), pl.max("high").alias("prior_high"))
    )
    both = ours.join(prior, on=["model", "batch"])
    if both.is_empty():
        return "Our platform was not computed beside another."
    over = both["speedup"] / both["prior"]
    least, most = mean_of(both["low"] / both["prior_high"]), mean_of(both["high"] / both["prior_low"])
    said = (
        f"ELMoE-3D is {mean_words(ours['speedup'])} × the xPU on average and {highest(ours['speedup']):.1f} × at most; "
        f"over the best other platform without HB it is {mean_words(over)} × on average ({least:.1f} to {most:.1f} × over "
        "what the paper does not give)"
    )
    hb = best.filter(pl.col("platform") == "hb-xpu").join(ours, on=["model", "batch"], suffix="_ours")
    beside = f", over HB-xPU with EAGLE3 {mean_words(hb['speedup_ours'] / hb['speedup'])} ×" if not hb.is_empty() else ""
    lost = both.filter(pl.col("speedup") < pl.col("prior"))
    return f"{said}{beside}. It is ahead in {both.height - lost.height} of {both.height} settings."


def mean_words(values: pl.Series) -> str:
    """A mean to one decimal."""
    return f"{mean_of(values):.1f}"
