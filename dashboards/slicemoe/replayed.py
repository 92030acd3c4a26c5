"""The SliceMoE page's figures of claims and of what the study's replays show: Flash under budgets, gains, sweeps, warm-ups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tokentape.dashboards import claims
from tokentape.dashboards.engine import Ask, Drawn, sentences, some
from tokentape.dashboards.slicemoe import rows, words
from tokentape.dashboards.slicemoe.words import MATCHED_FRAC
from tokentape.dashboards.units import highest, joined, lowest, percent, quantity


def stated(ask: Ask) -> Drawn:
    found = ask.made(rows.claims)
    answered = some(found.drop_nulls("replay"))
    return Drawn({"claims": answered}, {"": claims.answer(found)}, {"ours": "replay (least to most of seeds)"})


def flash(ask: Ask) -> Drawn:
    found = some(words.flash(ask("flash"), ask.made(rows.names)))
    return Drawn({"flash": found}, {"": flash_answer(found)}, words.looks(found["configuration"]))


def gains(ask: Ask) -> Drawn:
    found = words.gains(ask("gains"), ask("paper_gains"))
    places = some(found.filter(pl.col("series") == "DBSC").select("pair", "tau").unique(maintain_order=True))
    is_merged = words.BOTH in found["series"].to_list()
    both = f" AMAT moves the same bytes as low-bit (within {percent(words.SAME_FRAC)} in gain): they share a line."
    said = {"|".join(place): gains_answer(found, *place) for place in places.iter_rows()}
    return Drawn({"gains": found}, said, words.looks(found["series"]) | {"both": both if is_merged else ""})


def sweeps(ask: Ask) -> Drawn:
    found, gained = ask.made(rows.swept), ask("gains")
    places = some(found.filter(pl.col("tau") != "").select("model", "cache", "pair", "tau").unique(maintain_order=True))
    told = {place: _of(gained, *place) for place in places.iter_rows()}
    said = {"|".join(place): sweep_answer(words.merged(of)) for place, of in told.items() if not of.is_empty()}
    return Drawn({"sweeps": found}, said, words.looks(found["configuration"]))


def warmups(ask: Ask) -> Drawn:
    found = some(ask.made(rows.warmups))
    return Drawn({"warmups": found}, sentences(found, ["steps"], warmups_answer))


def _of(gains: pl.DataFrame, model: str, cache: str, pair: str, tau: str) -> pl.DataFrame:
    """Gains of one place; those of low-bit have no tau."""
    here = (pl.col("model") == model) & (pl.col("cache") == cache) & (pl.col("pair") == pair)
    return gains.filter(here & pl.col("tau").is_in(["", tau]))


def flash_answer(rows: pl.DataFrame) -> str:
    """Flash's share of the energy where fewest and most misses are allowed, per model: least, DBSC's and most."""
    said = []
    for target in dict.fromkeys((lowest(rows["target"]), highest(rows["target"]))):
        at = rows.filter(pl.col("target") == target).sort("flash", maintain_order=True)
        models = [f"{_ends(of)} on {name}" for (name,), of in sorted(at.partition_by("name", as_dict=True).items())]
        said.append(f"with {100 * target:g} % of misses allowed {', '.join(models)}")
    return f"Flash's share of a decoded token's energy: {'; '.join(said)}."


def _ends(ranked: pl.DataFrame) -> str:
    """The least and the most of ranked shares, and DBSC's where it is neither."""
    first, *others = (f"{percent(row['flash'], 0)} ({row['configuration']})" for row in ranked.to_dicts())
    dbsc = [words for words in others[:-1] if words.endswith("(DBSC)")]
    return joined([" to ".join([first, *others[-1:]]), *dbsc])


def gains_answer(rows: pl.DataFrame, pair: str, tau: str) -> str:
    """The largest gains of DBSC per model at one pair and tau beside the paper's; what low precision and Cumsum gain."""
    of_pair = rows.filter((pl.col("pair") == pair) & pl.col("tau").is_in(["", tau]))
    said = []
    for model, of_model in of_pair.group_by("name", maintain_order=True):
        ranked = of_model.filter(pl.col("series") == "DBSC").sort("gain", "gb", descending=[False, True])
        best = {row["metric"]: row for row in ranked.to_dicts()}
        energy, speed = best["energy_gain"], best["speedup"]
        said.append(
            f"{_times(energy)} less energy and {_times(speed)} the speed on {model[0]} "
            f"(at {_each([energy['cache'], speed['cache']])}{_printed(energy, speed)})"
        )
    sentence = f"With {pair} and tau {tau}, DBSC reaches at most {joined(said)}."
    energy_gains = of_pair.filter(pl.col("metric") == "energy_gain")
    cumsum = energy_gains.filter(pl.col("series") == "Cumsum")["gain"]
    if not cumsum.is_empty():
        sentence += f" Cumsum in place of Cache-Prior takes {1 / highest(cumsum):.2f} to {1 / lowest(cumsum):.2f} × the energy."
    low, dbsc = (energy_gains.filter(pl.col("series").str.contains(f"^{name}")) for name in ("low-bit", "DBSC$"))
    beats = low.join(dbsc, on=["model", "cache"]).filter(pl.col("gain") > pl.col("gain_right"))
    if not beats.is_empty():
        sentence += (
            f" Low precision everywhere gains more in {beats.height} of {low.height} caches: the proxy charges it little, and "
            "only a live model can say what it costs."
        )
    return sentence


def sweep_answer(rows: pl.DataFrame) -> str:
    """Misses and energy of every series where it keeps the matched gate mass: gains of one model, cache, pair and tau."""
    energies = rows.filter(pl.col("metric") == "energy_gain").to_dicts()
    first = energies[0]
    said = [
        f"the high-bit cache misses {percent(first['miss_high_bit'])}{_star(first['matched_high_bit'])} and takes "
        f"{_joules(first['energy_high_bit'])} per token"
    ]
    said += [f"{row['series']} {percent(row['miss'])}{_star(row['matched'])} and {_joules(row['energy'])}" for row in energies]
    sentence = f"Keeping {percent(MATCHED_FRAC, 0)} of the gate mass, {', '.join(said)}."
    return sentence + (" *: a sweep does not cross it, and its end is read." if "*" in sentence else "")


def _star(matched: bool) -> str:
    return "" if matched else "*"


def warmups_answer(rows: pl.DataFrame) -> str:
    """What PCW saves against an empty cache over one window, per model, and which other start is next: rows of the window."""
    said, orders = [], {}
    for (name,), of_model in rows.group_by("name", maintain_order=True):
        pcw = {row["metric"]: row for row in of_model.filter(pl.col("warmup") == "PCW").to_dicts()}
        energy, time = (percent(1 - pcw[metric]["ratio"], 0) for metric in ("energy", "latency"))
        said.append(f"{energy} less energy and {time} less time on {name}")
        by_energy = of_model.filter(pl.col("metric") == "energy").sort("ratio", maintain_order=True)
        orders[name] = ", ".join(by_energy["warmup"].to_list())
    printed = [percent(1 - paper, 0) for paper in rows.sort("metric").drop_nulls("paper")["paper"].unique(maintain_order=True)]
    paper = f" (paper: {' and '.join(printed)})" if printed else ""
    order = (
        "; ".join(f"{found} ({name})" for name, found in orders.items()) if len(set(orders.values())) > 1 else orders.popitem()[1]
    )
    return (
        f"Over the first {rows['steps'][0]} steps a cache warmed by PCW takes {joined(said)} than an empty one{paper}. "
        f"By energy, best first: {order}."
    )


def _times(row: Mapping[str, Any]) -> str:
    return f"{row['gain']:.2f} ×"


def _printed(energy: Mapping[str, Any], speed: Mapping[str, Any]) -> str:
    printed = [f"{row['paper']:.2f}" for row in (energy, speed) if row["paper"] is not None]
    return f"; paper {' and '.join(printed)}" if printed else ""


def _each(words: list[str]) -> str:
    """Different words, each once."""
    return " and ".join(dict.fromkeys(words))


def _joules(value: float) -> str:
    return quantity(value, "J")
