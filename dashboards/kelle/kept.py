"""The Kelle page on recorded attention: how much of it each policy keeps, which tokens are popular, and where a replay drifts."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards.engine import Ask, Control, Drawn, sentences, some
from tokentape.dashboards.kelle.words import first_of, named, whos
from tokentape.dashboards.units import joined, percent


def kept(ask: Ask) -> Drawn:
    """The first tapes with their budgets, of which the middle one opens."""
    held = named(first_of(ask("kept"), "tape", ask.size))
    found = some(held.drop_nulls("budget"))
    choices = []
    for (tape,), of in found.group_by(["tape"], maintain_order=True):
        budgets = of["budget"].unique().sort().to_list()
        middle = budgets[(len(budgets) - 1) // 2]
        choices += [{"tape": str(tape), "keeping": f"{n}"} for n in [middle, *(n for n in budgets if n != middle)]]
    return Drawn(
        {"kept": held},
        sentences(found, ["tape", "budget"], kept_answer),
        whos(found),
        controls=(Control("tape", "Tape"), Control("keeping", "Budget, replayed")),
        choices=tuple(choices),
    )


def along(ask: Ask) -> Drawn:
    held = named(first_of(ask("timeline"), "tape", ask.size))
    found = some(held.drop_nulls("budget"))
    return Drawn({"along": held}, sentences(found, ["tape", "budget"], along_answer), whos(found))


def drift(ask: Ask) -> Drawn:
    found = some(named(ask("divergence")))
    return Drawn({"drift": found}, {"": drift_answer(found)}, whos(found))


def kept_answer(found: pl.DataFrame) -> str:
    """Best policy, AERP, the worst and the bound, and what AERP stores; rows of one tape and budget."""
    ranked = found.filter(~pl.col("is_bound")).sort("kept", "who", descending=[True, False])
    if ranked.is_empty():
        return "Only bounds went over this tape."
    best, worst = ranked.row(0, named=True), ranked.row(-1, named=True)
    aerp = ranked.filter(pl.col("who") == "AERP").to_dicts()
    beside = {row["who"]: percent(row["kept"]) for row in (*aerp, worst) if row["who"] != best["who"]}
    said = [f"{who} {kept}" for who, kept in beside.items()]
    said += [f"the bound {percent(row['kept'])}" for row in found.filter("is_bound").head(1).to_dicts()]
    stored = [
        f" AERP stores {percent((row['x_bytes'] + row['kv_bytes']) / row['full_bytes'], 0)} of the whole cache's bytes, "
        f"{percent(row['x_bytes'] / (row['x_bytes'] + row['kv_bytes']), 0)} of that as layer inputs."
        for row in aerp
    ]
    more = f" ({joined(said)})" if said else ""
    return f"With {best['budget']} tokens per head {best['who']} keeps most, {percent(best['kept'])}{more}.{''.join(stored)}"


def along_answer(found: pl.DataFrame) -> str:
    """Kept mass of the first and the last stretch for the best policy and AERP; rows of one tape and budget."""
    methods = found.filter(~pl.col("is_bound"))
    means = methods.group_by("who").agg(pl.mean("kept")).sort("kept", "who", descending=[True, False])
    names = list(
        dict.fromkeys([*means["who"].head(1), *(["AERP"] if "AERP" in set(means["who"]) else []), *means["who"].tail(1)])
    )
    said = []
    for name in names:
        of = methods.filter(pl.col("who") == name).sort("position")
        first, last = of.row(0, named=True), of.row(-1, named=True)
        said.append(f"{name} from {percent(first['kept'])} to {percent(last['kept'])}")
    popular = methods.filter(pl.col("who") == "AERP").sort("position").tail(1).to_dicts()
    more = [f" At the end {percent(row['popular'])} of what any head of AERP retains is popular." for row in popular]
    return f"With {found['budget'][0]} tokens per head, from the first decoded tokens to the last: {joined(said)}.{''.join(more)}"


def drift_answer(drift: pl.DataFrame) -> str:
    """Policies that agree in every layer, and the least agreement of the others."""
    each = drift.group_by("who").agg(pl.min("same")).sort("who")
    exact = each.filter(pl.col("same") >= 1)["who"].to_list()
    rest = each.filter(pl.col("same") < 1).sort("same")
    alike = f"Replay and live run keep the same tokens in every layer with {joined(exact)}. " if exact else ""
    if rest.is_empty():
        return alike.strip()
    worst = drift.sort("same").row(0, named=True)
    return (
        f"{alike}They differ with {joined(rest['who'].to_list())}, most in layer {worst['layer']} of {worst['who']}: "
        f"{percent(worst['same'])} are the same."
    )
