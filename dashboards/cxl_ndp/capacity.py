"""The CXL GPU-NDP page on memory: what lies in HBM and in the NDP's, and whether the model needs an NDP at all."""

from __future__ import annotations

import altair as alt
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.answers import percent
from tokentape.dashboards.cxl_ndp.words import SQUARES, STUDY, source
from tokentape.dashboards.panels import colour, stacked
from tokentape.dashboards.shell import Figure, Part
from tokentape.dashboards.units import joined

QUESTION = "What lies where, and does it fit?"
NO_CAPACITY = f"Nothing to draw: no memory was counted. {STUDY}"
TIERS = {"hbm": "HBM of the GPU", "cxl": "memory of the NDP"}
HOT, EXPERTS = "hot experts", "FP16 experts"
PARTS = {
    HOT: theme.VERMILLION,
    "attention, shared and dense": theme.BLUE,
    "embeddings": theme.SKY,
    "KV": theme.GREEN,
    EXPERTS: theme.ORANGE,
    "replicas": theme.PURPLE,
}


def part(capacity: pl.DataFrame, order: list[str]) -> Part:
    """capacity: rows.capacity; order: models as the page has them."""
    if capacity.is_empty():
        return Part((Figure("capacity", QUESTION, None, {}, (), "", NO_CAPACITY),))
    place = {name: n for n, name in enumerate(order)}
    whole = pl.col("gb").sum().over("hardware", "model", "hot", "tier")
    found = capacity.with_columns(
        tier_said=pl.col("tier").replace(TIERS), whole=whole, named=pl.format("{}, K = {}", "model", "hot"),
        place=pl.col("model").replace_strict(place, default=len(place), return_dtype=pl.Int64),
    ).sort("place", "model", "hot", "tier", "part")  # fmt: skip
    reading = (
        "K: experts of a layer on the GPU. HBM holds them, what every token reads, and the KV of the page's batch and context; "
        "the NDP holds all experts at FP16 and replicas of 1, 2, 3 and 4 bits. Rule: capacity. Activations and buffers are not "
        "counted."
    )
    return Part(
        (Figure("capacity", QUESTION, _chart(found), {"": answer(found)}, (), reading, NO_CAPACITY),), data={"capacity": found}
    )


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
        wanted = hbm.filter(pl.col("part") != HOT)["gb"].sum() + of.filter(pl.col("part") == EXPERTS)["gb"].sum()
        if wanted <= hbm["tier_gb"].max():  # type: ignore[operator]
            said.append(str(model))
    return said


def _chart(found: pl.DataFrame) -> alt.VConcatChart:
    panels = [_panel(tier, found, n == 0) for n, tier in enumerate(TIERS)]
    return stacked([alt.hconcat(*panels, spacing=30)], source(joined(found["hardware"].unique().sort().to_list())))


def _panel(tier: str, found: pl.DataFrame, is_left: bool) -> alt.LayerChart:
    base = alt.Chart(alt.NamedData("capacity")).transform_filter(f"datum.tier === '{tier}'")
    axis = alt.Axis(ticks=False, domain=False, labelFontSize=12.5, labelLimit=220) if is_left else None
    y = alt.Y("named:N", title=None, sort=found["named"].unique(maintain_order=True).to_list(), axis=axis)
    x = alt.X("gb:Q", title=f"{TIERS[tier]} (GB)", stack="zero", axis=alt.Axis(tickCount=6))
    turn = base.transform_calculate(turn=f"indexof({list(PARTS)}, datum.part)")
    tips = [
        alt.Tooltip("named:N", title="model"), alt.Tooltip("part:N"), alt.Tooltip("gb:Q", title="GB", format=",.2f"),
        alt.Tooltip("whole:Q", title="all (GB)", format=",.1f"),
    ]  # fmt: skip
    bars = turn.mark_bar(height=15).encode(x, y, colour(PARTS, "part", list(PARTS), SQUARES), alt.Order("turn:Q"), tooltip=tips)
    sums = base.transform_aggregate(whole="max(whole)", groupby=["named"])
    said = sums.mark_text(align="left", dx=5, fontSize=11.5, color=theme.INK).encode(
        alt.X("whole:Q"), y, text=alt.Text("whole:Q", format=",.1f")
    )
    end = base.transform_aggregate(tier_gb="max(tier_gb)").mark_rule(color=theme.INK, strokeWidth=2).encode(alt.X("tier_gb:Q"))
    return alt.layer(bars, said, end).properties(width=430, height=alt.Step(26))
