"""The sentence above each chart, computed from the same rows the chart shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.engine import turn_of
from tokentape.dashboards.units import percent, significant

EXTRAPOLATED = "Extrapolated: these times and energies lie outside what the hardware's costs were measured on."
REFERENCE_CAPACITY = 0.5  # sentences quote the replayed capacity nearest to half of the experts


def reference(runs: pl.DataFrame) -> pl.DataFrame:
    """The rows at the capacity nearest to half, of those at which most settings have LRU and a bound; methods before bounds, best
    hit rate first."""
    compared = (pl.col("family") == "lru").any() & pl.col("bound").any()
    found = runs.group_by("capacity", "hardware", "scope").agg(n=compared).group_by("capacity").agg(pl.col("n").sum())
    order = [-pl.col("n").cast(pl.Int64), (pl.col("capacity") - REFERENCE_CAPACITY).abs(), "capacity"]
    nearest = found.sort(order)["capacity"][0]
    return runs.filter(pl.col("capacity") == nearest).sort("bound", "hit_decode", descending=[False, True])


def hit_rate(runs: pl.DataFrame, phase: str) -> str:
    """Which method hits most at half capacity and at the smallest one, and what the bound would; where L x k lies."""
    hit = f"hit_{phase}"
    runs = runs.drop_nulls(hit)
    if runs.is_empty():
        return f"These replays looked up no expert in {phase}."
    if runs[hit].max() == 0.0:
        return f"No {phase} lookup hits, at any capacity and under any policy: nothing that {phase} needs is used again."
    half, smallest = reference(runs), runs.filter(pl.col("capacity") == runs["capacity"].min())
    said = [f"{_best_hit(half, hit)} of the {phase} lookups"]
    if smallest["capacity"][0] < half["capacity"][0]:
        said.append(_best_hit(smallest, hit))
    first = half.row(0, named=True)
    if first["scope"] == "global" and first["cycle"]:
        share = percent(first["cycle"])
        said.append(
            f"Below L × k = {first['cycle_experts']:,} experts ({share}), one token's lookups, the layers flood a global LRU"
        )
    return ". ".join(said) + "."


def cost(runs: pl.DataFrame) -> str:
    """On every machine at half capacity: the fastest method, the one of least energy, LRU and every bound.

    Each in its faster scope, with its hit rate beside.
    """
    rows = reference(runs)
    said = [_verdict(of) for _, of in rows.group_by("hardware", maintain_order=True) if of["step_ms"].null_count() < of.height]
    return " ".join(said or ["These replays have no times."]) + f" {EXTRAPOLATED}" * bool(rows["extrapolated"].any())


def _verdict(rows: pl.DataFrame) -> str:
    """Of one machine."""
    timed = rows.drop_nulls("step_ms")
    named = [(row, "is fastest:") for row in best_method(timed, "step_ms", descending=False)]
    named += [
        (row, "takes the least energy:")
        for row in best_method(timed, "energy_mj", descending=False)
        if significant(row["energy_mj"]) != significant(named[0][0]["energy_mj"] or 0.0)
    ]
    named += [(row, "takes") for row in timed.filter(pl.col("family") == "lru").sort("step_ms").head(1).to_dicts()]
    once: dict[tuple[str, str], str] = {}  # a row is named once
    for row, verb in named:
        once.setdefault((row["policy"], row["scope"]), f"{_in_scope(row, rows)} {verb} {_cost_and_hits(row)}")
    said = list(once.values())
    for _, of in timed.filter("bound").sort("family").group_by("family", maintain_order=True):
        bound = of.sort("step_ms").row(0, named=True)
        said.append(f"{_in_scope(bound, rows)}, which sees the future, would take {_cost_and_hits(bound)}")
    where = f"On {timed['hardware'][0]} with {percent(timed['capacity'][0], 0)} of the experts cached"
    return f"{where}, {'; '.join(said)}."


def _in_scope(row: Mapping[str, Any], rows: pl.DataFrame) -> str:
    """A policy, with its scope where several were replayed."""
    return _plain(row["policy"]) + (f" ({row['scope']})" if rows["scope"].n_unique() > 1 else "")


def _cost_and_hits(row: Mapping[str, Any]) -> str:
    return f"{_cost(row)} per token, hits {percent(row['hit_decode'])}"


def best_method(rows: pl.DataFrame, column: str, descending: bool = True) -> list[dict[str, Any]]:
    """The best row that is no bound, as a list of one (or none). Ties to three digits go to the first in the house order."""
    place = turn_of("family", theme.POLICIES)
    methods = rows.filter(~pl.col("bound")).drop_nulls(column)
    return methods.sort(pl.col(column).round_sig_figs(3), place, descending=[descending, False]).head(1).to_dicts()


def _best_hit(rows: pl.DataFrame, hit: str) -> str:
    """At one capacity: the method that hits most, LRU if it is another, the bound."""
    said = []
    for best in best_method(rows, hit):
        said.append(f"{best['policy']} hits most: {percent(best[hit])}")
        said += [f"LRU {percent(lru[hit])}" for lru in _lru(rows) if best["family"] != "lru"]
    said += [f"{_plain(bound['policy'])} would hit {percent(bound[hit])}" for bound in _bound(rows)]
    return f"At {percent(rows['capacity'][0], 0)} of the experts ({rows['experts'][0]:,.0f}) " + ", ".join(said)


def _lru(rows: pl.DataFrame) -> list[dict[str, Any]]:
    return rows.filter(pl.col("family") == "lru").head(1).to_dicts()


def _bound(rows: pl.DataFrame) -> list[dict[str, Any]]:
    return rows.filter("bound").sort("hit_decode", descending=True).head(1).to_dicts()


def _plain(label: str) -> str:
    return label.removesuffix(" (bound)")


def _cost(row: Mapping[str, Any]) -> str:
    energy = row["energy_mj"]
    return f"{significant(row['step_ms'])} ms" + (f" and {significant(energy)} mJ" if energy is not None else "")
