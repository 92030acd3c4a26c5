"""Rows of elastic_points: Table 3 under every fit and hit law, and sweeps past it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from tokentape.flows.systems.elmoe3d.settings import CHANGES, Settings
from tokentape.hw.elmoe3d_constants import ROWS, ElasticConstants
from tokentape.replay.elmoe3d.cells import Cell, Setup
from tokentape.replay.elmoe3d.points import Point, as_points
from tokentape.replay.elmoe3d.timing import Outcome, evaluate

TABLE_SERIES, MEASURED = "table-3", "measured"


@dataclass(frozen=True)
class Job:
    """A point, what it belongs to, the fit it uses, and the paper's row where it is one."""

    series: str
    point: Point
    fit: ElasticConstants
    cell: Cell | None = None


def table_jobs(study: Settings, setup: Setup, table: Sequence[Cell], fits: Sequence[ElasticConstants]) -> list[Job]:
    """Every row of Table 3, fit by fit and law by law, in the table's order."""
    wanted = product(fits, study.hit_models)
    return [Job(TABLE_SERIES, setup.point(cell, fit, hit_model=law), fit, cell) for fit, law in wanted for cell in table]


def ran(setup: Setup, table: Sequence[Cell]) -> list[Cell]:
    """The rows of the table whose model and machine are the study's: of a copy, some or none."""
    return [cell for cell in table if cell.model in setup.shapes and cell.hb_gb in setup.machines]


def sweep_jobs(study: Settings, setup: Setup, table: Sequence[Cell], fit: ElasticConstants) -> Iterator[Job]:
    """Past the paper, at the headline's fit. Raises ValueError for a model whose acceptance the paper does not have."""
    for grid in study.grid:
        for gb in setup.machines if grid.on_all else (max(setup.machines),):
            yield from (
                Job(grid.series, _point(study, setup, table, fit, gb, fields), fit)
                for fields in grid.points(model=tuple(setup.shapes))
            )
    for cell in ran(setup, table):
        yield Job("accepted-form", setup.point(cell, fit, accepted_form="chain"), fit, cell)


def _point(study: Settings, setup: Setup, table: Sequence[Cell], fit: ElasticConstants, gb: int, fields: dict[str, Any]) -> Point:
    """Acceptance is the paper's at the nearest batch below, of the model that this one is like, unless it is given."""
    model, machine = fields.pop("model"), setup.machines[gb]
    like = next((one.like for one in study.models if one.name == model), "") or model
    where = (gb, like, fields["scheme"])
    known = {c.batch: c.alpha for c in table if (c.hb_gb, c.model, c.scheme) == where and c.batch <= max(fields["batch"], 1)}
    if not known:
        under = f"{like} under {fields['scheme']}"
        raise ValueError(f"study {study.name}: the paper has no acceptance of {under}; say `like` of {model}")
    for name in CHANGES.keys() & fields.keys():
        machine = CHANGES[name](machine, fields.pop(name))
    of = {"shape": setup.shapes[model], "machine": machine, "law": fit.law(like), "speculation": fit.speculation}
    return Point(**{**of, "alpha": known[max(known)], "drafter": setup.drafter, **fields})


def rows_of(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """Rows of elastic_points, in order."""
    return rows(jobs, evaluate(as_points([job.point for job in jobs])))


def rows(jobs: Sequence[Job], found: Outcome) -> list[dict[str, Any]]:
    """The same where the points were evaluated already."""
    named = {
        "accepted_len": found.accepted_len,
        "resident_bytes": found.mapping.resident_bytes,
        "resident_frac": found.mapping.share,
        "spill_bytes": found.mapping.spill_bytes,
        "cold_bytes": found.mapping.cold_bytes,
        "xpu_step_s": found.xpu_s,
        "ar_step_s": found.ar.seconds,
        "draft_step_s": found.draft.seconds,
        "verify_s": found.verify.seconds,
        "phi_ar": found.phi_ar,
        "phi_sd": found.phi_sd,
    }
    for name, of in (("ar", found.ar), ("draft", found.draft), ("verify", found.verify)):
        named |= {f"{name}_experts": of.experts, f"{name}_hit_frac": of.hit_frac}
        named |= {f"{name}_hb_bytes": of.hb_bytes, f"{name}_ext_bytes": of.ext_bytes}
    values = {name: array.tolist() for name, array in named.items()}
    is_sd = found.is_sd_better.tolist()
    return [
        {**_named(job), **{name: of[i] for name, of in values.items()}, "best_mode": "sd" if is_sd[i] else "ar"}
        for i, job in enumerate(jobs)
    ]


def _named(job: Job) -> dict[str, Any]:
    p, fit, cell = job.point, job.fit, job.cell
    is_measured = p.accepted_len is not None
    return {
        "series": job.series,
        "hardware": p.machine.name,
        "model_id": p.shape.name,
        "sd_scheme": p.scheme,
        "batch": int(p.batch),
        "context_tokens": int(p.context_tokens),
        "hb_bytes": p.machine.hb_bytes,
        "hb_bytes_per_s": p.machine.hb_bytes_per_s,
        "hit_model": p.hit_model,
        "level": fit.level,
        "fit": fit.rows or ROWS[0],
        "accepted_form": MEASURED if is_measured else p.accepted_form,
        "alpha": None if is_measured else p.alpha,
        "fidelity": "approximate" if is_measured else "input",
        "n_draft_steps": p.speculation.n_draft_steps,
        "published_ar": cell.phi_ar if cell else None,
        "published_sd": cell.phi_sd if cell else None,
        "role_ar": cell.role_ar if cell else None,
        "role_sd": cell.role_sd if cell else None,
        "is_withheld": cell is not None and not cell.is_open,
    }
