"""The validation page's figures: real engines; GPU operators on rows fitted, held out and of other devices; DRAM bandwidth."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.engine import Ask, Drawn, some
from tokentape.dashboards.units import highest
from tokentape.dashboards.validation.words import CUT, DATA, METRICS, OPERATORS, RESTS_ON, SPLITS

ROOM_WIDE, ROOM_NARROW = 1.42, 1.75  # axis length over the longest mark: room for words in wide and in narrow panels


def errors(ask: Ask) -> Drawn:
    found = some(ask.made(_errors))
    domain = [0, ROOM_WIDE * highest(found["p95"])]
    return Drawn({"errors": found}, facts=_facts(found) | {"domain": domain})


def points(ask: Ask) -> Drawn:
    """The menu is the operators that have points."""
    found = some(_worded(ask("points")))
    own = {
        **_facts(ask.made(_errors)),
        "shown": {"expr": "regimes_of[operator] || [' ']"},
        "regimes_of": {str(name): of["regime"].unique().sort().to_list() for (name,), of in found.group_by("operator")},
    }
    return Drawn(
        {"points": found}, facts=own, said=ask.made(_errors).join(found, on="operator", how="semi", maintain_order="left")
    )


def regimes(ask: Ask) -> Drawn:
    found = some(_worded(ask("regimes")))
    longest = dict(found.group_by("operator", maintain_order=True).agg(pl.max("p95")).iter_rows())
    own = {"longest": longest, "domain": [0, {"expr": f"{ROOM_NARROW} * (longest[operator] || 1)"}]}
    return Drawn({"regimes": found}, facts=_facts(ask.made(_errors)) | own)


def engines(ask: Ask) -> Drawn:
    """Ours first, then other simulators by name."""
    found = some(ask("engines")).with_columns(*_told(), cut=pl.min_horizontal("mape", pl.lit(CUT)))
    found = found.with_columns(what=pl.format("{}, {}: {}", "metric", "simulator", "word")).with_row_index("order")
    simulators = found["simulator"].unique(maintain_order=True).to_list()
    own = {"simulators": simulators, "colours": list(theme.colours(simulators).values())}
    return Drawn({"engines": found}, facts=own)


def stages(ask: Ask) -> Drawn:
    found = some(ask("stages")).with_columns(*_told(), split=pl.col("split").replace(RESTS_ON))
    return Drawn({"stages": found}, facts={"rests": list(RESTS_ON.values())})


def over_time(ask: Ask) -> Drawn:
    found = some(ask("over_time")).with_columns(pl.col("metric").replace(METRICS))
    found = found.with_columns(panel=pl.format("{}: {} ({})", "log", "metric", "unit"))
    wide = found.pivot("what", index=["log", "metric", "start"], values="value", maintain_order=True)
    return Drawn({"over_time": found}, facts={"panels": found["panel"].unique(maintain_order=True).to_list()}, said=wide)


def dram(ask: Ask) -> Drawn:
    found = some(ask("dram"))
    return Drawn({"dram": found}, facts={"width": 78 * found["preset"].n_unique()})


def _told() -> tuple[pl.Expr, pl.Expr]:
    """Metrics and known sets of measurements, as people say them."""
    return pl.col("metric").replace(METRICS), pl.col("data").replace(DATA)


def _errors(ask: Ask) -> pl.DataFrame:
    return _worded(ask("errors"))


def _facts(errors: pl.DataFrame) -> dict[str, object]:
    """Devices and splits in order; a row is as high as its bars, one per device."""
    setups = errors["setup"].unique().sort().to_list()
    splits = [word for word in SPLITS.values() if word in errors["split"]]
    return {
        "setups": setups,
        "splits": splits,
        "colours": list(theme.colours(setups).values()),
        "height": f"{19 * len(setups) + 12} row",
    }


def _worded(rows: pl.DataFrame) -> pl.DataFrame:
    """Operators and splits as people say them."""
    said = pl.col("operator").replace(OPERATORS).str.replace_all("_", " ", literal=True)
    worded = rows.with_columns(said, pl.col("split").replace(SPLITS))
    if "framework" in rows.columns:
        worded = worded.with_columns(measured_in=pl.format("{} {}", "framework", "version")).drop("framework", "version")
    return worded
