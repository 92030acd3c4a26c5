"""The ELMoE-3D page on energy: joules of a token by part, platform and batch (Figure 15)."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards.elmoe3d.platforms import mean_words, named
from tokentape.dashboards.elmoe3d.words import JOULES, OURS, PLATFORMS, facts, models
from tokentape.dashboards.engine import Ask, Drawn, in_words, known, sentences, some, turn_of
from tokentape.dashboards.units import highest, lowest, percent, quantity

REFERENCE = "xpu"
SETTING = ["law", "model", "batch"]


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
