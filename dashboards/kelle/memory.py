"""The Kelle page on memory: more SRAM, plain eDRAM (Figure 3), recomputation and ways to refresh (Figure 15)."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards.engine import Ask, Drawn, sentences, some
from tokentape.dashboards.units import joined, percent

RECOMPUTE, REFRESH = "recompute", "refresh policy"
ORDER = {RECOMPUTE: ("off", "on"), REFRESH: ("45 us", "uniform 360 us", "2D", "2D + scheduler")}
TITLES = {RECOMPUTE: "Recomputation", REFRESH: "Refresh"}


def memory(ask: Ask) -> Drawn:
    sram, shares = some(ask("sram")), some(ask("memory"))
    said = {
        str(name): memory_answer(of, shares.filter(pl.col("reading") == name))
        for (name,), of in sram.group_by(["reading"], maintain_order=True)
        if name in set(shares["reading"])
    }
    return Drawn({"sram": sram, "memory": shares}, said, {"settings": shares["setting"].unique().sort().to_list()})


def settings(ask: Ask) -> Drawn:
    found = some(ask("settings"))
    held = {series: set(of["setting"]) for (series,), of in found.group_by(["series"])}
    each = [
        {"series": series, "title": TITLES[series], "settings": [name for name in order if name in held[series]]}
        for series, order in ORDER.items()
        if series in held
    ]
    return Drawn({"settings": found}, sentences(found, ["reading"], settings_answer), {"series": each})


def memory_answer(sram: pl.DataFrame, memory: pl.DataFrame) -> str:
    """What twice the SRAM saves, and the range of the refresh's share; rows of one reading."""
    gains = (1 / sram.filter(pl.col("setting") == "8 MB")["over_small"]).to_list()
    shares = memory.filter((pl.col("part") == "refresh") & (pl.col("setting") == "8 MB at 45 us"))["share"].to_list()
    if not gains or not shares:
        return "It was not computed for both sizes."
    span = " to ".join(dict.fromkeys(percent(share, 0) for share in (min(shares), max(shares))))
    return (
        f"8 MB of SRAM instead of 4 MB make a step at most {max(gains):.3f} × as fast. eDRAM of 8 MB, refreshed every 45 us, "
        f"spends {span} of the energy on refresh."
    )


def settings_answer(found: pl.DataFrame) -> str:
    """Each setting's energy over the first one's, means over tasks; rows of one reading."""
    whole = found.group_by("series", "setting", "workload").agg(pl.sum("part_frac")).group_by("series", "setting")
    energy = {(series, setting): value for series, setting, value in whole.agg(pl.mean("part_frac")).rows()}
    said = []
    if (RECOMPUTE, "on") in energy:
        change = energy[RECOMPUTE, "on"] - 1
        said.append(f"Recomputation {'saves' if change <= 0 else 'adds'} {percent(abs(change), 0)} of the energy on average")
    steps = [(setting, 1 - energy[REFRESH, setting]) for setting in ORDER[REFRESH][1:] if (REFRESH, setting) in energy]
    if steps:
        each = joined([f"{percent(saved)} ({setting})" for setting, saved in steps])
        said.append(f"against a refresh every 45 us, Llama-2-7B saves {each}")
    return f"{'; '.join(said)}." if said else "Nothing of it fits into the DRAM."
