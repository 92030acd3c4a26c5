"""The SliceMoE page's sentences on replays, computed from the rows its charts show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tokentape.dashboards.slicemoe.words import MATCHED_FRAC
from tokentape.dashboards.units import highest, joined, lowest, percent, quantity


def flash(rows: pl.DataFrame) -> str:
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


def gains(rows: pl.DataFrame, pair: str, tau: str) -> str:
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


def sweep(rows: pl.DataFrame) -> str:
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


def warmups(rows: pl.DataFrame) -> str:
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
