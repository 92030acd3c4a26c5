"""The ELMoE-3D page on other platforms: speed-ups over the xPU (Figure 14) and joules of a token by part (Figure 15)."""

from __future__ import annotations

from typing import Any

import polars as pl

from tokentape.dashboards.elmoe3d.words import JOULES, LAWS, MODES, OURS, PLATFORMS, facts, models
from tokentape.dashboards.engine import Ask, Drawn, in_words, known, sentences, some, turn_of
from tokentape.dashboards.units import highest, lowest, mean_of, percent, quantity

REFERENCE = "xpu"
SETTING = ["law", "model", "batch"]


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


def energy(ask: Ask) -> Drawn:
    found, totals = _relative(some(ask("energy")))
    names, batches = models(found), found["batch"].unique().sort().to_list()
    each = [
        {
            "model": model,
            "each_batch": [
                {
                    "batch": batch,
                    "heading": f"batch {batch}" if model == names[0] else "",
                    "side": f"{model} (platform)" if batch == batches[0] else None,
                    "axis": "bare labelFontSize=11.5" if batch == batches[0] else "none",
                    "title": "energy per token (ELMoE-3D = 1)" if model == names[-1] else None,
                    "is_bottom": model == names[-1],
                }
                for batch in batches
            ],
        }
        for model in names
    ]
    platforms = totals.sort("place")["words"].unique(maintain_order=True).to_list()
    own = {"each_model": each, "domain": [0, highest(totals["relative"]) * 1.3], "platforms": platforms}
    return Drawn({"energy": found, "energy_totals": totals}, sentences(totals, ["law"], energy_answer), facts(totals) | own)


def _relative(energy: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Parts and totals over our platform's total of the same law, model and batch."""
    ours = energy.filter(pl.col("platform") == OURS).group_by(SETTING).agg(pl.sum("j_per_token").alias("own"))
    beside = energy.join(ours, on=SETTING).with_columns(
        words=named(),
        said=in_words("part", JOULES),
        relative=pl.col("j_per_token") / pl.col("own"),
        turn=turn_of("part", JOULES),
        place=turn_of("platform", known(PLATFORMS, energy["platform"])),
    )
    totals = beside.group_by(*SETTING, "level", "dataset", "platform", "words", "place", "mode", maintain_order=True).agg(
        pl.sum("relative", "j_per_token"), low=pl.sum("low") / pl.first("own"), high=pl.sum("high") / pl.first("own")
    )
    kept = beside.select(*SETTING, "words", "said", "turn", "place", "mode", "relative", "j_per_token").filter(
        pl.col("relative") > 0
    )
    return kept.sort("law", "model", "batch", "place", "turn"), totals.sort("law", "model", "batch", "place")


def energy_answer(totals: pl.DataFrame) -> str:
    """The xPU and the best other platform over ours; a token in joules; rows of one law."""
    ours = totals.filter(pl.col("platform") == OURS)
    xpu = totals.filter(pl.col("platform") == REFERENCE)["relative"]
    prior = (
        totals.filter(pl.col("platform") != OURS)
        .group_by("model", "batch")
        .agg(pl.min("relative"), pl.col("words").get(pl.col("relative").arg_min()))
    )
    cost = ours["j_per_token"]
    said = f"A token costs {quantity(lowest(cost), 'J')} to {quantity(highest(cost), 'J')} on ELMoE-3D"
    said += f"; the xPU takes {mean_words(xpu)} × as much on average" if not xpu.is_empty() else ""
    if prior.is_empty():
        return f"{said}."
    nearest = prior.group_by("words").len().sort("len", "words", descending=[True, False]).row(0)
    dearer = prior.filter(pl.col("relative") < 1).height
    lost = f" in {dearer} settings another platform is cheaper" if dearer else " no other platform is cheaper in any setting"
    return (
        f"{said}; the cheapest other platform (mostly {nearest[0]}) {mean_words(prior['relative'])} ×;{lost}. SD is the "
        f"faster mode of ELMoE-3D in {percent(ours.filter(pl.col('mode') == 'sd').height / ours.height, 0)} of the settings."
    )
