"""Rows that figures of the Kelle page share. Gains are over Original+SRAM at the same model, workload and batch."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards.engine import Ask
from tokentape.dashboards.kelle.words import READINGS, named


def readings(ask: Ask) -> list[str]:
    """Readings that anything was computed in, in the order of the menu."""
    held = set(ask("readings")["reading"])
    return [name for name in READINGS if name in held]


def models(ask: Ask) -> list[str]:
    """The first live models."""
    return sorted({*ask("quality")["model"], *ask("pareto")["model"]})[: ask.size]


def quality(ask: Ask) -> pl.DataFrame:
    """Quality of these models."""
    return ask("quality").filter(pl.col("model").is_in(models(ask)))


def pareto(ask: Ask) -> pl.DataFrame:
    """Perplexity and energy of these models."""
    return named(ask("pareto").filter(pl.col("model").is_in(models(ask))))
