"""Rows that figures of the ELMoE-3D page share. machine: capacity of the hybrid-bonded memory in words; law: the hit model."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards.elmoe3d.words import ELASTIC, HEADLINE_FIT, SCHEMES, SHOWN_LAWS, TABLE
from tokentape.dashboards.engine import Ask, turn_of
from tokentape.warehouse import models


def points(ask: Ask) -> pl.DataFrame:
    """The study's points.

    can_draft: not where Elastic-SD has fewer experts in HB than a token selects; an alpha taken over from elsewhere means nothing
    there, and neither does phi_sd.
    """
    found = ask("points")
    top_k = {name: models.load(name).geometry.top_k for name in found["model"].unique() if name in models.names()}
    selected = pl.col("model").replace_strict(top_k, default=0, return_dtype=pl.Float64)
    return found.with_columns(can_draft=(pl.col("scheme") != ELASTIC) | (pl.col("draft_experts") >= selected))


def turn() -> pl.Expr:
    """A scheme's place in the house order."""
    return turn_of("scheme", SCHEMES)


def table(ask: Ask) -> pl.DataFrame:
    """Table 3 under the hit models of the menu and every level, at constants fitted on no predicted row."""
    kept = (pl.col("series") == TABLE) & (pl.col("fit") == HEADLINE_FIT) & pl.col("law").is_in(SHOWN_LAWS)
    order = ["law", "level", "model", "gib", turn(), "batch"]
    return ask.made(points).filter(kept).sort(order, descending=[False, True, True, False, False, False])


def swept(ask: Ask) -> pl.DataFrame:
    """The sweep over batches, where a scheme can draft."""
    return ask.made(points).filter((pl.col("series") == "batch") & pl.col("can_draft"))
