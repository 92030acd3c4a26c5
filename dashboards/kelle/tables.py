"""The Kelle page on Tables 7 and 9: gains against budget and batch beside the paper's; and what it shows without numbers."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.engine import Ask, Drawn, known, some
from tokentape.dashboards.kelle.words import MODELS, ROLES, SYSTEMS, in_full

BUDGET, BATCH = "table-7", "table-9"
SWEPT = {"refresh interval": "refresh interval (us)", "edram bandwidth": "bandwidth of the eDRAM (GB/s)"}


def tables(ask: Ask) -> Drawn:
    found = some(in_full(ask("tables"), "series"))
    role = pl.when(pl.col("published").is_null()).then(pl.lit("report")).otherwise("role")
    told = found.with_columns(role_words=role.replace({name: words for name, (words, _) in ROLES.items()}))
    each = [
        {"series": series, "field": field, "title": title, "looks": looks, "of": of, "width": width, "names": names}
        for series, field, title, table, looks, of, width in (
            (BUDGET, "budget", "budget (tokens per head)", MODELS, "MODELS", "model", 460),
            (BATCH, "batch", "batch (requests)", SYSTEMS, "SYSTEMS", "system", 600),
        )
        for names in (known(table, told.filter(pl.col("series") == series)[of]),)
        if names
    ]
    return Drawn({"tables": told}, facts={"each": each})


def sweeps(ask: Ask) -> Drawn:
    found = some(in_full(ask("sweeps"), "series"))
    each = []
    for (series, title), width in zip(SWEPT.items(), (560, 480), strict=True):
        of = found.filter(pl.col("series") == series)
        names = sorted({f"{system}, {task}" for system, task in of.select("system", "workload").rows()}, reverse=True)
        settings = of.sort("value", descending=True)["setting"].unique(maintain_order=True).to_list()
        own = {"names": names, "colours": theme.PALETTE[1 : len(names) + 1], "settings": settings}
        each += [{"series": series, "title": title, "width": width, **own}] if names else []
    return Drawn({"sweeps": found}, facts={"each": each})
