"""The Kelle page on what holds: errors against the paper's ratios, what gains rest on, derived checks, parts, all claims."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards import claims, theme
from tokentape.dashboards.engine import Ask, Drawn, in_words, some
from tokentape.dashboards.kelle.words import NAME, readings
from tokentape.dashboards.units import significant

EVERYWHERE = "; average over evaluated models and tasks"
# How a part is called, and where its power is counted.
CHIP = {
    "array": ("array", "array and special functions"),
    "special functions": ("special functions", "array and special functions"),
    "edram": ("eDRAM", "eDRAM"),
    "sram": ("SRAM", "SRAM"),
    "dram": ("DRAM", "DRAM"),
}
AREA, POWER = "area (mm2)", "power (W)"
ON_MODELS = ("Table 2", "Table 3", "Table 4", "Table 5", "Table 6")  # answers of models that are not run here


def ratios(ask: Ask) -> Drawn:
    found = some(ask("errors"))
    order = ["predicted", "Table 7", "Table 9 at batch 16", "calibrated", "all", "median error"]
    own = {"groups": [name for name in order if name in set(found["group"])], "knobs": ["calibrated", "nothing fitted"]}
    return Drawn({"errors": found}, facts=own | {"turned": ask("turned")})


def sensitivity(ask: Ask) -> Drawn:
    """Settings by the gain that they have in the reading that the page opens with."""
    found = some(ask("sensitivity"))
    own = found.filter(pl.col("reading") == next(iter(readings(ask)), "")).sort("energy")["setting"].to_list()
    names = [*own, *found.filter(~pl.col("setting").is_in(own))["setting"].unique().sort()]
    return Drawn({"sensitivity": found}, facts={"names": names})


def checks(ask: Ask) -> Drawn:
    return Drawn({"checks": _derived(ask("checks"))})


def area(ask: Ask) -> Drawn:
    return Drawn({"area": _area(ask("chip_parts"))})


def stated(ask: Ask) -> Drawn:
    is_ours = pl.col("role").is_in(list(theme.ROLES)) & ~pl.col("location").is_in(ON_MODELS)
    found = claims.rows(ask.connection, NAME, short=EVERYWHERE).filter(is_ours)
    answered, silent = some(found.drop_nulls("replay")), found.filter(pl.col("replay").is_null())
    told = answered.with_columns(reading="mode")
    held = [silent.with_columns(reading=pl.lit(name)) for name in told["reading"].unique(maintain_order=True)]
    return Drawn({"claims": told}, said=pl.concat([told, *held]))


def _derived(checks: pl.DataFrame) -> pl.DataFrame:
    """With words and the ratio to the paper's number, farthest first."""
    told = checks.with_columns(ratio=pl.col("value") / pl.col("published"))
    far = told.sort(pl.col("ratio").log().abs(), "name", descending=[True, False], nulls_last=True)
    words = [
        {"ours": _written(row["value"], row["unit"]), "theirs": _written(row["published"], row["unit"])} for row in far.to_dicts()
    ]
    return far.with_columns(
        pl.DataFrame(words, schema=dict.fromkeys(("ours", "theirs"), pl.String)), order=pl.int_range(pl.len())
    )


def _written(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{significant(value)} {'' if unit == '1' else unit}".strip() if abs(value) >= 0.01 else f"{value:.2g}"


def _area(chip: pl.DataFrame) -> pl.DataFrame:
    """A row per part and measure, by the reading whose knobs it has; of power, array and special functions are one part."""
    parts = in_words("part", CHIP)
    joint = pl.col("part").replace({name: words for name, (_, words) in CHIP.items()})
    each = [
        chip.select(reading="reading", measure=pl.lit(title), part=named, ours=name, theirs=f"{name}_paper")
        for name, title, named in (("area", AREA, parts), ("power", POWER, joint))
    ]
    total = [pl.when(pl.col(name).count() > 0).then(pl.sum(name)).alias(name) for name in ("ours", "theirs")]
    return pl.concat(each).group_by("reading", "measure", "part").agg(total).sort("reading", "measure", "part")
