"""The ELMoE-3D page on other platforms: speed-ups over the xPU (Figure 14) and joules of a token by part (Figure 15)."""

from __future__ import annotations

from typing import Any

import polars as pl

from tokentape.dashboards.elmoe3d.words import JOULES, LAWS, MODES, OURS, PLATFORMS, facts, models
from tokentape.dashboards.engine import Ask, Drawn, in_words, known, some, turn_of
from tokentape.dashboards.units import highest

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
    return Drawn({"platforms": kept}, facts=facts(told) | own, said=told)


def named() -> pl.Expr:
    """A platform as it is written."""
    return in_words("platform", PLATFORMS)


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
    return Drawn({"energy": found, "energy_totals": totals}, facts=facts(totals) | own, said=totals)


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
