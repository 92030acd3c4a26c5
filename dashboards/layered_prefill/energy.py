"""The Layered Prefill page on energy: joules per token by part, under both meanings of "per token"."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.answers import percent
from tokentape.dashboards.claims import signed
from tokentape.dashboards.layered_prefill.words import LEGEND, STUDY, WIDE, drawing_order, of_series
from tokentape.dashboards.shell import Figure, Part
from tokentape.dashboards.units import joined, quantity

QUESTION = "What does a token cost in energy, and where does it go?"
NO_ENERGY = f"Nothing to draw: no energy of a serving point is recorded. {STUDY}"
SERIES = ("table-2", "table-6", "table-8")
PARTS = {"static": ("static power", theme.QUIET), "bytes": ("bytes moved", theme.BLUE), "ops": ("operations", theme.ORANGE)}
MEANINGS = {"energy_j_per_token": "per prompt and output token", "energy_j_per_output_token": "per output token"}


def part(points: pl.DataFrame) -> Part:
    """points: rows.points."""
    found = of_series(points, *SERIES)
    if found.is_empty() or not set(MEANINGS) <= set(found.columns):
        return Part((Figure("energy", QUESTION, None, {}, (), "", NO_ENERGY),))
    turn = {name: n for n, name in enumerate(drawing_order(found["system"]))}
    order = ["setting", pl.col("system").replace_strict(turn, return_dtype=pl.Int64), "rate"]
    told = found.drop_nulls(list(MEANINGS)).sort(order, descending=[True, False, False])
    split = pl.sum_horizontal(f"energy_{name}_j" for name in PARTS)
    told = told.select(
        "setting",
        "system",
        "rate",
        "n_seeds",
        *(f"{name}{end}" for name in MEANINGS for end in ("", "_low", "_high")),
        *((pl.col(f"energy_{name}_j") / split).alias(name) for name in PARTS),
        label=pl.format("{} at {}/s", "system", "rate"),
    )
    return Part(
        (
            Figure(
                "energy",
                QUESTION,
                _chart(
                    told["setting"].unique(maintain_order=True).to_list(), told["label"].unique(maintain_order=True).to_list()
                ),
                {"": answer(told)},
                (),
                "The paper's Table 8 says energy per output token; its definition, and its numbers, are per prompt and output "
                "token. Both are drawn, on scales of their own. Static: power that flows whatever is done; bytes: of experts, "
                "other weights, KV cache and activations. The split between static power and bytes follows from a fit and is "
                "the least certain part. Rules: 5 to 95 % of the seeds.",
                NO_ENERGY,
            ),
        ),
        data={"energy": told},
    )


def answer(found: pl.DataFrame) -> str:
    """Per setting: each scheduler at the rate that most share, layered against chunked, and the share of the bytes."""
    said = []
    for (setting,), of in found.group_by(["setting"], maintain_order=True):
        shared = of.group_by("rate").len().sort(["len", "rate"], descending=[True, False])["rate"][0]
        rows = of.filter(pl.col("rate") == shared).to_dicts()
        told = [
            f"{quantity(row['energy_j_per_token'], 'J')} ({row['system']}; {quantity(row['energy_j_per_output_token'], 'J')} "
            f"per output token; bytes {percent(row['bytes'], 0)})"
            for row in rows
        ]
        said.append(f"{setting} at {shared:g}/s takes {joined(told)} per prompt and output token{_change(rows)}")
    return f"{'; '.join(said)}."


def _change(rows: Sequence[dict[str, float | str]]) -> str:
    """Layered's over chunked's, where both were served at the rate."""
    by_kind = {str(row["system"]).split(" ", 1)[0]: float(row["energy_j_per_token"]) for row in rows}
    if not {"layered", "chunked"} <= by_kind.keys():
        return ""
    return f" (layered {signed(by_kind['layered'] / by_kind['chunked'] - 1)})"


def _chart(settings: Sequence[str], labels: Sequence[str]) -> alt.VConcatChart:
    rows = []
    for setting in settings:
        panels = [_panel(setting, labels, column, words, first) for first, (column, words) in enumerate(MEANINGS.items())]
        rows.append(alt.hconcat(*panels, spacing=40))
    return alt.vconcat(*rows, spacing=18)


def _panel(setting: str, labels: Sequence[str], column: str, words: str, place: int) -> alt.LayerChart:
    base = alt.Chart(alt.NamedData("energy")).transform_filter(f"datum.setting === {theme.quote(setting)}")
    axis = alt.Axis(labelLimit=220, ticks=False, domain=False, labelFontSize=12.5) if place == 0 else None
    y = alt.Y("label:N", title=None, sort=list(labels), axis=axis)
    parts = base.transform_fold(list(PARTS), as_=["part", "share"]).transform_calculate(
        mj=f"datum.share * datum.{column} * 1000",
        words=f"({theme.literal({name: said for name, (said, _) in PARTS.items()})})[datum.part]",
        place=f"indexof({list(PARTS)}, datum.part)",
    )
    x = alt.X("mj:Q", title=f"energy {words} (mJ)", stack="zero", axis=alt.Axis(format=",.0f", tickCount=6))
    scale = alt.Scale(domain=[said for said, _ in PARTS.values()], range=[colour for _, colour in PARTS.values()])
    colour = alt.Color("words:N", scale=scale, legend=LEGEND)
    tips = [
        alt.Tooltip("system:N"),
        alt.Tooltip("rate:Q", title="requests per second"),
        alt.Tooltip("words:N", title="part"),
        alt.Tooltip("mj:Q", title="mJ", format=".3~g"),
        alt.Tooltip("share:Q", format=".0%"),
    ]
    bars = parts.mark_bar(opacity=0.85).encode(x, y, colour, alt.Order("place:Q"), tooltip=tips)
    ends = base.transform_calculate(
        low=f"datum.{column}_low * 1000", high=f"datum.{column}_high * 1000", all=f"datum.{column} * 1000"
    )
    band = ends.mark_rule(color=theme.INK, strokeWidth=2).encode(alt.X("low:Q"), y, alt.X2("high:Q"))
    said = ends.mark_text(align="left", dx=8, fontSize=12, color=theme.INK).encode(
        alt.X("high:Q"), y, text=alt.Text("all:Q", format=",.0f" if place else ".1f")
    )
    title = setting if place == 0 else ""
    return alt.layer(bars, band, said).properties(width=WIDE / 2 - 80, height=alt.Step(26), title=title)
