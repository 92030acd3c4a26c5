"""Rows of elmoe3d_points: Table 3 under every fit and hit law, and sweeps past it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from tokentape.flows.systems.elmoe3d.settings import Settings
from tokentape.hw.elmoe3d_constants import ROWS, ELMoE3DConstants
from tokentape.replay.elmoe3d.cells import Cell, Setup
from tokentape.replay.elmoe3d.points import Point, as_points
from tokentape.replay.elmoe3d.shape import Machine
from tokentape.replay.elmoe3d.timing import Outcome, evaluate

GIB = 2**30
TABLE_SERIES, MEASURED = "table-3", "measured"


@dataclass(frozen=True)
class Job:
    """A point, what it belongs to, the fit it uses, and the paper's row where it is one."""

    series: str
    point: Point
    fit: ELMoE3DConstants
    cell: Cell | None = None


def table_jobs(study: Settings, setup: Setup, table: Sequence[Cell], fits: Sequence[ELMoE3DConstants]) -> list[Job]:
    """Every row of Table 3, fit by fit and law by law, in the table's order."""
    wanted = product(fits, study.hit_models)
    return [Job(TABLE_SERIES, setup.point(cell, fit, hit_model=law), fit, cell) for fit, law in wanted for cell in table]


def ran(setup: Setup, table: Sequence[Cell]) -> list[Cell]:
    """The rows of the table whose model and machine are the study's: of a copy, some or none."""
    return [cell for cell in table if cell.model in setup.shapes and cell.hb_gb in setup.machines]


def sweep_jobs(study: Settings, setup: Setup, table: Sequence[Cell], fit: ELMoE3DConstants) -> Iterator[Job]:
    """Past the paper, at the headline's fit. HB's capacity and bandwidth, context: on the machine of the largest HB."""
    swept, largest = study.sweeps, max(setup.machines)
    alphas = {(c.hb_gb, c.model, c.scheme, c.batch): c.alpha for c in table}
    of_model = {model.name: model.like or model.name for model in study.models}

    def point(gb: int, model: str, scheme: str, batch: int, law: str, **changed: Any) -> Point:
        like = of_model[model]
        batches = [b for g, m, s, b in alphas if (g, m, s) == (gb, like, scheme) and b <= max(batch, 1)]
        if not batches:
            raise ValueError(f"study {study.name}: the paper has no acceptance of {like} under {scheme}; say `like` of {model}")
        known = max(batches)
        fields: dict[str, Any] = {
            "shape": setup.shapes[model],
            "machine": setup.machines[gb],
            "law": fit.law(like),
            "speculation": fit.speculation,
            "scheme": scheme,
            "batch": batch,
            "alpha": alphas[gb, like, scheme, known],
            "drafter": setup.drafter,
            "hit_model": law,
        }
        return Point(**{**fields, **changed})

    for gb, batch, model, scheme, law in product(setup.machines, swept.batches, setup.shapes, swept.schemes, swept.hit_models):
        yield Job("batch", point(gb, model, scheme, batch, law), fit)
    machine = setup.machines[largest]
    for batch, model, scheme, law in product(swept.few_batches, setup.shapes, swept.schemes, swept.hit_models):
        where = (largest, model, scheme, batch, law)
        for gib in swept.hb_gib:
            yield Job("hb-capacity", point(*where, machine=replace(machine, hb_bytes=gib * GIB)), fit)
        for factor in swept.hb_bandwidth_factors:
            yield Job("hb-bandwidth", point(*where, machine=_faster(machine, factor)), fit)
        for context in swept.contexts:
            yield Job("context", point(*where, context_tokens=context), fit)
        if law == swept.hit_models[0]:
            for alpha in swept.alphas:
                yield Job("alpha", point(*where, alpha=alpha), fit)
    for cell in ran(setup, table):
        yield Job("accepted-form", setup.point(cell, fit, accepted_form="chain"), fit, cell)


def _faster(machine: Machine, factor: float) -> Machine:
    return replace(machine, hb_bytes_per_s=factor * machine.hb_bytes_per_s)


def rows_of(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """Rows of elmoe3d_points, in order."""
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
