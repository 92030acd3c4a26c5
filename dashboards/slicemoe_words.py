"""Rows of the SliceMoE page as people say them: names for configurations, setups and quantities, and the words beside a chart."""

from __future__ import annotations

import json
import re
from typing import Any

import polars as pl

from dashboards import slicemoe_charts as charts
from dashboards.answers import percent
from dashboards.slicemoe_answers import signed, written
from dashboards.units import quantity

CONFIGURATIONS = {"amat": "AMAT", "dbsc": "DBSC"}
ROUTERS = {"cache_prior": "Cache-Prior", "max_rank": "Max-Rank", "cumsum": "Cumsum", "buddy": "BuddyMoE", "lru": "LRU"}
QUANTITIES = {
    "miss_frac": "miss rate",
    "flash_bytes_per_token": "Flash bytes per token",
    "dram_bytes_per_token": "DRAM bytes per token",
    "step_s": "time per token",
    "step_j": "energy per token",
}
METRICS = {"energy_gain": "energy", "speedup": "speed"}
RATIOS = {"replay": "ratio", "low": "ratio_low", "high": "ratio_high"}  # columns of claims -> over the paper's number
SAID = ("claim", "said_paper", "said_replay", "said_error")


def claims(claims: pl.DataFrame) -> pl.DataFrame:
    """Claims with their words: fitted ones first."""
    is_below = pl.col("replay") <= pl.col("paper")
    holds = pl.when(pl.col("bound") == "<=").then(is_below).otherwise(pl.col("replay") >= pl.col("paper"))
    place = pl.col("role").replace_strict({role: n for n, role in enumerate(charts.ROLES)}, default=len(charts.ROLES))
    quantity_said = pl.col("quantity").str.replace("^decode ", "").str.replace("^dram", "DRAM").str.replace("speedup", "speed-up")
    told = claims.with_columns(quantity_said, place=place, holds=holds.fill_null(False)).sort("place", "claim_id")
    is_value, paper = pl.col("bound") == "", pl.col("paper")
    told = told.with_columns(
        [pl.when(is_value).then(pl.col(name) / paper).alias(alias) for name, alias in RATIOS.items()],
        order=pl.int_range(pl.len()),
        role_words=pl.col("role").replace({role: look[0] for role, look in charts.ROLES.items()}),
    )
    words = [_claim_words(row) for row in told.to_dicts()]
    return told.with_columns(pl.DataFrame(words, schema=dict.fromkeys(SAID, pl.String)))


def _claim_words(row: dict[str, Any]) -> dict[str, str]:
    """A claim in two lines, and what the columns beside it say."""
    paper, replay, low, high = (
        "" if row[n] is None else written(row[n], row["unit"]) for n in ("paper", "replay", "low", "high")
    )
    at_most = ", at most" if row["statistic"] == "max" else ""
    where = re.sub(r"^secondary source \((.*)\)$", r"\1", row["location"])
    where = where if where.startswith("arXiv") else f"section {where}"
    head = f"{row['quantity']}{at_most}" + (f", {row['model']}" if row["model"] else "")
    sign = {"<=": "≤ ", ">=": "≥ "}.get(row["bound"], "")
    error = "" if row["error"] is None else signed(row["error"])
    return {
        "claim": f"{head}|{row['setting']} ({where})",
        "said_paper": sign + paper,
        "said_replay": f"{replay} ({low} to {high})" if low else replay,
        "said_error": ("holds" if row["holds"] else "fails") if sign else error,
    }


def gains(found: pl.DataFrame, paper: pl.DataFrame) -> pl.DataFrame:
    """Gains with the paper's largest beside them and the model's name as the paper has it."""
    said = found.join(paper, on=["model", "metric"], how="left", maintain_order="left")
    named = said.with_columns(pl.col("name").max().over("model").fill_null(pl.col("model")))
    return named.with_columns(metric_name=pl.col("metric").replace(METRICS))


def configured(swept: pl.DataFrame) -> pl.DataFrame:
    """Configurations by name, in drawing order."""
    named = swept.with_columns(pl.col("configuration").replace(CONFIGURATIONS))
    place = pl.col("configuration").replace_strict({name: n for n, name in enumerate(charts.LOOKS)}, default=len(charts.LOOKS))
    return named.sort(place, maintain_order=True)


def warmups(found: pl.DataFrame, claims: pl.DataFrame) -> pl.DataFrame:
    """Ratios with the paper's own for the panels it speaks of: its gains, turned over."""
    stated = claims.filter(pl.col("claim_id").str.contains("pcw-over-empty")).drop_nulls("paper")
    panels = {"energy gain": "energy, first ten steps", "speed-up": "latency, first ten steps"}
    paper = {panels[row["quantity"]]: 1 / row["paper"] for row in stated.to_dicts() if row["quantity"] in panels}
    said = pl.col("panel").replace_strict(paper, default=None, return_dtype=pl.Float64)
    return found.with_columns(pl.col("warmup").replace(charts.WARMUPS), paper=said)


def live(found: pl.DataFrame, size: int) -> pl.DataFrame:
    """Live rows of the `size` setups that have most of them, each named in words."""
    tau = pl.when(pl.col("tau") == "").then(pl.lit("")).otherwise(pl.format(", tau {}", "tau"))
    budget = (
        pl.when(pl.col("target").is_null())
        .then(pl.col("budget"))
        .otherwise(pl.format("{} {} %", "budget", pl.col("target") * 100))
    )
    named = configured(found).with_columns(pl.concat_str("configuration", tau), budget_words=budget)
    return _largest(_with_setup(named, ("model", "dataset", "rest")), size).drop("rest", "tau")


def fidelity(found: pl.DataFrame, size: int) -> pl.DataFrame:
    said = [
        ", ".join(
            quantity(value, row["unit"]) if row["unit"] != "1" else percent(value) for value in (row["opened"], row["closed"])
        )
        for row in found.to_dicts()
    ]
    named = found.with_columns(
        pl.Series("words", said, pl.String),
        quantity=pl.col("metric").replace(QUANTITIES),
        order=pl.col("metric").replace_strict({name: n for n, name in enumerate(QUANTITIES)}, default=len(QUANTITIES)),
    )
    told = ("model", "dataset", "rest") + (("hardware",) if named["hardware"].n_unique() > 1 else ())
    return _largest(_with_setup(named, told), size).drop("rest")


def _with_setup(found: pl.DataFrame, columns: tuple[str, ...]) -> pl.DataFrame:
    said = [_setup_words(*(str(row[name]) for name in columns)) for row in found.to_dicts()]
    return found.with_columns(pl.Series("setup", said, pl.String))


def _setup_words(model: str, dataset: str, rest: str, hardware: str = "") -> str:
    """A model, a text and a policy's parameters, as people say them."""
    parameters = json.loads(rest)
    cache = parameters.pop("cache_frac", None)
    words = [model, dataset] + ([f"cache {100 * cache:g} %"] if cache is not None else [])
    if parameters.get("scheme") == "amat":  # as the policy has it unless told otherwise
        parameters.pop("scheme")
    named = [parameters.pop(name, "") for name in ("precision", "pair", "router")]
    words += [{**CONFIGURATIONS, **ROUTERS}.get(name, name) for name in named if name]
    words += [f"{name.replace('_', ' ')} {value}" for name, value in parameters.items()]
    return ", ".join([*words, *filter(None, [hardware])])


def _largest(found: pl.DataFrame, size: int) -> pl.DataFrame:
    """The rows of the `size` setups with most rows, those first."""
    sized = found.with_columns(n_rows=pl.len().over("setup")).sort(
        ["n_rows", "setup"], descending=[True, False], maintain_order=True
    )
    kept = sized["setup"].unique(maintain_order=True).head(size)
    return sized.filter(pl.col("setup").is_in(kept.implode())).drop("n_rows")
