"""The Layered Prefill page on service levels: who attains the paper's limits at which rate, each alone, and any two."""

from collections.abc import Iterator

import polars as pl

from tokentape.dashboards.engine import Ask, Control, Drawn, some, turn_of
from tokentape.dashboards.layered_prefill import rows
from tokentape.dashboards.layered_prefill.words import (
    ATTAINED_FRAC,
    capacity,
    drawing_order,
    in_order,
    looks,
    of_series,
    settings,
    systems,
)
from tokentape.dashboards.units import percent, quantity

SERIES, MAX_PANELS = "slo ", 4
HALVES = {"slo_ttft_frac": "first token in time", "slo_tbt_frac": "gaps in time"}
OPENS_AT_S = {"ttft": {"sharegpt": 5.0, "arxiv": 10.0}, "tbt": {"sharegpt": 0.125, "arxiv": 0.125}}  # of Table 5, for Qwen


def attainment(ask: Ask) -> Drawn:
    told = some(ask.made(_rates))
    own = {"panels": in_order(told), "at": percent(ATTAINED_FRAC, 0)}
    return Drawn(
        {"rates": _shown(told)}, facts=looks(told["system"]) | own, said=capacities(told, "slo_frac", "setting", "system")
    )


def split(ask: Ask) -> Drawn:
    told = some(ask.made(_rates))
    panels = in_order(told)
    own = {"panels": panels, "width": 1040 / len(panels) - 20}
    halves = pl.concat(_half(told, *half) for half in HALVES.items())
    served = capacities(halves, "frac", "setting", "system", "words").sort("setting", "system")
    return Drawn({"halves": halves}, facts=looks(told["system"]) | own, said=served)


def _rates(ask: Ask) -> pl.DataFrame:
    """Points of the first settings."""
    found = of_series(ask.made(rows.points), SERIES)
    return found if found.is_empty() else found.filter(pl.col("setting").is_in(in_order(found)[:MAX_PANELS]))


def _shown(told: pl.DataFrame) -> pl.DataFrame:
    bands = [f"{name}{end}" for name in ("slo_frac", *HALVES) for end in ("", "_low", "_high")]
    kept = ("setting", "system", "rate", "n_seeds", "decode_batch_mean")
    return told.select(*kept, *(name for name in bands if name in told.columns))


def capacities(found: pl.DataFrame, column: str, *keys: str) -> pl.DataFrame:
    """A row for each value of the keys, systems in drawing order; `words`: the capacity as it is said."""
    names = drawing_order(found["system"])
    told = found.drop_nulls(column).sort("rate").group_by(keys, maintain_order=True).agg(capacity(column))
    words = pl.format("{} {}", "kind", pl.col("per_s").map_elements(lambda rate: f"{rate:.2f}", pl.String)).str.strip_chars()
    return told.with_columns(said=words).sort(*keys[: keys.index("system")], turn_of("system", names), maintain_order=True)


def _flat(told: pl.DataFrame) -> pl.DataFrame:
    limits = {name: _text(f"{name}_limit_s") for name in ("tbt", "ttft")}
    kind = pl.when(pl.col("kind") == "").then(pl.lit("at")).otherwise("kind")
    return told.select("setting", "system", pl.col("per_s").round(4), kind=kind, **limits)


def _text(limit: str) -> pl.Expr:
    """As the sliders name it."""
    return pl.col(limit).map_elements(lambda value: f"{value:g}", pl.String)


def _half(found: pl.DataFrame, column: str, words: str) -> pl.DataFrame:
    """One limit alone."""
    ends = {"frac": column, "low": f"{column}_low", "high": f"{column}_high"}
    return found.select("setting", "system", "rate", *(pl.col(of).alias(name) for name, of in ends.items()), words=pl.lit(words))


def explorer(ask: Ask) -> Drawn:
    """The first settings."""
    found = some(grid(ask, ask.made(rows.points)))
    found = found.filter(pl.col("setting").is_in(in_order(found)[: ask.size]))
    told = capacities(found, "attained_frac", "setting", "ttft_limit_s", "tbt_limit_s", "system", "scheduler")
    return Drawn(
        {"grid": _packed(found), "capacities": _flat(told)},
        facts={"at": percent(ATTAINED_FRAC, 0), **looks(found["system"])},
        said=told,
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
    kept = ("point_id", "setting", "system", "scheduler", "rate", "model", "workload", "is_dense")
    found = limits.join(named.select(kept), on="point_id")
    return found.drop("point_id").sort("setting", "system", "rate", "ttft_limit_s", "tbt_limit_s")


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
    texts = found.with_columns(ttft=_text("ttft_limit_s"), tbt=_text("tbt_limit_s"))
    return texts.group_by(keys, maintain_order=True).agg(
        pl.col("ttft").unique(maintain_order=True),
        pl.col("tbt").unique(maintain_order=True),
        pl.col("attained_frac").round(4).alias("attained"),
    )
