"""The SliceMoE page on implied operating points: which miss rates a gain in energy and one in speed imply together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tokentape.dashboards.engine import Ask, Drawn, some
from tokentape.dashboards.units import joined, percent

MORE_THAN_ALL = 1.25  # least end of the axis, so that the impossible is seen to be


def operating(ask: Ask) -> Drawn:
    points = some(_worded(ask("operating")))
    first = points.row(0, named=True)
    end = max(MORE_THAN_ALL, 1.05 * points.select(pl.max_horizontal("baseline_high", "ours_high").max()).item())
    start = min(0.0, 1.05 * points.select(pl.min_horizontal("baseline_low", "ours_low").min()).item())
    own = {
        "machines": joined(points["hardware"].unique().sort().to_list()),
        "shares": f"{percent(first['lsb_low'], 0)} to {percent(first['lsb_high'], 0)}",
        "domain": [start, end],
        "end": end,
        "fold": "fold baseline ours as side unused",
    }
    return Drawn({"operating": points}, {"": answer(points)}, own)


def _worded(points: pl.DataFrame) -> pl.DataFrame:
    """With the words of the axis, and the name and the area of a point in the plane of the gains."""
    gained = pl.format("energy {} ×, speed {} ×", _gain("energy_gain"), _gain("speed_gain"))
    label = pl.format("{}, {}|{}: {}", "model", pl.col("origin"), pl.col("claim").str.replace(" at matched.*", ""), gained)
    models = pl.col("model").rank("dense") - 1
    return points.with_columns(
        label=label, method=pl.col("claim").str.extract(r"^(\S+)"), order=pl.int_range(pl.len()), area=300 / (2 * models + 1)
    )


def _gain(column: str) -> pl.Expr:
    return pl.col(column).map_elements(lambda gain: f"{gain:.2f}", return_dtype=pl.String)


def answer(points: pl.DataFrame) -> str:
    """What every published pair implies on every model, which are impossible, and whether our own are possible."""
    published, replayed = (points.filter(pl.col("origin") == origin) for origin in ("paper", "replay"))
    said = []
    for (claim,), of in published.group_by(["claim"], maintain_order=True):
        method = str(claim).split(" ", 1)[0]
        possible, impossible = of.filter("possible").to_dicts(), of.filter(~pl.col("possible")).to_dicts()
        told = [f"{_range(row, 'baseline')} and {_range(row, 'ours')} on {row['model']}" for row in possible]
        parts = [f"imply misses without and with {method} of {joined(told)}"] if told else []
        parts += [f"are impossible on {row['model']}: {_excess(row)}" for row in impossible]
        said.append(f"The published gains of {claim} {'; they '.join(parts)}.")
    if not replayed.is_empty():
        said.append(f"Of our own pairs, as replayed, {replayed.filter('possible').height} of {replayed.height} can be explained.")
    return " ".join(said)


def _excess(row: Mapping[str, Any]) -> str:
    """Of the side that no miss rate explains."""
    side = "ours" if 0 <= row["baseline_low"] <= 1 else "baseline"
    return f"{_range(row, side)} of all accesses would have to miss"


def _range(row: Mapping[str, Any], side: str) -> str:
    low, high = (f"{100 * miss:.{int(abs(miss) < 0.1)}f}" for miss in (row[f"{side}_low"], row[f"{side}_high"]))
    return f"{low} %" if low == high else f"{low} to {high} %"
