"""The SliceMoE page on implied operating points: which miss rates a gain in energy and one in speed imply together."""

from __future__ import annotations

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
    return Drawn({"operating": points}, facts=own)


def _worded(points: pl.DataFrame) -> pl.DataFrame:
    """With the words of the axis, and the name and the area of a point in the plane of the gains."""
    gained = pl.format("energy {} ×, speed {} ×", _gain("energy_gain"), _gain("speed_gain"))
    label = pl.format("{}, {}|{}: {}", "model", pl.col("origin"), pl.col("claim").str.replace(" at matched.*", ""), gained)
    models = pl.col("model").rank("dense") - 1
    return points.with_columns(label=label, order=pl.int_range(pl.len()), area=300 / (2 * models + 1))


def _gain(column: str) -> pl.Expr:
    return pl.col(column).map_elements(lambda gain: f"{gain:.2f}", return_dtype=pl.String)
