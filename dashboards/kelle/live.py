"""The Kelle page inside a live model: quality by budget (Table 3), `recall`, energy, and lost bits (Figure 8, Table 4); and on
recorded attention: how much of it each policy keeps, which tokens are popular, and where a replay drifts."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards.engine import Ask, Control, Drawn, some
from tokentape.dashboards.kelle.words import GROUPS, WAYS, first_of, named, whos
from tokentape.dashboards.units import highest

LARGE = 10.0  # ratios above want a logarithmic axis

PANELS = {
    "all bits alike (Fig. 8a)": ("all bits",),
    "by token (Fig. 8b)": ("HST", "LST"),
    "by bit (Fig. 8c)": ("MSB", "LSB"),
}


def models(ask: Ask) -> list[str]:
    """The first live models."""
    return sorted({*ask("quality")["model"], *ask("pareto")["model"]})[: ask.size]


def quality(ask: Ask) -> pl.DataFrame:
    """Quality of these models."""
    return ask("quality").filter(pl.col("model").is_in(models(ask)))


def budgets(ask: Ask) -> Drawn:
    found, paper = some(_of(ask, "budget", "perplexity_ratio")), ask("table_3")
    own = whos(found) | {"paper": [] if paper.is_empty() else [{}]}
    return Drawn({"budgets": found, "table_3": paper}, facts=own)


def recall(ask: Ask) -> Drawn:
    found = some(_of(ask, "recall", "accuracy"))
    return Drawn({"recall": found}, facts=whos(found))


def pareto(ask: Ask) -> Drawn:
    found = some(named(ask("pareto").filter(pl.col("model").is_in(models(ask)))))
    return Drawn({"pareto": found}, facts=whos(found))


def _of(ask: Ask, series: str, metric: str) -> pl.DataFrame:
    return named(ask.made(quality).filter((pl.col("series") == series) & (pl.col("metric") == metric)))


def flips(ask: Ask) -> Drawn:
    """Rates above none, with the panel and the name of what loses bits."""
    panel = {variant: name for name, variants in PANELS.items() for variant in variants}
    is_row = (pl.col("series") == "errors") & (pl.col("metric") == "perplexity_ratio") & (pl.col("at") > 0)
    told = some(named(ask.made(quality).filter(is_row, pl.col("variant").is_in(list(panel)))))
    group = pl.when(pl.col("variant") == "all bits").then(pl.format("{}, all bits", "storage")).otherwise("variant")
    panels = pl.col("variant").replace_strict(panel, default="")
    found = told.with_columns(panel=panels, group=group).sort("panel", "group", "at")
    each = []
    for name in PANELS:
        of = found.filter(pl.col("panel") == name)
        is_large = not of.is_empty() and highest(of["high"]) > LARGE
        ticks = ",~g values=[1,10,100,1000,10000,100000,1000000]" if is_large else "~g tickCount=6"
        held = set(of["group"])
        each += [{"name": name, "ticks": ticks, "groups": [one for one in GROUPS if one in held]}] if held else []
    return Drawn({"flips": found}, facts={"panels": each})


def refresh(ask: Ask) -> Drawn:
    is_row = (pl.col("series") == "refresh") & (pl.col("metric") == "perplexity_ratio") & pl.col("variant").is_in(list(WAYS))
    found, paper = some(ask.made(quality).filter(is_row).sort("model", "at", "variant")), ask("table_4")
    storages = []
    for storage in found["storage"].unique().sort(descending=True):
        is_large = highest(found.filter(pl.col("storage") == storage)["high"]) > LARGE
        log, scale = (", log", "log tight padding=10") if is_large else ("", "free")
        storages.append({"storage": storage, "log": log, "scale": scale})
    own = {
        "ways": [way for way in WAYS if way in set(found["variant"])],
        "storages": storages,
    }
    return Drawn({"refresh": found, "table_4": paper}, facts=own)


def kept(ask: Ask) -> Drawn:
    """The first tapes with their budgets, of which the middle one opens."""
    held = named(first_of(ask("kept"), "tape", ask.size))
    found = some(held.drop_nulls("budget"))
    choices = []
    for (tape,), of in found.group_by(["tape"], maintain_order=True):
        budgets = of["budget"].unique().sort().to_list()
        middle = budgets[(len(budgets) - 1) // 2]
        choices += [{"tape": str(tape), "keeping": f"{n}"} for n in [middle, *(n for n in budgets if n != middle)]]
    return Drawn(
        {"kept": held},
        facts=whos(found),
        said=found,
        controls=(Control("tape", "Tape"), Control("keeping", "Budget, replayed")),
        choices=tuple(choices),
    )


def along(ask: Ask) -> Drawn:
    held = named(first_of(ask("timeline"), "tape", ask.size))
    found = some(held.drop_nulls("budget"))
    return Drawn({"along": held}, facts=whos(found), said=found)


def drift(ask: Ask) -> Drawn:
    found = some(named(ask("divergence")))
    return Drawn({"drift": found}, facts=whos(found))
