"""The CXL GPU-NDP page on routing: what two prompts use as they are decoded, and how well a prompt tells what to hold."""

from __future__ import annotations

import math
from collections.abc import Mapping

import polars as pl

from tokentape.dashboards.cxl_ndp.words import ALONE, COSINES, LINES, PLACEMENTS, TOGETHER, setups
from tokentape.dashboards.engine import Ask, Control, Drawn, known, rows_like, sentences, some
from tokentape.dashboards.units import highest, joined, lowest, percent

LAYER = Control("layer", "Layer")
GUIDED, STATIC = "prefill_guided", "static_global"
BESIDE = (STATIC, "shuffled_prompts", "ema", "oracle")  # what the sentence names; the chart has all


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
        sentences(found, ["setup", "layer"], use_answer),
        {"routing": setups(found)[0]},
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
    said = sentences(
        whole, ["setup"], lambda of: likeness_answer(rows_like(mean, of, "setup"), rows_like(alike, of, "setup"), of)
    )
    data = {
        "alike": alike.select("setup", "layer", *COSINES),
        "hits": whole.select("setup", "placement", "said", "is_bound", "hot", "batch", "group", "hit", "low", "high"),
    }
    own = {
        "routing": setups(whole)[0],
        "line_names": list(LINES),
        "placements": [PLACEMENTS.get(name, name) for name in known(PLACEMENTS, whole["placement"])],
    }
    return Drawn(data, said, own)


def use_answer(found: pl.DataFrame) -> str:
    """Cosine of the use of two requests, and of the two halves of one; rows of one layer."""
    told = [_mean(row["experts"], row["used"]) for row in found.to_dicts()]
    halves = [
        _cosine(_mean(row["experts"][:middle], row["used"][:middle]), _mean(row["experts"][middle:], row["used"][middle:]))
        for row in found.to_dicts()
        for middle in [len(row["experts"]) // 2]
        if middle
    ]
    if len(told) < 2 or not halves:
        return "Only one request, or one bin of it, is recorded."
    across, within = _cosine(told[0], told[1]), sum(halves) / len(halves)
    verdict = "Not quite" if across < within else "Yes"
    return (
        f"{verdict}: in layer {found['layer'][0]} the two requests' use has a cosine of {across:.2f}; the first and the second "
        f"half of one request have {within:.2f}."
    )


def _mean(experts: list[list[int]], used: list[list[float]]) -> dict[int, float]:
    """Expert -> its share, over bins."""
    total: dict[int, float] = {}
    for of, shares in zip(experts, used, strict=True):
        for expert, share in zip(of, shares, strict=True):
            total[expert] = total.get(expert, 0.0) + share / len(experts)
    return total


def _cosine(a: Mapping[int, float], b: Mapping[int, float]) -> float:
    lengths = math.hypot(*a.values()) * math.hypot(*b.values())
    return sum(value * b.get(expert, 0.0) for expert, value in a.items()) / lengths


def likeness_answer(mean: pl.DataFrame, layers: pl.DataFrame, whole: pl.DataFrame) -> str:
    """Cosines and how much of them is popularity; hit shares of the placements per batch. Rows of one setup."""
    said = []
    for row in mean.to_dicts():
        span = f" ({lowest(layers['own']):.2f} to {highest(layers['own']):.2f} over layers)" if layers.height > 1 else ""
        shared = row["static_frac"]
        static = f"; of what lies above even use {percent(shared, 0)} is popularity" if shared is not None else ""
        said.append(
            f"A prompt and its decode use a layer's experts alike to a cosine of {row['own']:.2f}{span}; with another request's "
            f"prompt it is {row['shuffled']:.2f}{static}."
        )
    for (batch,), of in whole.sort("batch").group_by(["batch"], maintain_order=True):
        held = dict(of.select("placement", "hit").iter_rows())
        told = [f"{PLACEMENTS[name]} {percent(held[name])}" for name in BESIDE if name in held]
        ahead = f", {100 * (held[GUIDED] - held[STATIC]):+.1f} points over static" if {GUIDED, STATIC} <= held.keys() else ""
        first = f"{PLACEMENTS[GUIDED]} hits {percent(held[GUIDED])}{ahead}; " if GUIDED in held else ""
        said.append(f"At batch {batch} with {of['hot'][0]} experts held, {first}{joined(told)}.")
    return " ".join(said)
