"""Points of elmoe3d_points: Table 3 under every fit and hit law, and sweeps past it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from tokentape.flows.systems.elmoe3d.settings import CHANGES, Settings, changed
from tokentape.hw.elmoe3d_constants import ELMoE3DConstants
from tokentape.replay.elmoe3d.points import Setup, points_of
from tokentape.replay.elmoe3d.rows import TABLE_SERIES


def table_points(study: Settings, table: pl.DataFrame, fits: Sequence[ELMoE3DConstants]) -> pl.DataFrame:
    """Every row of Table 3, fit by fit and law by law, in the table's order."""
    laws = pl.DataFrame({"hit_model": study.hit_models}).join(table, how="cross", maintain_order="left_right")
    return pl.concat(points_of(laws, fit, series=TABLE_SERIES) for fit in fits)


def ran(setup: Setup, table: pl.DataFrame) -> pl.DataFrame:
    """The rows of the table whose model and machine are the study's: of a copy, some or none."""
    machine = pl.col("hb_gb").cast(pl.String)
    return table.filter(pl.col("model").is_in(list(setup.models)) & machine.is_in(list(setup.machines)))


def sweep_points(study: Settings, setup: Setup, table: pl.DataFrame, fit: ELMoE3DConstants) -> tuple[pl.DataFrame, Setup]:
    """Past the paper, at the headline's fit, with the machines that they run on. Acceptance is the paper's at the nearest batch
    below, of the model that this one is like, unless it is given.

    Raises ValueError for a model whose acceptance the paper does not have.
    """
    known = table.select("hb_gb", "scheme", pl.col("batch").cast(pl.Int64), like="model", known="alpha").sort("batch")
    like, machines, made = {one.name: one.like or one.name for one in study.models}, dict(setup.machines), []
    for grid in study.grid:
        given = pl.DataFrame(list(grid.points(model=tuple(setup.models))), infer_schema_length=None)
        sizes = pl.DataFrame({"hb_gb": sorted(study.machines) if grid.on_all else [max(study.machines)]})
        points = sizes.join(given, how="cross").with_columns(like=pl.col("model").replace(like), series=pl.lit(grid.series))
        near = points.sort("batch").join_asof(known, on="batch", by=("hb_gb", "like", "scheme"), check_sortedness=False)
        for model, of, scheme in near.filter(pl.col("known").is_null()).select("model", "like", "scheme").rows():
            raise ValueError(f"study {study.name}: the paper has no acceptance of {of} under {scheme}; say `like` of {model}")
        changes = [name for name in CHANGES if name in given.columns]
        near = near.with_columns(machine=pl.concat_str("hb_gb", *changes, separator=" "))
        for key, gb, *values in near.select("machine", "hb_gb", *changes).unique().rows():
            machines[key] = setup.machines[str(gb)]
            for name, value in zip(changes, values, strict=True):
                machines[key] = changed(machines[key], name, value)
        alpha = pl.col("alpha" if "alpha" in given.columns else "known")
        made.append(points_of(near.with_columns(alpha=alpha).drop("known", *changes), fit, like="like"))
    made.append(points_of(ran(setup, table), fit, accepted_form="chain", series="accepted-form"))
    return pl.concat(made, how="diagonal_relaxed"), replace(setup, machines=machines)
