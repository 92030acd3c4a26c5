"""The SliceMoE page's figures of what was measured inside a model: budgets, misses, schemes, fidelity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.engine import Ask, Drawn, Nothing, sentences, some
from tokentape.dashboards.slicemoe import live_words as words
from tokentape.dashboards.slicemoe import rows
from tokentape.dashboards.slicemoe.words import looks
from tokentape.dashboards.units import highest, joined, percent, signed, significant

HARDLY_MISSES_FRAC = 0.03  # below, a high-bit cache leaves a sliced one nothing to save


def budgets(ask: Ask) -> Drawn:
    """The other half of Fig. 2: quality and misses at the budgets whose energy replayed.flash shows."""
    found = ask.made(rows.live)
    held = some(found.filter((pl.col("budget") == "hard") & pl.col("target").is_not_null()))
    return Drawn({"live": found}, sentences(held, ["setup"], budgets_answer), _facts(held))


def live(ask: Ask) -> Drawn:
    found = ask.made(rows.live)
    drawn = some(found.filter("is_drawn"))
    return Drawn({"live": found}, sentences(drawn, ["setup"], live_answer), _facts(drawn))


def _facts(held: pl.DataFrame) -> dict[str, object]:
    return {**looks(held["configuration"]), "panels": held["panel"].unique().sort().to_list()}


def sparing(ask: Ask) -> Drawn:
    found = some(words.sparing(ask.made(rows.live)))
    return Drawn({"sparing": found}, sentences(found, ["setup"], sparing_answer))


def schemes(ask: Ask) -> Drawn:
    """The paper's Table 1."""
    found = words.schemes(ask("schemes"))
    pairs = found.filter(pl.col("pair") != "")["pair"].unique().sort().to_list()
    if not pairs:
        raise Nothing
    shapes = ("circle", "square", "diamond", "triangle-up", *theme.SPARE_SHAPES)
    own = {
        "where": f" ({found['model'][0]}, {found['dataset'][0]})",
        "pairs": pairs,
        "shapes": [shapes[n % len(shapes)] for n in range(len(pairs))],
    }
    return Drawn({"schemes": found}, {"": schemes_answer(found, ask("paper_schemes"))}, own)


def fidelity(ask: Ask) -> Drawn:
    """The axis ends at the largest error of a seed; the scale goes on, for the words."""
    found = some(words.fidelity(ask("fidelity"), ask.size))
    longest = max(highest(found["low"].abs()), highest(found["high"].abs())) or 0.01
    own = {"domain": [-longest, 3.2 * longest], "ticks": [share * longest for share in (-1, -0.5, 0, 0.5, 1)]}
    return Drawn({"fidelity": found}, {"": fidelity_answer(found)}, own)


def live_answer(rows: pl.DataFrame) -> str:
    """Rows of one setup: DBSC against the high-bit and the low-bit cache under the same budgets, a sentence per panel."""
    return " ".join(f"{of['panel'][0]}: {_against(of)}." for of in rows.partition_by("panel", maintain_order=True))


def _against(rows: pl.DataFrame) -> str:
    """Rows of one panel."""
    budgets, name = _by_budget(rows), _measure(rows)
    said = []
    for other, word in (("high-bit", "DBSC beats the high-bit cache"), ("low-bit", "low-bit beats DBSC")):
        pairs = [(at[1], of["DBSC"], of[other]) for at, of in sorted(budgets.items()) if at[1] and {"DBSC", other} <= of.keys()]
        ordered = [(at, dbsc, them) if other == "high-bit" else (at, them, dbsc) for at, dbsc, them in pairs]
        won = [(at, first, second) for at, first, second in ordered if _better(first, second)]
        if won:
            target, first, second = won[0]
            where = "" if len(won) == len(pairs) else f"{joined([f'{100 * t:g} %' for t, _, _ in won])}; "
            said.append(
                f"{word} at {len(won)} of {len(pairs)} budgets ({where}{name} {_value(first)} against {_value(second)} at "
                f"{100 * target:g} %)"
            )
        elif pairs:
            said.append(f"{word} at none of {len(pairs)} budgets")
    return "; ".join(said) or "DBSC and another configuration are not measured under one budget"


def sparing_answer(rows: pl.DataFrame) -> str:
    """Rows of one setup, from live_words.sparing: what slicing does where the high-bit cache hardly misses."""
    hardly = rows.filter(pl.col("miss_high_bit") < HARDLY_MISSES_FRAC)
    where = f"Where the high-bit cache misses under {percent(HARDLY_MISSES_FRAC, 0)} by itself"
    if hardly.is_empty():
        return f"{where} DBSC is not measured: run tokentape evaluate with --cache 95%."
    verdicts = {"loses": "DBSC loses", "wins": "DBSC wins"}
    said = []
    for row in hardly.to_dicts():
        worse, low, high = (signed(row[name]).removeprefix("+") for name in ("worse", "worse_low", "worse_high"))
        said.append(
            f"with {row['panel']}, {verdicts.get(row['said_verdict'], 'it depends on the seed')}: "
            f"{'exact match' if row['is_accuracy'] else 'perplexity'} worse by {worse} ({low} to {high}), misses "
            f"{percent(row['miss'])} against {percent(row['miss_high_bit'])}"
        )
    return f"{where}, there is nothing left to save: {'; '.join(said)}."


def _by_budget(rows: pl.DataFrame) -> dict[tuple[str, float], dict[str, dict[str, Any]]]:
    """Budget and its target -> configuration -> row."""
    found: dict[tuple[str, float], dict[str, dict[str, Any]]] = {}
    for row in rows.to_dicts():
        found.setdefault((row["budget"], row["target"] or 0.0), {})[row["configuration"]] = row
    return found


def budgets_answer(rows: pl.DataFrame) -> str:
    """Rows of one setup under hard budgets: quality at the least and the most allowed, best first, and how budgets are met."""
    name, said = _measure(rows), []
    for of in rows.partition_by("panel", maintain_order=True):
        ends = [of.filter(pl.col("target") == target) for target in dict.fromkeys((of["target"].min(), of["target"].max()))]
        told = [f"at {100 * end['target'][0]:g} % {_ranked(end)}" for end in ends]
        said.append(f"{of['panel'][0]}: {name} {'; '.join(told)}.")
    worst = rows.sort(pl.col("miss") / pl.col("target")).row(-1, named=True)
    if worst["miss"] <= worst["target"]:
        return " ".join([*said, "No budget is exceeded."])
    most = f"{percent(worst['miss'], 2)} where {100 * worst['target']:g} % is allowed"
    return " ".join([*said, f"The budget is exceeded most by {worst['configuration']}: {most}."])


def _ranked(rows: pl.DataFrame) -> str:
    """The best, the worst, and DBSC where it is neither."""
    ranked = rows.sort("value", descending=bool(rows["is_accuracy"][0]), maintain_order=True).to_dicts()
    first, *others = (f"{_value(row)} ({row['configuration']})" for row in ranked)
    dbsc = [words for words in others[:-1] if words.endswith("(DBSC)")]
    return joined([" to ".join([first, *others[-1:]]), *dbsc])


def schemes_answer(rows: pl.DataFrame, paper: pl.DataFrame) -> str:
    """AMAT over the asymmetric base at every pair, beside the paper's ratio; the worst scheme."""
    said = []
    for row in rows.filter(pl.col("code") == "amat").drop_nulls("over_base").sort("pair").to_dicts():
        stated = [
            f"{ratio:.2f} {model}" for model, ratio in paper.filter(pl.col("pair") == row["pair"]).select("model", "ratio").rows()
        ]
        printed = f"; paper {joined(stated)}" if stated else ""
        band = f"{row['over_base_low']:.3f} to {row['over_base_high']:.3f}"
        said.append(f"{row['over_base']:.3f} × at {row['pair']} ({band}{printed})")
    sentence = f"AMAT's perplexity over that of experts quantised at the low width: {joined(said)}. " if said else ""
    low = rows.filter(pl.col("pair") != "").drop_nulls("value")
    for worst in low.sort("value").tail(1).to_dicts():
        sentence += f"The worst is {_plain(worst['scheme'])} at {worst['pair']}: {significant(worst['value'])}."
    diverged = [f"{_plain(row['scheme'])} at {row['pair']}" for row in rows.filter(pl.col("diverged") > 0).to_dicts()]
    return sentence + (f" Without a finite perplexity on some seed: {joined(diverged)}." if diverged else "")


def _plain(scheme: str) -> str:
    """A label of the axis on one line."""
    return scheme.replace("|", " ")


def fidelity_answer(rows: pl.DataFrame) -> str:
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


def _measure(rows: pl.DataFrame) -> str:
    return "exact match" if rows["is_accuracy"][0] else "perplexity"


def _value(row: Mapping[str, Any]) -> str:
    return percent(row["value"]) if row["is_accuracy"] else significant(row["value"])


def _better(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    return bool(left["value"] > right["value"] if left["is_accuracy"] else left["value"] < right["value"])
