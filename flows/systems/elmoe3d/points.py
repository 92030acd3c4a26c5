"""Rows of elmoe3d_points: Table 3 under every fit and hit law, and sweeps past it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import Any

from tokentape.flows.systems.elmoe3d.settings import CHANGES, Settings, changed
from tokentape.hw.elmoe3d_constants import ELMoE3DConstants
from tokentape.hw.spec import HardwareSpec
from tokentape.replay.elmoe3d.cells import Cell, Setup
from tokentape.replay.elmoe3d.points import Point
from tokentape.replay.elmoe3d.rows import TABLE_SERIES, Job


def table_jobs(study: Settings, setup: Setup, table: Sequence[Cell], fits: Sequence[ELMoE3DConstants]) -> list[Job]:
    """Every row of Table 3, fit by fit and law by law, in the table's order."""
    wanted = product(fits, study.hit_models)
    return [Job(TABLE_SERIES, setup.point(cell, fit, hit_model=law), fit, cell) for fit, law in wanted for cell in table]


def ran(setup: Setup, table: Sequence[Cell]) -> list[Cell]:
    """The rows of the table whose model and machine are the study's: of a copy, some or none."""
    return [cell for cell in table if cell.model in setup.models and cell.hb_gb in setup.machines]


def sweep_jobs(study: Settings, setup: Setup, table: Sequence[Cell], fit: ELMoE3DConstants) -> Iterator[Job]:
    """Past the paper, at the headline's fit. Raises ValueError for a model whose acceptance the paper does not have."""
    point = _Sweeps(study, setup, table, fit).point
    for grid in study.grid:
        for gb in setup.machines if grid.on_all else (max(setup.machines),):
            yield from (Job(grid.series, point(gb, fields), fit) for fields in grid.points(model=tuple(setup.models)))
    for cell in ran(setup, table):
        yield Job("accepted-form", setup.point(cell, fit, accepted_form="chain"), fit, cell)


class _Sweeps:
    """Points of the grids: acceptance is the paper's at the nearest batch below, of the model that this one is like, unless it is
    given."""

    def __init__(self, study: Settings, setup: Setup, table: Sequence[Cell], fit: ELMoE3DConstants) -> None:
        self.study, self.setup, self.fit = study, setup, fit
        self.like = {one.name: one.like or one.name for one in study.models}
        self.alphas: dict[tuple[int, str, str], dict[int, float]] = {}
        for cell in table:
            self.alphas.setdefault((cell.hb_gb, cell.model, cell.scheme), {})[cell.batch] = cell.alpha
        self.machine = lru_cache(maxsize=None)(self._machine)

    def point(self, gb: int, fields: dict[str, Any]) -> Point:
        model = fields.pop("model")
        like, (geometry, expert_format) = self.like[model], self.setup.models[model]
        known = self.alphas.get((gb, like, fields["scheme"]), {})
        batch = max((batch for batch in known if batch <= max(fields["batch"], 1)), default=None)
        if batch is None:
            under = f"{like} under {fields['scheme']}"
            raise ValueError(f"study {self.study.name}: the paper has no acceptance of {under}; say `like` of {model}")
        changes = tuple((name, fields.pop(name)) for name in CHANGES if name in fields)
        of = {"model": model, "geometry": geometry, "expert_format": expert_format, "machine": self.machine(gb, changes)}
        of |= {"law": self.fit.law(like), "speculation": self.fit.speculation, "drafter": self.setup.drafter}
        return Point(**{**of, "alpha": known[batch], **fields})

    def _machine(self, gb: int, changes: tuple[tuple[str, float], ...]) -> HardwareSpec:
        machine = self.setup.machines[gb]
        for name, value in changes:
            machine = changed(machine, name, value)
        return machine
