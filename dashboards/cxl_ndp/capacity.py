"""The CXL GPU-NDP page on memory: what lies in HBM and in the NDP's, and whether the model needs an NDP at all."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards.cxl_ndp.words import setups
from tokentape.dashboards.engine import Ask, Drawn, some, turn_of
from tokentape.dashboards.units import joined, percent

TIERS = {"hbm": "HBM of the GPU", "cxl": "memory of the NDP"}
HOT, EXPERTS = "hot experts", "FP16 experts"


def capacity(ask: Ask) -> Drawn:
    whole = pl.col("gb").sum().over("hardware", "model", "hot", "tier")
    found = some(ask("capacity")).with_columns(
        tier_said=pl.col("tier").replace(TIERS), whole=whole, named=pl.format("{}, K = {}", "model", "hot"),
        place=turn_of("model", setups(ask("points"), ask("requests"))),
    ).sort("place", "model", "hot", "tier", "part")  # fmt: skip
    machines = joined(found["hardware"].unique().sort().to_list())
    return Drawn({"capacity": found}, {"": answer(found)}, {"machines": machines})


def answer(found: pl.DataFrame) -> str:
    """What is full, what does not fit, and which models would fit the GPU whole."""
    tiers = found.unique(["named", "tier"], maintain_order=True).with_columns(full=pl.col("whole") / pl.col("tier_gb"))
    over = tiers.filter(pl.col("full") > 1)
    said = []
    for tier, words in TIERS.items():
        most = tiers.filter(pl.col("tier") == tier).sort("full").tail(1).to_dicts()
        said += [
            f"the {words} is fullest with {row['named']}: {row['whole']:,.1f} of {row['tier_gb']:,.0f} GB "
            f"({percent(row['full'], 0)})"
            for row in most
        ]
    names = joined(over["named"].unique(maintain_order=True).to_list())
    first = f"{f'{names} does not fit' if names else 'Everything fits'}: {joined(said)}."
    needless = _needless(found)
    return first + (
        f" {joined(needless)} would fit the GPU whole at FP16 and need{'s' * (len(needless) == 1)} no NDP." if needless else ""
    )


def _needless(found: pl.DataFrame) -> list[str]:
    """Models whose HBM would hold all experts beside the rest."""
    said = []
    for (model,), of in found.group_by(["model"], maintain_order=True):
        hbm = of.filter(pl.col("tier") == "hbm")
        wanted = pl.concat([hbm.filter(pl.col("part") != HOT), of.filter(pl.col("part") == EXPERTS)])["gb"].sum()
        if wanted <= hbm["tier_gb"].max():  # type: ignore[operator]
            said.append(str(model))
    return said
