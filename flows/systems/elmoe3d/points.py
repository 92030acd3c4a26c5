"""Rows of elmoe3d_points: Table 3 under every fit and hit law, and sweeps past it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from tokentape.flows.systems.elmoe3d.settings import CHANGES, Settings
from tokentape.hw.elmoe3d_constants import ELMoE3DConstants
from tokentape.replay.elmoe3d.cells import Cell, Setup
from tokentape.replay.elmoe3d.points import Point
from tokentape.replay.elmoe3d.rows import TABLE_SERIES, Job


def table_jobs(study: Settings, setup: Setup, table: Sequence[Cell], fits: Sequence[ELMoE3DConstants]) -> list[Job]:
    """Every row of Table 3, fit by fit and law by law, in the table's order."""
    wanted = product(fits, study.hit_models)
    return [Job(TABLE_SERIES, setup.point(cell, fit, hit_model=law), fit, cell) for fit, law in wanted for cell in table]


def ran(setup: Setup, table: Sequence[Cell]) -> list[Cell]:
    """The rows of the table whose model and machine are the study's: of a copy, some or none."""
    return [cell for cell in table if cell.model in setup.shapes and cell.hb_gb in setup.machines]


def sweep_jobs(study: Settings, setup: Setup, table: Sequence[Cell], fit: ELMoE3DConstants) -> Iterator[Job]:
    """Past the paper, at the headline's fit. Raises ValueError for a model whose acceptance the paper does not have."""
    for grid in study.grid:
        for gb in setup.machines if grid.on_all else (max(setup.machines),):
            yield from (
                Job(grid.series, _point(study, setup, table, fit, gb, fields), fit)
                for fields in grid.points(model=tuple(setup.shapes))
            )
    for cell in ran(setup, table):
        yield Job("accepted-form", setup.point(cell, fit, accepted_form="chain"), fit, cell)


def _point(study: Settings, setup: Setup, table: Sequence[Cell], fit: ELMoE3DConstants, gb: int, fields: dict[str, Any]) -> Point:
    """Acceptance is the paper's at the nearest batch below, of the model that this one is like, unless it is given."""
    model, machine = fields.pop("model"), setup.machines[gb]
    like = next((one.like for one in study.models if one.name == model), "") or model
    where = (gb, like, fields["scheme"])
    known = {c.batch: c.alpha for c in table if (c.hb_gb, c.model, c.scheme) == where and c.batch <= max(fields["batch"], 1)}
    if not known:
        under = f"{like} under {fields['scheme']}"
        raise ValueError(f"study {study.name}: the paper has no acceptance of {under}; say `like` of {model}")
    for name in (name for name in CHANGES if name in fields):
        machine = CHANGES[name](machine, fields.pop(name))
    of = {"shape": setup.shapes[model], "machine": machine, "law": fit.law(like), "speculation": fit.speculation}
    return Point(**{**of, "alpha": known[max(known)], "drafter": setup.drafter, **fields})
