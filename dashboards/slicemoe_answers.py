"""The sentences of the SliceMoE page, computed from the rows its charts show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from dashboards.answers import percent, significant
from dashboards.slicemoe_rows import MATCHED_FRAC
from dashboards.units import joined, quantity

NEAR_FRAC = 0.1  # an answer this close to the paper's number is called near
HARDLY_MISSES_FRAC = 0.03  # below, a high-bit cache leaves a sliced one nothing to save
SPARING = f"where the high-bit cache misses under {percent(HARDLY_MISSES_FRAC, 0)}"
NOT_MEASURED = f"What DBSC does {SPARING} without a budget is not measured: run tokentape evaluate with --cache 95%."


def claims(rows: pl.DataFrame) -> str:
    """How near the fitted, the predicted and the other answers are, which bounds hold, and what has no answer."""
    answered = rows.drop_nulls("replay")
    values, bounds = answered.filter(pl.col("bound") == ""), answered.filter(pl.col("bound") != "")
    said = []
    for role, words in (("calibrate", "fitted"), ("predict", "predicted"), ("report", "reported only")):
        of_role = values.filter(pl.col("role") == role).drop_nulls("error").sort(pl.col("error").abs())
        for worst in of_role.tail(1).to_dicts():
            near = of_role.filter(pl.col("error").abs() <= NEAR_FRAC).height
            said.append(f"{near} of {of_role.height} {words} (worst: {signed(worst['error'])}, {_named(worst)})")
    near_said = f"Within {percent(NEAR_FRAC, 0)} of the paper: {joined(said)}. " if said else ""
    held = f"{bounds.filter('holds').height} of {bounds.height} bounds hold. " if not bounds.is_empty() else ""
    return near_said + held + unanswered(rows)


def unanswered(rows: pl.DataFrame) -> str:
    """What the study does not speak to, by quantity."""
    without = rows.filter(pl.col("replay").is_null())
    if without.is_empty():
        return ""
    kinds = without.group_by("quantity").len().sort(["len", "quantity"], descending=[True, False]).rows()
    said = f"{without.height} of {rows.height} numbers have no answer: {joined([f'{name} ({n})' for name, n in kinds])}"
    unprinted = without.filter(pl.col("paper").is_null()).height
    return f"{said}" + (f"; for {unprinted} of them the paper prints no value." if unprinted else ".")


def gains(rows: pl.DataFrame, tau: str) -> str:
    """The largest gains of DBSC per model at one tau beside the paper's, and whether low precision everywhere gains more."""
    said = []
    for model, of_model in rows.filter(pl.col("tau") == tau).group_by("name", maintain_order=True):
        ranked = of_model.filter(pl.col("series") == "DBSC").sort("gain", "gb", descending=[False, True])
        best = {row["metric"]: row for row in ranked.to_dicts()}
        energy, speed = best["energy_gain"], best["speedup"]
        said.append(
            f"{_times(energy)} less energy and {_times(speed)} the speed on {model[0]} "
            f"(at {_each([energy['cache'], speed['cache']])}{_printed(energy, speed)})"
        )
    sentence = f"With tau {tau}, DBSC reaches at most {joined(said)}."
    top = rows.filter(pl.col("metric") == "energy_gain").sort("gain")
    low, dbsc = (top.filter((pl.col("series") == name) & pl.col("tau").is_in(["", tau])) for name in ("low-bit", "DBSC"))
    beats = low.join(dbsc, on=["model", "cache"]).filter(pl.col("gain") > pl.col("gain_right"))
    if not beats.is_empty():
        sentence += (
            f" Low precision everywhere gains more in {beats.height} of {low.height} caches: the proxy charges it little, and "
            "only a live model can say what it costs."
        )
    return sentence


def sweep(rows: pl.DataFrame) -> str:
    """Misses and energy of every configuration where it keeps the matched gate mass: rows of one model, cache and tau."""
    energies = rows.filter(pl.col("metric") == "energy_gain").to_dicts()
    first = energies[0]
    said = [
        f"the high-bit cache misses {percent(first['miss_high_bit'])} and takes {_joules(first['energy_high_bit'])} per token"
    ]
    said += [f"{row['series']} {percent(row['miss'])} and {_joules(row['energy'])}" for row in energies]
    return f"Keeping {percent(MATCHED_FRAC, 0)} of the gate mass, {', '.join(said)}."


def warmups(rows: pl.DataFrame) -> str:
    """What PCW saves against an empty cache, in the first steps and over the whole decode, and which other start is next."""
    ratio = {(row["warmup"], row["panel"]): row for row in rows.to_dicts()}
    said = []
    for window, words in (("first ten steps", "The first ten steps take"), ("whole decode", "over the whole decode")):
        energy, latency = (ratio.get(("PCW", f"{name}, {window}")) for name in ("energy", "latency"))
        if energy and latency:
            less = f"{words} {percent(1 - energy['ratio'], 0)} less energy and {percent(1 - latency['ratio'], 0)} less time"
            less += " with PCW than from an empty cache" if not said else ""
            printed = [percent(1 - row["paper"], 0) for row in (energy, latency) if row["paper"] is not None]
            said.append(less + (f" (paper: {' and '.join(printed)})" if printed else ""))
    order = rows.filter(pl.col("panel") == "energy, first ten steps").sort("ratio")["warmup"].to_list()
    return f"{'; '.join(said)}. By energy of the first steps, best first: {', '.join(order)}."


def live(rows: pl.DataFrame, setup: str) -> str:
    """One of the setups: DBSC against the high-bit and the low-bit cache under the same budget; where it loses, of all setups."""
    here = rows.filter(pl.col("setup") == setup)
    name = _measure(here)
    budgets = _by_budget(here)
    said = []
    for other, word in (("high-bit", "DBSC beats the high-bit cache"), ("low-bit", "low-bit beats DBSC")):
        pairs = [(at, of["DBSC"], of[other]) for at, of in sorted(budgets.items()) if at[1] and {"DBSC", other} <= of.keys()]
        won = [
            (at[1], dbsc, them)
            for at, dbsc, them in pairs
            if (_better(dbsc, them) if other == "high-bit" else _better(them, dbsc))
        ]
        if won:
            target, dbsc, them = won[0]
            first, second = (dbsc, them) if other == "high-bit" else (them, dbsc)
            said.append(
                f"{word} at {len(won)} of {len(pairs)} budgets ({joined([f'{100 * t:g} %' for t, _, _ in won])}; {name} "
                f"{_value(first)} against {_value(second)} at {100 * target:g} %)"
            )
        elif pairs:
            said.append(f"{word} at none of {len(pairs)} budgets")
    sentence = f"{_upper('; '.join(said))}. " if said else ""
    own, others = _without_budget(here), rows.filter(pl.col("setup") != setup).partition_by("setup", maintain_order=True)
    elsewhere = [f"In {of['setup'][0]}, {told}" for of in others if SPARING in (told := _without_budget(of))][:1]
    if SPARING in own:
        return sentence + _upper(own)
    return sentence + " ".join([_upper(own), *elsewhere] if own else elsewhere or [NOT_MEASURED])


def _without_budget(rows: pl.DataFrame) -> str:
    """What happens without a budget; the negative case is a high-bit cache that hardly misses by itself."""
    found, name = _by_budget(rows).get(("none", 0.0), {}), _measure(rows)
    if not {"DBSC", "high-bit"} <= found.keys():
        return ""
    high, dbsc = found["high-bit"], found["DBSC"]
    said = f"without a budget the high-bit cache misses {percent(high['miss'])} ({name} {_value(high)}) and DBSC "
    said += f"{percent(dbsc['miss'])} ({_value(dbsc)})"
    if high["miss"] >= HARDLY_MISSES_FRAC:
        return f"{said}."
    return f"{said}: {SPARING}, DBSC {'loses' if _better(high, dbsc) else 'does not lose here'}."


def _by_budget(rows: pl.DataFrame) -> dict[tuple[str, float], dict[str, dict[str, Any]]]:
    """Budget and its target -> configuration -> row."""
    found: dict[tuple[str, float], dict[str, dict[str, Any]]] = {}
    for row in rows.to_dicts():
        found.setdefault((row["budget"], row["target"] or 0.0), {})[row["configuration"]] = row
    return found


def _measure(rows: pl.DataFrame) -> str:
    return "exact match" if rows["is_accuracy"][0] else "perplexity"


def fidelity(rows: pl.DataFrame) -> str:
    """The largest mean error over setups and quantities, and whether zero lies in its band."""
    worst = rows.sort(pl.col("error").abs()).row(-1, named=True)
    outside = rows.filter((pl.col("low") > 0) | (pl.col("high") < 0)).height
    biased = (
        f"in {outside} of {rows.height} comparisons all seeds err to the same side" if outside else "none errs to one side only"
    )
    return (
        f"Replay is off by {signed(worst['error'])} at most on average over seeds ({worst['quantity']}, {worst['setup']}; "
        f"{signed(worst['low'])} to {signed(worst['high'])}); {biased}."
    )


def signed(error: float) -> str:
    """A relative error with its sign; a zero has none."""
    text = f"{100 * error:+.1f} %"
    return "0.0 %" if text in ("+0.0 %", "-0.0 %") else text


def written(value: float, unit: str) -> str:
    """A number of the paper, or ours for it, with its unit."""
    if unit in ("fraction", "percent"):
        return percent(value if unit == "fraction" else value / 100)
    return f"{significant(value)} {'×' if unit == 'x' else unit}"


def _named(row: Mapping[str, Any]) -> str:
    return f"{row['quantity']}, {row['model'] or row['setting']}"


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


def _value(row: Mapping[str, Any]) -> str:
    return percent(row["value"]) if row["is_accuracy"] else significant(row["value"])


def _better(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    return bool(left["value"] > right["value"] if left["is_accuracy"] else left["value"] < right["value"])


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
