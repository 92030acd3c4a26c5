"""The ELMoE-3D page on reuse (Figure 16): misses by batch, model and data set, and experts of one request or of many."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards.elmoe3d.words import TOKENS_OF, facts, law_words
from tokentape.dashboards.engine import Ask, Control, Drawn, options, some, turn_of
from tokentape.dashboards.units import highest, percent

OPENS_AT = 0.125  # the cached share nearest to the paper's machines


def misses(ask: Ask) -> Drawn:
    found = _panels(some(ask("misses")), ask.size).with_columns(
        law_words=law_words(), share=pl.col("cache_frac").map_elements(lambda frac: f"{frac:g}", pl.String)
    )
    shares = sorted(found["share"].unique(), key=lambda share: (abs(float(share) - OPENS_AT), float(share)))
    return Drawn(
        {"misses": found.drop("source", "origin")},
        facts=facts(found),
        controls=(Control("share", "Cached share of a layer", {share: percent(float(share), 1) for share in shares}),),
        choices=options("share", shares),
    )


def unions(ask: Ask) -> Drawn:
    counted = some(ask("unions"))
    of_one = counted.filter(pl.col("tokens_of") == "one_request")
    most = highest((counted if of_one.is_empty() else of_one)["n_tokens"])
    found = _panels(counted.filter(pl.col("n_tokens") <= most), ask.size).with_columns(
        whose=pl.col("tokens_of").replace(dict(zip(("decode", "one_request", "prefill"), TOKENS_OF, strict=True))),
        fidelity=pl.when(pl.col("form") == "recorded").then(pl.lit("exact")).otherwise(pl.lit("approximate")),
    )
    return Drawn({"unions": found.drop("source", "origin")}, facts=facts(found))


def _panels(found: pl.DataFrame, size: int) -> pl.DataFrame:
    """With `panel`: model and data set, and the tape's end where several have both; the first `size`, captured ones first."""
    name, end = pl.format("{}, {}", "model", "dataset"), pl.col("source").str.tail(4)
    is_one = pl.col("source").n_unique().over("model", "dataset") == 1
    told = found.with_columns(
        panel=pl.when(is_one).then(name).otherwise(pl.format("{}, {}", name, end)), is_made=pl.col("origin") == "synthetic"
    )
    order = told.select("is_made", "model", "panel").unique().sort("is_made", "model", "panel", descending=[False, True, False])
    kept = order["panel"].head(size)
    return told.filter(pl.col("panel").is_in(kept.implode())).sort(turn_of("panel", kept), maintain_order=True)
