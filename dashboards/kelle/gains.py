"""The Kelle page on gains: of the five systems (Figure 13), against budget and batch beside Tables 7 and 9, of what the paper
shows without numbers, and the explorer."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.engine import Ask, Control, Drawn, known, options, some
from tokentape.dashboards.kelle.words import MODELS, ROLES, SYSTEMS, WORKLOADS, in_full

MEASURES = {"energy": "energy efficiency", "speed": "speed"}
PACKED = ["batch", "budget", "speed", "energy"]
OPENS_AT = {"explored": "llama-2-7b", "task": "PG19", "batch": 16, "budget": 2048}
DIGITS = 4
BUDGET, BATCH = "table-7", "table-9"
SWEPT = {"refresh interval": "refresh interval (us)", "edram bandwidth": "bandwidth of the eDRAM (GB/s)"}


def gains(ask: Ask) -> Drawn:
    headline = some(ask("headline"))
    means = averaged(headline, ask("published"))
    return Drawn({"headline": headline, "means": means})


def averaged(headline: pl.DataFrame, published: pl.DataFrame) -> pl.DataFrame:
    """Mean gains over the cells that both systems fit, by reading and system, a row per measure, with the paper's number."""
    made = (
        headline.drop_nulls("energy")
        .group_by("reading", "system")
        .agg(pl.mean("energy"), pl.mean("speed"), pl.len().alias("cells"))
        .join(published, on="system", how="left", suffix="_paper")
    )
    each = [
        made.select("reading", "system", "cells", measure=pl.lit(words), gain=name, published=f"{name}_paper")
        for name, words in MEASURES.items()
    ]
    return pl.concat(each).sort("reading", "measure", "system")


def explorer(ask: Ask) -> Drawn:
    """Menus open at OPENS_AT, tasks by length; a system that keeps everything goes with any budget."""
    found = some(ask("explorer").drop_nulls("energy"))
    batches, budgets = (found[name].drop_nulls().unique().sort().to_list() for name in ("batch", "budget"))
    chosen = found.join(pl.DataFrame({"chosen": budgets}), how="cross").filter(
        pl.col("budget").is_null() | (pl.col("budget") == pl.col("chosen"))
    )
    values: dict[str, Iterable[str | int]] = {
        "explored": found["model"].unique().sort(),
        "task": known(dict.fromkeys(WORKLOADS, ""), found["workload"]),
        "batch": batches,
        "budget": budgets,
    }
    return Drawn(
        {"explorer": _packed(found)},
        facts={"budgets": budgets},
        said=chosen,
        controls=(
            Control("explored", "Model, explored"),
            Control("task", "Task, explored"),
            Control("batch", "Batch", {f"{n}": f"{n} request{'s' * (n > 1)}" for n in batches}, "slider"),
            Control("budget", "Budget", {f"{n}": f"{n} tokens" for n in budgets}, "slider"),
        ),
        choices=tuple(row for name, of in values.items() for row in options(name, of, OPENS_AT[name])),
    )


def _packed(found: pl.DataFrame) -> pl.DataFrame:
    """A row per system, its batches and budgets as lists: a page stays small."""
    rounded = found.with_columns(pl.col("speed", "energy").round_sig_figs(DIGITS))
    return rounded.group_by("reading", "model", "workload", "system", maintain_order=True).agg(PACKED)


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
