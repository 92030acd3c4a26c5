"""The Layered Prefill page on energy: joules per token by part, under both meanings of "per token"."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from tokentape.dashboards.engine import Ask, Drawn, Nothing, turn_of
from tokentape.dashboards.layered_prefill import rows
from tokentape.dashboards.layered_prefill.words import drawing_order, of_series
from tokentape.dashboards.units import joined, percent, quantity, signed

SERIES = ("table-2", "table-6", "table-8")
PARTS = ("static", "bytes", "ops")
MEANINGS = ("energy_j_per_token", "energy_j_per_output_token")


def energy(ask: Ask) -> Drawn:
    found = of_series(ask.made(rows.points), *SERIES)
    if not set(MEANINGS) <= set(found.columns):
        raise Nothing
    order = ["setting", turn_of("system", drawing_order(found["system"])), "rate"]
    told = found.drop_nulls(MEANINGS).sort(order, descending=[True, False, False])
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
    settings = [{"setting": name} for name in told["setting"].unique(maintain_order=True)]
    return Drawn({"energy": told}, {"": answer(told)}, {"settings": settings})


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
