"""The SliceMoE page's figures of claims and of what the study's replays show: Flash under budgets, gains, sweeps, warm-ups."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards import claims
from tokentape.dashboards.answers import percent
from tokentape.dashboards.engine.ask import Ask
from tokentape.dashboards.engine.figures import Drawn, sentences
from tokentape.dashboards.slicemoe import answers, rows, words


def stated(ask: Ask) -> Drawn | None:
    found = ask.made(rows.claims)
    if found.drop_nulls("replay").is_empty():
        return None
    return Drawn({"claims": found.drop_nulls("replay")}, {"": claims.answer(found)}, {"ours": "replay (least to most of seeds)"})


def flash(ask: Ask) -> Drawn | None:
    found = words.flash(ask("flash"), ask.made(rows.names))
    if found.is_empty():
        return None
    panels = found["panel"].unique(maintain_order=True).to_list()
    own = words.looks(found["configuration"]) | {"panels": panels, "strength": f"{found['strength'][0]:g}"}
    return Drawn({"flash": found}, {"": answers.flash(found)}, own)


def gains(ask: Ask) -> Drawn | None:
    found = words.gains(ask("gains"), ask("paper_gains"))
    places = found.filter(pl.col("series") == "DBSC").select("pair", "tau").unique(maintain_order=True)
    if places.is_empty():
        return None
    is_merged = words.BOTH in found["series"].to_list()
    both = f" AMAT moves the same bytes as low-bit (within {percent(words.SAME_FRAC)} in gain): they share a line."
    own = {
        "at": percent(words.MATCHED_FRAC, 0),
        "both": both if is_merged else "",
    }
    said = {"|".join(place): answers.gains(found, *place) for place in places.iter_rows()}
    return Drawn({"gains": found}, said, words.looks(found["series"]) | own)


def sweeps(ask: Ask) -> Drawn | None:
    found, gained = ask.made(rows.swept), ask("gains")
    places = found.filter(pl.col("tau") != "").select("model", "cache", "pair", "tau").unique(maintain_order=True)
    if places.is_empty():
        return None
    told = {place: _of(gained, *place) for place in places.iter_rows()}
    said = {"|".join(place): answers.sweep(words.merged(of)) for place, of in told.items() if not of.is_empty()}
    return Drawn({"sweeps": found}, said, words.looks(found["configuration"]) | {"at": percent(words.MATCHED_FRAC, 0)})


def warmups(ask: Ask) -> Drawn | None:
    found = ask.made(rows.warmups)
    if found.is_empty():
        return None
    first = found.row(0, named=True)
    own = {"gb": f"{first['gb']:g}", "budget": first["budget"], "strength": f"{first['strength']:g}"}
    own["panels"] = found["panel"].unique(maintain_order=True).sort().to_list()
    return Drawn({"warmups": found}, sentences(found, ["steps"], answers.warmups), own)


def _of(gains: pl.DataFrame, model: str, cache: str, pair: str, tau: str) -> pl.DataFrame:
    """Gains of one place; those of low-bit have no tau."""
    here = (pl.col("model") == model) & (pl.col("cache") == cache) & (pl.col("pair") == pair)
    return gains.filter(here & pl.col("tau").is_in(["", tau]))
