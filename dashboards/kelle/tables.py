"""The Kelle page on Tables 7 and 9: gains against budget and batch beside the paper's; and what it shows without numbers."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.engine import Ask, Drawn, known, sentences, some
from tokentape.dashboards.kelle.words import KELLE, MODELS, ROLES, SYSTEMS, in_full, times
from tokentape.dashboards.units import joined, mean_of, percent, signed

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
    return Drawn({"tables": told}, sentences(told, ["reading"], tables_answer), {"each": each})


def sweeps(ask: Ask) -> Drawn:
    found = some(in_full(ask("sweeps"), "series"))
    each = []
    for (series, title), width in zip(SWEPT.items(), (560, 480), strict=True):
        of = found.filter(pl.col("series") == series)
        names = sorted({f"{system}, {task}" for system, task in of.select("system", "workload").rows()}, reverse=True)
        settings = of.sort("value", descending=True)["setting"].unique(maintain_order=True).to_list()
        own = {"names": names, "colours": theme.PALETTE[1 : len(names) + 1], "settings": settings}
        each += [{"series": series, "title": title, "width": width, **own}] if names else []
    return Drawn({"sweeps": found}, sentences(found, ["reading"], sweeps_answer), {"each": each})


def tables_answer(found: pl.DataFrame) -> str:
    """Errors on predicted cells of each table, whether the gain falls throughout, and where another system beats Kelle."""
    said = []
    for series, name in ((BUDGET, "Table 7"), (BATCH, "Table 9 at batch 16")):
        of = found.filter((pl.col("series") == series) & (pl.col("role") == "predict")).drop_nulls("published")
        of = of.with_columns(error=pl.col("gain") / pl.col("published") - 1).sort(pl.col("error").abs())
        for worst in of.tail(1).to_dicts():
            where = f"{worst['model']}, {worst['budget']} tokens" if series == BUDGET else worst["system"]
            mean = percent(mean_of(of["error"].abs()), 0)
            said.append(f"{name} is predicted within {mean} on average, {signed(worst['error'])} at worst ({where})")
    return f"{'. '.join(said)}{'. ' if said else ''}{_falls(found)}{_beaten(found)}"


def _falls(found: pl.DataFrame) -> str:
    rows = found.filter(pl.col("series") == BUDGET).sort("model", "budget")
    if rows.is_empty():
        return ""
    steps = rows.with_columns(step=pl.col("gain").diff().over("model"))["step"].drop_nulls()
    return f"The gain falls with {'every' if bool((steps <= 0).all()) else 'not every'} larger budget. "


def _beaten(found: pl.DataFrame) -> str:
    rows = found.filter(pl.col("series") == BATCH)
    if rows.is_empty():
        return ""
    best = rows.sort("gain", descending=True).group_by("batch", maintain_order=True).first().sort("batch")
    lost = best.filter(pl.col("system") != KELLE).group_by("system", maintain_order=True).agg(pl.col("batch").cast(pl.String))
    said = [f"{system} needs less energy than {KELLE} at batch {joined(batches)}" for system, batches in lost.rows()]
    return f"{joined(said)}." if said else f"{KELLE} needs least energy at every batch."


def sweeps_answer(found: pl.DataFrame) -> str:
    """Gains at the ends of each sweep; rows of one reading."""
    said = []
    for (series, workload), of in found.filter(pl.col("system") == KELLE).group_by(["series", "workload"], maintain_order=True):
        rows = of.sort("value", descending=True)
        first, last = rows.row(0, named=True), rows.row(-1, named=True)
        said.append((str(series), f"{times(first['gain'])} to {times(last['gain'])} on {workload}", first, last))
    told = []
    for series, word in (
        ("refresh interval", "Refreshing every {} instead of {}"),
        ("edram bandwidth", "eDRAM at {} instead of {}"),
    ):
        of_series = [one for one in said if one[0] == series]
        if of_series:
            _, _, first, last = of_series[0]
            change = word.format(last["setting"], first["setting"])
            told.append(f"{change} takes Kelle's energy gain from {joined([words for _, words, *_ in of_series])}")
    return f"{'. '.join(told)}."
