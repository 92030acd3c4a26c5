"""The SliceMoE page's figures of what the study's replays show: Flash under budgets, gains, sweeps, warm-ups."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards.engine import Ask, Drawn, some
from tokentape.dashboards.slicemoe import rows, words
from tokentape.dashboards.units import percent


def flash(ask: Ask) -> Drawn:
    found = some(words.flash(ask("flash"), ask.made(rows.names)))
    return Drawn({"flash": found}, facts=words.looks(found["configuration"]))


def gains(ask: Ask) -> Drawn:
    found = words.gains(ask("gains"), ask("paper_gains"))
    places = some(found.filter(pl.col("series") == "DBSC").select("pair", "tau").unique(maintain_order=True))
    is_merged = words.BOTH in found["series"].to_list()
    both = f" AMAT moves the same bytes as low-bit (within {percent(words.SAME_FRAC)} in gain): they share a line."
    own = words.looks(found["series"]) | {"both": both if is_merged else ""}
    return Drawn({"gains": found}, facts=own, said=_at(places, found, "pair"))


def sweeps(ask: Ask) -> Drawn:
    found, gained = ask.made(rows.swept), ask("gains")
    places = some(found.filter(pl.col("tau") != "").select("model", "cache", "pair", "tau").unique(maintain_order=True))
    each = _at(places, gained, "model", "cache", "pair")
    told = [words.merged(of) for of in each.partition_by("model", "cache", "pair", "tau", maintain_order=True)]
    return Drawn({"sweeps": found}, facts=words.looks(found["configuration"]), said=pl.concat(told) if told else each)


def warmups(ask: Ask) -> Drawn:
    return Drawn({"warmups": ask.made(rows.warmups)})


def _at(places: pl.DataFrame, found: pl.DataFrame, *columns: str) -> pl.DataFrame:
    """Rows of each place; those of low-bit have no tau."""
    both = places.join(found.rename({"tau": "own_tau"}), on=columns, maintain_order="left_right")
    return both.filter((pl.col("own_tau") == "") | (pl.col("own_tau") == pl.col("tau")))
