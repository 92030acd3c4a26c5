"""Rows of elmoe3d_points: of points that were evaluated together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokentape.hw.elmoe3d_constants import ROWS, ELMoE3DConstants
from tokentape.replay.elmoe3d.cells import Cell
from tokentape.replay.elmoe3d.points import Point, as_points, cache_of
from tokentape.replay.elmoe3d.timing import PAPER, Outcome, evaluate

TABLE_SERIES, MEASURED = "table-3", "measured"


@dataclass(frozen=True)
class Job:
    """A point, what it belongs to, the fit it uses, and the paper's row where it is one."""

    series: str
    point: Point
    fit: ELMoE3DConstants
    cell: Cell | None = None


def rows_of(jobs: Sequence[Job], profile: str = PAPER) -> list[dict[str, Any]]:
    """Rows of elmoe3d_points, in order."""
    return rows(jobs, evaluate(as_points([job.point for job in jobs]), profile))


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
    cache = cache_of(p.machine)
    is_measured = p.accepted_len is not None
    return {
        "series": job.series,
        "hardware": p.machine.name,
        "model_id": p.model,
        "sd_scheme": p.scheme,
        "batch": int(p.batch),
        "context_tokens": int(p.context_tokens),
        "hb_bytes": cache.capacity_bytes.value,
        "hb_bytes_per_s": cache.peak_bytes_per_s.value * cache.efficiency_frac.value,
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
