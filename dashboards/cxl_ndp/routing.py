"""The CXL GPU-NDP page on routing: what two prompts use as they are decoded, and how well a prompt tells what to hold."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards.cxl_ndp.words import ALONE, COSINES, LINES, PLACEMENTS, TOGETHER, setups
from tokentape.dashboards.engine import Ask, Control, Drawn, known, some

LAYER = Control("layer", "Layer")


def use(ask: Ask) -> Drawn:
    """Two prompts of every setup, in so many layers."""
    which = (pl.col("request").rank("dense").over("setup") - 1).cast(pl.Int64)
    step = (pl.col("layer").rank("dense").over("setup") - 1) // (pl.col("layer").n_unique().over("setup") / ask.size).ceil()
    found = some(ask("use")).with_columns(which=which, turn=step).filter(pl.col("which") < 2)
    found = found.filter(pl.col("layer") == pl.col("layer").min().over("setup", "turn")).with_columns(
        layer=pl.col("layer").cast(pl.String)
    )
    return Drawn(
        {"use": found.select("setup", "layer", "which", "request", "bin_steps", "steps", "experts", "used")},
        facts={"routing": setups(found)[0], "cosines": _cosines(found)},
        said=found,
        controls=(LAYER,),
        choices=tuple(found.select("setup", "layer").unique(maintain_order=True).to_dicts()),
    )


def likeness(ask: Ask) -> Drawn:
    """Hit shares with one number of hot experts per setup."""
    similarity, hits = some(ask("similarity")), some(ask("hits"))
    whole = hits.filter(pl.col("layer").is_null()).with_columns(
        said=pl.col("placement").replace(PLACEMENTS),
        group=pl.when(pl.col("batch") == 1).then(pl.lit(ALONE)).otherwise(pl.lit(TOGETHER)),
    )
    alike, mean = similarity.filter(pl.col("layer").is_not_null()), similarity.filter(pl.col("layer").is_null())
    data = {
        "alike": alike.select("setup", "layer", *COSINES),
        "hits": whole.select("setup", "placement", "said", "is_bound", "hot", "batch", "group", "hit", "low", "high"),
    }
    own = {
        "routing": setups(whole)[0],
        "line_names": list(LINES),
        "placements": [PLACEMENTS.get(name, name) for name in known(PLACEMENTS, whole["placement"])],
        "mean": mean,
    }
    return Drawn(data, facts=own, said=whole)


def _cosines(found: pl.DataFrame) -> pl.DataFrame:
    """How alike are the uses of two requests of a layer, and the two halves of one request, mean over both."""
    half = pl.col("steps").list.len() // 2
    bins = found.with_columns(half=half).explode("steps", "experts", "used")
    bins = bins.with_columns(part=pl.int_range(pl.len()).over("setup", "layer", "which") >= pl.col("half"))
    shares = bins.explode("experts", "used")
    keys = ["setup", "layer"]
    whole = shares.group_by(*keys, "which", "experts").agg(pl.sum("used"))
    halves = shares.filter(pl.col("half") > 0).group_by(*keys, "which", "part", "experts").agg(pl.sum("used"))
    across = _cosine(whole.filter(which=0), whole.filter(which=1), keys).rename({"cosine": "across"})
    each = _cosine(halves.filter(~pl.col("part")), halves.filter("part"), [*keys, "which"])
    return across.join(each.group_by(keys).agg(within=pl.mean("cosine")), on=keys)


def _cosine(a: pl.DataFrame, b: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Of the shares of experts."""
    length = (pl.col("used") ** 2).sum().sqrt()
    both = a.join(b, on=[*keys, "experts"], suffix="_b").group_by(keys).agg(dot=(pl.col("used") * pl.col("used_b")).sum())
    sides = (of.group_by(keys).agg(length.alias(name)) for of, name in ((a, "a"), (b, "b")))
    for side in sides:
        both = both.join(side, on=keys)
    return both.select(*keys, cosine=pl.col("dot") / (pl.col("a") * pl.col("b")))
