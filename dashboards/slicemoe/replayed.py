"""The SliceMoE page's figures of claims and of what the study's replays show: Flash under budgets, gains, sweeps, warm-ups."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards import claims
from tokentape.dashboards.engine import Ask, Drawn, sentences, some
from tokentape.dashboards.slicemoe import answers, rows, words
from tokentape.dashboards.units import percent


def stated(ask: Ask) -> Drawn:
    found = ask.made(rows.claims)
    answered = some(found.drop_nulls("replay"))
    return Drawn({"claims": answered}, {"": claims.answer(found)}, {"ours": "replay (least to most of seeds)"})


def flash(ask: Ask) -> Drawn:
    found = some(words.flash(ask("flash"), ask.made(rows.names)))
    return Drawn({"flash": found}, {"": answers.flash(found)}, words.looks(found["configuration"]))


def gains(ask: Ask) -> Drawn:
    found = words.gains(ask("gains"), ask("paper_gains"))
    places = some(found.filter(pl.col("series") == "DBSC").select("pair", "tau").unique(maintain_order=True))
    is_merged = words.BOTH in found["series"].to_list()
    both = f" AMAT moves the same bytes as low-bit (within {percent(words.SAME_FRAC)} in gain): they share a line."
    said = {"|".join(place): answers.gains(found, *place) for place in places.iter_rows()}
    return Drawn({"gains": found}, said, words.looks(found["series"]) | {"both": both if is_merged else ""})


def sweeps(ask: Ask) -> Drawn:
    found, gained = ask.made(rows.swept), ask("gains")
    places = some(found.filter(pl.col("tau") != "").select("model", "cache", "pair", "tau").unique(maintain_order=True))
    told = {place: _of(gained, *place) for place in places.iter_rows()}
    said = {"|".join(place): answers.sweep(words.merged(of)) for place, of in told.items() if not of.is_empty()}
    return Drawn({"sweeps": found}, said, words.looks(found["configuration"]))


def warmups(ask: Ask) -> Drawn:
    found = some(ask.made(rows.warmups))
    return Drawn({"warmups": found}, sentences(found, ["steps"], answers.warmups))


def _of(gains: pl.DataFrame, model: str, cache: str, pair: str, tau: str) -> pl.DataFrame:
    """Gains of one place; those of low-bit have no tau."""
    here = (pl.col("model") == model) & (pl.col("cache") == cache) & (pl.col("pair") == pair)
    return gains.filter(here & pl.col("tau").is_in(["", tau]))
