"""Rows that figures of the SliceMoE page share, and its menus are made of."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards import claims as stated
from tokentape.dashboards.engine import Ask
from tokentape.dashboards.slicemoe import live_words, words


def claims(ask: Ask) -> pl.DataFrame:
    return stated.rows(ask.connection, "slicemoe")


def names(ask: Ask) -> dict[str, str]:
    """Model -> as the paper has it."""
    return dict(ask("paper_gains").select("model", "name").unique().iter_rows())


def swept(ask: Ask) -> pl.DataFrame:
    return words.swept(ask("sweeps"))


def warmups(ask: Ask) -> pl.DataFrame:
    return words.warmups(ask("warmups"), ask.made(claims), ask.made(names))


def live(ask: Ask) -> pl.DataFrame:
    """The setups with most rows."""
    return live_words.live(ask("quality"), ask.size)
