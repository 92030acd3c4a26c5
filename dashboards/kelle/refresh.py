"""The Kelle page on what refresh answers to: the assumed retention curve (Figure 4) and how long data live (Figure 12)."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.engine import Ask, Drawn, some
from tokentape.dashboards.units import highest, joined, lowest, mean_of, significant

SCHEDULES = {"baseline": "in program order", "kelle": "Kelle's scheduler"}
CURVES = (theme.SKY, theme.ORANGE, theme.VERMILLION, theme.PURPLE)


def retention(ask: Ask) -> Drawn:
    found = _named(some(ask("retention")))
    names = found["curve"].unique(maintain_order=True).to_list()
    colours = [*CURVES, *theme.SPARE_COLOURS * 4][: len(names)]
    return Drawn({"retention": found}, {"": curve_answer(found)}, {"curves": names, "colours": colours})


def lifetimes(ask: Ask) -> Drawn:
    found = some(ask("lifetimes").with_columns(said=pl.col("schedule").replace(SCHEDULES)))
    return Drawn({"lifetimes": found}, {"": lives_answer(found)}, {"schedules": list(SCHEDULES.values())})


def _named(retention: pl.DataFrame) -> pl.DataFrame:
    """With `curve`: its failures at 45 us, in words."""
    words = [
        f"{anchor:.0e} at 45 us, sigma {sigma:.2f}{' (used)' if used else ''}".replace("e-0", "e-")
        for anchor, sigma, used in retention.select("anchor", "sigma", "is_default").rows()
    ]
    return retention.with_columns(pl.Series("curve", words, pl.String)).sort("anchor", "us")


def curve_answer(curves: pl.DataFrame) -> str:
    """Failures of each group on the curve that is used, their mean, and the range over the assumed curves."""
    marked = curves.filter(pl.col("name") != "").sort("us")
    used = marked.filter("is_default")
    if used.is_empty():
        return "No interval is marked on the curve that is used."
    each = [f"{_rate(rate)} ({name}, {us:,.0f} us)" for name, us, rate in used.select("name", "us", "failures").rows()]
    first = marked.filter(pl.col("name") == used["name"][0])["failures"]
    mean = _rate(mean_of(used["failures"]))
    return (
        f"By the assumed curve {joined(each)} of the bits; {mean} on average. Other curves that agree on this average have "
        f"{_rate(lowest(first))} to {_rate(highest(first))} for {used['name'][0]}."
    )


def _rate(value: float) -> str:
    """A rate of failure, in per cent or as a power of ten."""
    return f"{significant(100 * value)} %" if value >= 1e-4 else f"{value:.1e}".replace("e-0", "e-")


def lives_answer(lives: pl.DataFrame) -> str:
    """The sum of lives under both schedules, model by model."""
    said = []
    for (model,), of in lives.group_by(["model"], maintain_order=True):
        total = {name: float(of.filter(pl.col("schedule") == name)["ms"].sum()) for name in SCHEDULES}
        if total["kelle"]:
            ratio = total["baseline"] / total["kelle"]
            said.append(f"{total['baseline']:.2f} ms in all becomes {total['kelle']:.2f} ms, {ratio:.2f} × less, on {model}")
    return f"{'; '.join(said)}." if said else "Both schedules were not computed."
