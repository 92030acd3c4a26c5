"""The CXL GPU-NDP page's first figure: decode throughput by system and model, the paper's ratios beside ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tokentape.dashboards.cxl_ndp.words import HEADLINE, HOBBIT, MAIN, MONDE, OURS, setups, times
from tokentape.dashboards.engine import Ask, Drawn, some, turn_of
from tokentape.dashboards.theme import ROLES
from tokentape.dashboards.units import joined, significant

OVER = {"monde": ("decode_gain", MONDE), "hobbit": ("gain_over_hobbit", HOBBIT)}
TICKS = [m * 10**n for n in range(7) for m in (1, 3)]
BANDED = ("tokens_per_s", *(metric for metric, _ in OVER.values()))


def throughput(ask: Ask) -> Drawn:
    found = some(ask("points").filter((pl.col("series") == HEADLINE) & pl.col("system").is_in(MAIN)))
    order = setups(found)
    found = with_published(found, ask("published")).sort(
        turn_of("setup", order),
        turn_of("system", MAIN),
    )
    kept = [f"{name}{end}" for name in BANDED for end in ("", "_low", "_high")]
    data = found.select("setup", "system", "batch", "hot", "mean_bits", "step_s", *kept, *(f"paper_{over}" for over in OVER))
    own = {"height": 76 * len(order), "ticks": TICKS}
    return Drawn({"throughput": data}, {"": answer(found)}, own)


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
    said: list[str] = []
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
