"""The Layered Prefill page's SLO explorer: two limits on sliders, who attains them at which rate, and the capacity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import polars as pl

from tokentape.dashboards.engine import Ask, Control, Drawn, some
from tokentape.dashboards.layered_prefill import rows
from tokentape.dashboards.layered_prefill.words import (
    ATTAINED_FRAC,
    Capacity,
    capacity,
    drawing_order,
    in_order,
    looks,
    settings,
    systems,
)
from tokentape.dashboards.units import joined, percent, quantity

OPENS_AT_S = {"ttft": {"sharegpt": 5.0, "arxiv": 10.0}, "tbt": {"sharegpt": 0.125, "arxiv": 0.125}}  # of Table 5, for Qwen
LEFT, RIGHT, HEIGHT = 560, 400, 270


def explorer(ask: Ask) -> Drawn:
    """The first settings."""
    found = some(grid(ask, ask.made(rows.points)))
    found = found.filter(pl.col("setting").is_in(in_order(found)[: ask.size]))
    told = capacities(found)
    return Drawn(
        {"grid": _packed(found), "capacities": _flat(told)},
        dict(_answers(told)),
        {"at": percent(ATTAINED_FRAC, 0), **looks(found["system"])},
        controls=(
            Control("served", "Model and workload"),
            Control("ttft", "First token within", _labels(found["ttft_limit_s"]), "slider"),
            Control("tbt", "No gap above", _labels(found["tbt_limit_s"]), "slider"),
        ),
        choices=tuple(_choices(found)),
    )


def grid(ask: Ask, points: pl.DataFrame) -> pl.DataFrame:
    """setting, system, rate, both limits, attained_frac; settings of limits ascending."""
    if points.is_empty():
        return pl.DataFrame()
    limits = ask("attainment").filter(pl.col("point_id").is_in(points["point_id"].implode()))
    held = points.filter(pl.col("point_id").is_in(limits["point_id"].unique().implode()) & pl.col("rate").is_not_null())
    named = systems(held.with_columns(settings(held)), "setting", "rate")
    found = limits.join(named.select("point_id", "setting", "system", "rate", "model", "workload", "is_dense"), on="point_id")
    return found.drop("point_id").sort("setting", "system", "rate", "ttft_limit_s", "tbt_limit_s")


def capacities(found: pl.DataFrame) -> dict[tuple[str, str, str], dict[str, Capacity]]:
    """(setting, TTFT limit, TBT limit) as the sliders name them -> system -> capacity."""
    told: dict[tuple[str, str, str], dict[str, Capacity]] = {}
    keys = ["setting", "ttft_limit_s", "tbt_limit_s", "system"]
    for (setting, ttft, tbt, system), of in found.sort("rate").group_by(keys, maintain_order=True):
        place = str(setting), f"{ttft:g}", f"{tbt:g}"
        told.setdefault(place, {})[str(system)] = capacity(of["rate"].to_list(), of["attained_frac"].to_list())
    return told


def answer(ttft: str, tbt: str, found: Mapping[str, Capacity]) -> str:
    """The capacity of every scheduler at these limits, and what layered adds to those that fall below the level."""
    told = [f"{str(found[name]).removesuffix('/s')} ({name})" for name in drawing_order(found)]
    said = (
        f"With the first token within {quantity(float(ttft), 's')} and no gap above {quantity(float(tbt), 's')}, "
        f"{percent(ATTAINED_FRAC, 0)} of the requests are in time up to, in requests per second: {joined(told)}."
    )
    ours = max((of for name, of in found.items() if name.startswith("layered")), key=lambda of: of.rate, default=None)
    if ours is None or ours.kind == "below":
        return said
    more = []
    for name in drawing_order(found):
        of, change = found[name], ours.rate / found[name].rate - 1
        if not name.startswith("layered") and not of.kind:
            least = "at least " if ours.kind else ""
            more.append(f"{least}{percent(abs(change), 0)} {'more' if change >= 0 else 'less'} than {name}")
    return f"{said} Layered serves {joined(more)}." if more else said


def _answers(told: Mapping[tuple[str, str, str], Mapping[str, Capacity]]) -> Iterator[tuple[str, str]]:
    for place, found in told.items():
        yield "|".join(place), answer(*place[1:], found)


def _choices(found: pl.DataFrame) -> Iterator[dict[str, str]]:
    """Each setting with its limits; the paper's come first, so that the sliders open there."""
    for setting in in_order(found):
        of = found.filter(pl.col("setting") == setting)
        for name in ("ttft", "tbt"):
            opens = OPENS_AT_S[name].get(of["workload"][0], 0.0)
            limits = of[f"{name}_limit_s"].unique().sort().to_list()
            for limit in sorted(limits, key=lambda limit: (abs(limit - opens) > 1e-9, limit)):
                yield {"served": setting, name: f"{limit:g}"}


def _labels(limits: pl.Series) -> dict[str, str]:
    return {f"{limit:g}": quantity(limit, "s") for limit in limits.unique().sort().to_list()}


def _packed(found: pl.DataFrame) -> pl.DataFrame:
    """A row per setting, system and rate with the attainment at all limits as one list: a page stays small."""
    keys = ["setting", "system", "rate"]
    texts = found.with_columns(
        ttft=pl.col("ttft_limit_s").map_elements(lambda limit: f"{limit:g}", pl.String),
        tbt=pl.col("tbt_limit_s").map_elements(lambda limit: f"{limit:g}", pl.String),
    )
    return texts.group_by(keys, maintain_order=True).agg(
        pl.col("ttft").unique(maintain_order=True),
        pl.col("tbt").unique(maintain_order=True),
        pl.col("attained_frac").round(4).alias("attained"),
    )


def _flat(told: Mapping[tuple[str, str, str], Mapping[str, Capacity]]) -> pl.DataFrame:
    rows = [
        {"setting": setting, "tbt": tbt, "ttft": ttft, "system": system, "per_s": round(of.rate, 4), "kind": of.kind or "at"}
        for (setting, ttft, tbt), systems in told.items()
        for system, of in systems.items()
    ]
    return pl.DataFrame(rows)
