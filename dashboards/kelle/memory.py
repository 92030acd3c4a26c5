"""The Kelle page on memory: more SRAM, plain eDRAM (Figure 3), recomputation and ways to refresh (Figures 15 and 16), and what
refresh answers to: the assumed retention curve (Figure 4) and how long data live (Figure 12)."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.engine import Ask, Drawn, in_words, some
from tokentape.dashboards.kelle.words import MODES, PAPER, ZERO

RECOMPUTE, REFRESH = "recompute", "refresh policy"
ORDER = {RECOMPUTE: ("off", "on"), REFRESH: ("45 us", "uniform 360 us", "2D", "2D + scheduler")}
TITLES = {RECOMPUTE: "Recomputation", REFRESH: "Refresh"}
CURVES = (theme.SKY, theme.ORANGE, theme.VERMILLION, theme.PURPLE)


def memory(ask: Ask) -> Drawn:
    sram, shares = some(ask("sram")), some(ask("memory"))
    both = sram.filter(pl.col("reading").is_in(shares["reading"].implode()))
    return Drawn({"sram": sram, "memory": shares}, facts={"settings": shares["setting"].unique().sort().to_list()}, said=both)


def settings(ask: Ask) -> Drawn:
    found = some(ask("settings"))
    held = {series: set(of["setting"]) for (series,), of in found.group_by(["series"])}
    each = [
        {"series": series, "title": TITLES[series], "settings": [name for name in order if name in held[series]]}
        for series, order in ORDER.items()
        if series in held
    ]
    return Drawn({"settings": found}, facts={"series": each})


def roof(ask: Ask) -> Drawn:
    told = some(ask("recompute").with_columns(said=in_words("mode", MODES)))
    return Drawn({"recompute": told, "roof": corners(told)})


def requests(ask: Ask) -> Drawn:
    told = ask("requests")
    found = some(told.filter(pl.col("reading").is_in([PAPER, ZERO])))
    lengths = found.sort("context", "decode")["lengths"].unique(maintain_order=True).to_list()
    return Drawn({"requests": told}, facts={"lengths": lengths}, said=found)


def corners(recompute: pl.DataFrame) -> pl.DataFrame:
    """The roof's corners: of the least intensity, where memory and array are as fast, and of the largest."""
    ends = recompute.sort("ops_per_byte").select("ops_per_byte", "roof")
    first, last = ends.row(0, named=True), ends.row(-1, named=True)
    knee = last["roof"] / (first["roof"] / first["ops_per_byte"])
    return pl.DataFrame([first, {"ops_per_byte": max(knee, first["ops_per_byte"]), "roof": last["roof"]}, last])


def retention(ask: Ask) -> Drawn:
    found = some(ask("retention"))
    names = found["curve"].unique(maintain_order=True).to_list()
    colours = [*CURVES, *theme.SPARE_COLOURS * 4][: len(names)]
    return Drawn({"retention": found}, facts={"curves": names, "colours": colours})


def lifetimes(ask: Ask) -> Drawn:
    return Drawn({"lifetimes": ask("lifetimes")}, facts={"schedules": ["in program order", "Kelle's scheduler"]})
