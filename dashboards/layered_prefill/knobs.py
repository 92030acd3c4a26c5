"""The Layered Prefill page on the schedulers' knobs: the front of TTFT and TBT over them, and the number of groups alone."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from tokentape.dashboards.engine import Ask, Control, Drawn, options, sentences, some
from tokentape.dashboards.layered_prefill import rows
from tokentape.dashboards.layered_prefill.words import of_series
from tokentape.dashboards.units import joined, quantity

FRONT, GROUPS = "pareto", ("n-sweep", "table-11")  # series
MEASURES = {"ttft_mean_s": "TTFT, mean", "ttft_p99_s": "TTFT, p99", "tbt_mean_s": "TBT, mean", "tbt_p99_s": "TBT, p99"}
PAPER_GROUPS = 16  # most groups of the paper's main model
FIELDS = ("setting", "at", "scheduler", "system", "rate", "knob", "n_seeds")


def front(ask: Ask) -> Drawn:
    found = some(_swept(ask.made(rows.points), FRONT))
    return Drawn(
        {"front": _with_front(found)},
        sentences(_with_front(found), ["at"], front_answer),
        controls=(Control("at", "Front at"),),
        choices=options("at", found["at"].unique(maintain_order=True)),
    )


def groups(ask: Ask) -> Drawn:
    found = some(_rule_apart(_swept(ask.made(rows.points), *GROUPS)))
    own = {"legend": "title=null orient=top labelLimit=300" if found["at"].n_unique() > 1 else "none"}
    said = " ".join(groups_answer(of) for _, of in found.group_by(["at"], maintain_order=True))
    return Drawn({"groups": found}, {"": said}, own)


def _swept(points: pl.DataFrame, *series: str) -> pl.DataFrame:
    found = of_series(points, *series)
    if found.is_empty():
        return found
    knob = pl.when(pl.col("scheduler") == "chunked").then("chunk_tokens").otherwise("n_max")
    told = found.with_columns(knob=knob, at=pl.format("{}, {}/s", "setting", "rate")).drop_nulls("knob")
    bands = [f"{name}{end}" for name in MEASURES for end in ("", "_low", "_high")]
    return told.select(*FIELDS, "n_lg_rule", *bands).sort("at", "scheduler", "knob", descending=[True, False, False])


def _with_front(found: pl.DataFrame) -> pl.DataFrame:
    """is_best: no other point of the setting is as good in both TTFT and TBT and better in one."""
    best = []
    for row in found.to_dicts():
        x, y = pl.col("tbt_p99_s"), pl.col("ttft_mean_s")
        as_good = (x <= row["tbt_p99_s"]) & (y <= row["ttft_mean_s"])
        better = (x < row["tbt_p99_s"]) | (y < row["ttft_mean_s"])
        best.append(found.filter((pl.col("at") == row["at"]) & as_good & better).is_empty())
    return found.with_columns(pl.Series("is_best", best, pl.Boolean))


def _rule_apart(found: pl.DataFrame) -> pl.DataFrame:
    """The fixed rule alone where it is swept: with another the number is the most that a batch may take."""
    fixed = found.filter(pl.col("n_lg_rule") == "fixed") if not found.is_empty() else found
    return fixed if not fixed.is_empty() else found


def front_answer(found: pl.DataFrame) -> str:
    """What lies on the front, from short gaps to short waits, and how many of each scheduler do not."""
    best = found.filter("is_best").sort("tbt_p99_s").to_dicts()
    told = [f"{_named(row)} ({quantity(row['tbt_p99_s'], 's')}, {quantity(row['ttft_mean_s'], 's')})" for row in best]
    if len(told) > 4:
        told = [*told[:2], f"{len(told) - 4} more", *told[-2:]]
    beaten = [
        f"{of.filter(~pl.col('is_best')).height} of {of.height} {name}"
        for (name,), of in found.sort("scheduler").group_by(["scheduler"], maintain_order=True)
    ]
    return f"On the front (TBT p99, mean TTFT): {joined(told)}. Off it: {joined(beaten)} settings."


def _named(row: Mapping[str, object]) -> str:
    return f"{'chunks of' if row['scheduler'] == 'chunked' else 'N ='} {row['knob']}"


def groups_answer(found: pl.DataFrame) -> str:
    """From the least to the largest number of groups of one setting."""
    rows = found.sort("knob")
    first, last = rows.row(0, named=True), rows.row(-1, named=True)
    told = [
        f"mean TTFT goes from {quantity(first['ttft_mean_s'], 's')} to {quantity(last['ttft_mean_s'], 's')}",
        f"TBT p99 from {quantity(first['tbt_p99_s'], 's')} to {quantity(last['tbt_p99_s'], 's')}",
    ]
    steps = rows.select(up=pl.col("ttft_mean_s").diff() > 0, down=pl.col("tbt_p99_s").diff() < 0).drop_nulls()
    kept = steps.filter(pl.col("up") & pl.col("down")).height
    every = "with every step" if kept == steps.height else f"in {kept} of {steps.height} steps"
    between = [
        f" N = {row['knob']} has {quantity(row['ttft_mean_s'], 's')} and {quantity(row['tbt_p99_s'], 's')}."
        for row in rows.filter(pl.col("knob") == PAPER_GROUPS).to_dicts()
    ]
    return (
        f"{found['at'][0]}: from N = {first['knob']} to {last['knob']}, {joined(told)}; the one rises and the other falls "
        f"{every}." + "".join(between)
    )
