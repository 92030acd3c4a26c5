"""The Layered Prefill page on a stretch of one run: its schedule as a Gantt chart, its requests' lives, the tokens of one."""

import polars as pl

from tokentape.dashboards.engine import Ask, Drawn, some
from tokentape.dashboards.layered_prefill import rows
from tokentape.dashboards.layered_prefill.words import looks, settings, systems


def schedule(ask: Ask) -> Drawn:
    return _drawn("schedule", ask.made(_stretch)[0])


def lives(ask: Ask) -> Drawn:
    return _drawn("lives", ask.made(_stretch)[1])


def tokens(ask: Ask) -> Drawn:
    return _drawn("tokens", _shared(_of(ask.made(rows.points), ask("tokens"))))


def _stretch(ask: Ask) -> list[pl.DataFrame]:
    """Iterations and spans."""
    points = ask.made(rows.points)
    return _together(_of(points, ask("iterations")), _of(points, ask("spans")))


def _drawn(name: str, found: pl.DataFrame) -> Drawn:
    own = {**looks(some(found)["system"]), "where": _where(found), "request_id": found.row(0, named=True).get("request_id")}
    return Drawn({name: found}, facts=own)


def _of(points: pl.DataFrame, found: pl.DataFrame) -> pl.DataFrame:
    """The rows with setting, rate and system of their points, of the setting and rate that most of them share."""
    if found.is_empty() or points.is_empty():
        return found.clear()
    held = points.filter(pl.col("point_id").is_in(found["point_id"].unique().implode()))
    named = systems(held.with_columns(settings(held)), "setting", "rate").select("point_id", "setting", "rate", "system")
    told = found.join(named.unique("point_id"), on="point_id", maintain_order="left").drop("point_id")
    first = (
        told.group_by("setting", "rate")
        .agg(pl.col("system").n_unique(), pl.len().alias("n"))
        .sort("system", "n", "setting")
        .tail(1)
    )
    return told.join(first.select("setting", "rate"), on=["setting", "rate"], how="semi", maintain_order="left", nulls_equal=True)


def _together(*found: pl.DataFrame) -> list[pl.DataFrame]:
    """What lies in the stretch that all frames tell of every scheduler, cut at its ends; start_s counts from its beginning."""
    stop = pl.col("start_s") + pl.col("seconds")
    told = [of.group_by("system").agg(pl.min("start_s"), stop.max().alias("end")) for of in found if not of.is_empty()]
    if not told:
        return list(found)
    begin, end = pl.concat(told).select(pl.max("start_s"), pl.min("end")).row(0)
    return [of if of.is_empty() else _cut(of, begin, end) for of in found]


def _cut(found: pl.DataFrame, begin: float, end: float) -> pl.DataFrame:
    start = pl.max_horizontal("start_s", pl.lit(begin))
    left = pl.min_horizontal(pl.col("start_s") + pl.col("seconds"), pl.lit(end)) - start
    return found.with_columns(start_s=start - begin, seconds=left, whole_s="seconds").filter(pl.col("seconds") > 1e-9)


def _shared(found: pl.DataFrame) -> pl.DataFrame:
    """Tokens of the request that most schedulers have."""
    if found.is_empty():
        return found
    counts = found.group_by("request_id").agg(pl.col("system").n_unique().alias("n"), pl.len().alias("tokens"))
    first = counts.sort("n", "tokens", "request_id", descending=[True, True, False])["request_id"][0]
    return found.filter(pl.col("request_id") == first)


def _where(found: pl.DataFrame) -> str:
    row = found.row(0, named=True)
    return str(row["setting"]) + ("" if row["rate"] is None else f" at {row['rate']:g} requests per second")
