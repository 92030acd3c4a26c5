"""The CXL GPU-NDP page's first figure: decode throughput by system and model, the paper's ratios beside ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.answers import significant
from tokentape.dashboards.claims_chart import ROLES
from tokentape.dashboards.cxl_ndp.words import HEADLINE, HOBBIT, MAIN, MONDE, OURS, SQUARES, STUDY, SYSTEMS, setups, source, times
from tokentape.dashboards.panels import colour, hollow, known, stacked
from tokentape.dashboards.shell import Figure, Part
from tokentape.dashboards.units import joined

QUESTION = "How much faster do experts decode where they lie, and than what?"
NO_POINTS = f"Nothing to draw: no decode step was computed. {STUDY}"
OVER = {"monde": ("decode_gain", MONDE), "hobbit": ("gain_over_hobbit", HOBBIT)}
TICKS = [m * 10**n for n in range(7) for m in (1, 3)]
BANDED = ("tokens_per_s", *(metric for metric, _ in OVER.values()))


def part(points: pl.DataFrame, published: pl.DataFrame) -> Part:
    """points: rows.points; published: rows.published."""
    found = points.filter((pl.col("series") == HEADLINE) & pl.col("system").is_in(MAIN))
    if found.is_empty():
        return Part((Figure("throughput", QUESTION, None, {}, (), "", NO_POINTS),))
    order = setups(found)
    found = with_published(found, published).sort(
        pl.col("setup").replace_strict({name: n for n, name in enumerate(order)}, return_dtype=pl.Int64),
        pl.col("system").replace_strict({name: n for n, name in enumerate(MAIN)}, return_dtype=pl.Int64),
    )
    kept = [f"{name}{end}" for name in BANDED for end in ("", "_low", "_high")]
    data = found.select("setup", "system", "batch", "hot", "mean_bits", "step_s", *kept, *(f"paper_{over}" for over in OVER))
    reading = (
        "Rules: least to most of the seeds. Hollow diamonds: the paper's ratios, which were fitted on; it has none for other "
        "models, which run with the same constants. HOBBIT fetches every missed expert at low precision and has no NDP; MoNDE "
        "has the same hardware, experts at FP16 and an average that follows use. OURS-2 and OURS-3: 2 and 3 bits on average in "
        "the NDP, experts placed once after the prompt."
    )
    return Part(
        (Figure("throughput", QUESTION, _chart(found, order), {"": answer(found)}, (), reading, NO_POINTS),),
        data={"throughput": data},
    )


def with_published(found: pl.DataFrame, published: pl.DataFrame) -> pl.DataFrame:
    """With the paper's ratios of a model, paper_monde and paper_hobbit, and role_ of each; null where it has none."""
    for over in OVER:
        of = published.filter(pl.col("over") == over).select(
            pl.col("model").alias("setup"),
            "system",
            pl.col("published").alias(f"paper_{over}"),
            pl.col("role").alias(f"role_{over}"),
        )
        found = found.join(of, on=["setup", "system"], how="left")
    return found


def answer(found: pl.DataFrame) -> str:
    """Throughput and gains of ours on the first setup beside the paper's, then on the others."""
    said = []
    ours = found.filter(pl.col("system").is_in(OURS)).drop_nulls("decode_gain")
    for (setup,), of in ours.group_by(["setup"], maintain_order=True):
        rows = of.to_dicts()
        if said:
            gains = [f"{row['decode_gain']:.1f}" for row in rows]
            said.append(f"{setup} {joined(gains)}")
        else:
            each = [f"{row['system']} decodes {significant(row['tokens_per_s'])} tokens/s, {_gains(row)}" for row in rows]
            said.append(f"On {setup} at batch {rows[0]['batch']}, {'; '.join(each)}.")
    if not said:
        return "None of our own systems was computed."
    others = f" With the same constants, × {MONDE} ({joined(ours['system'].unique().sort().to_list())}): {'; '.join(said[1:])}."
    return said[0] + (others if said[1:] else "")


def _gains(row: Mapping[str, Any]) -> str:
    """Over every baseline, with the paper's ratio where it has one."""
    said = []
    for over, (metric, name) in OVER.items():
        if row[metric] is not None:
            role = ROLES.get(row[f"role_{over}"], ("",))[0].partition(":")[0]
            beside = f" (paper {row[f'paper_{over}']:g}, {role})" if row[f"paper_{over}"] is not None else ""
            said.append(f"{times(row[metric])} {name}{beside}")
    return joined(said)


def _chart(found: pl.DataFrame, order: list[str]) -> alt.VConcatChart:
    systems = known(SYSTEMS, found["system"])
    panels = [
        _panel("decode_gain", f"over {MONDE} (×)", order, systems, "paper_monde"),
        _panel("gain_over_hobbit", f"over {HOBBIT} (×)", order, systems, "paper_hobbit"),
        _panel("tokens_per_s", "throughput (tokens/s, log scale)", order, systems, ""),
    ]
    title = source("drawn routing unless a tape is named", "diamonds: the paper")
    return stacked([alt.hconcat(*panels, spacing=26)], title)


def _panel(metric: str, words: str, order: list[str], systems: list[str], paper: str) -> alt.LayerChart:
    base = alt.Chart(alt.NamedData("throughput")).transform_filter(f"isValid(datum.{metric})")
    is_first = metric == "decode_gain"
    axis = alt.Axis(labelLimit=210, ticks=False, domain=False, labelFontSize=12.5) if is_first else None
    y = alt.Y("setup:N", title=None, sort=order, axis=axis, scale=alt.Scale(paddingInner=0.22))
    within = alt.YOffset("system:N", sort=systems, scale=alt.Scale(paddingOuter=0.05, domain=systems))
    is_log = not paper
    scale = alt.Scale(type="log", nice=False, padding=30) if is_log else alt.Scale(domainMin=0, padding=34, nice=False)
    axis_x = alt.Axis(format="~s" if is_log else "d", **({"values": TICKS} if is_log else {"tickCount": 6}))
    x = alt.X(f"{metric}:Q", title=words, scale=scale, axis=axis_x)
    looks = colour(SYSTEMS, "system", systems, SQUARES)
    tips = [
        alt.Tooltip("setup:N", title="model"), alt.Tooltip("system:N"), alt.Tooltip(f"{metric}:Q", title=words, format=".4~g"),
        alt.Tooltip(f"{metric}_low:Q", title="least of seeds", format=".4~g"),
        alt.Tooltip(f"{metric}_high:Q", title="most of seeds", format=".4~g"),
        alt.Tooltip("batch:Q"), alt.Tooltip("hot:Q", title="experts on the GPU"),
        alt.Tooltip("mean_bits:Q", title="bits in the NDP"),
    ]  # fmt: skip
    mark = base.mark_point(size=70) if is_log else base.mark_bar()
    made = mark.encode(x, y, within, looks, tooltip=tips)
    band = base.mark_rule(color=theme.INK, strokeWidth=1.1).encode(
        alt.X(f"{metric}_low:Q"), y, within, alt.X2(f"{metric}_high:Q")
    )
    text = base.transform_calculate(end=f"max(datum.{metric}, isValid(datum.{metric}_high) ? datum.{metric}_high : 0)")
    said = text.mark_text(align="left", dx=6, fontSize=11.5, color=theme.INK).encode(
        alt.X("end:Q"), y, within, text=alt.Text(f"{metric}:Q", format=",.0f" if is_log else ".1f")
    )
    layers = [made, band, said]
    if paper:
        marks = hollow(base, 80, at=(paper, f"datum.{metric}"))
        layers.append(marks.encode(alt.X("at:Q"), y, within, color=alt.value(theme.INK), shape=alt.value("diamond")))
    return alt.layer(*layers).properties(width=300 if is_first else 255, height=76 * len(order))
