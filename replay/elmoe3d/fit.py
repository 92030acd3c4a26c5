"""Fits the constants of ELMoE-3D's model to Table 3 (the paper gives none): by root finding per model, then least squares.

Of a model, one cell each: beta from Elastic-SD at batch 1, the head's size from EAGLE3 at batch 1, and at level L1 the exponent
from a cell at batch 16. At batch 1 the popularity plays no part, so one turn in this order is enough. What a round costs
(K, a, c, w) is fitted on Phi_SD, relative errors squared, at a fixed number of draft steps. Pure: the cells are passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tokentape.hw import profile as profiles
from tokentape.hw.coverage import STEEPEST
from tokentape.hw.elmoe3d_constants import LEVELS, ROWS, ELMoE3DConstants, ModelLaw, Speculation
from tokentape.hw.fit_files import Fit, solver
from tokentape.hw.work import Rows
from tokentape.replay.elmoe3d.cells import CALIBRATE, Cell, Setup
from tokentape.replay.elmoe3d.mapping import map_bytes
from tokentape.replay.elmoe3d.points import EAGLE, ELASTIC, as_points, cache_of
from tokentape.replay.elmoe3d.runs import s_per_byte
from tokentape.replay.elmoe3d.timing import PAPER, evaluate, ready

Floats = NDArray[np.float64]

START = Speculation(verify_tokens=6.0, draft_tokens=5.0, growth=0.8, fade=0.4)
BOUNDS = {"verify_tokens": (1.0, 64.0), "growth": (0.1, 1.0), "fade": (0.01, 2.0), "draft_tokens": (1.0, 64.0)}
LEAST_BETA, HALVINGS = 1e-3, 60


def calibrate(
    cells: Sequence[Cell], setup: Setup, level: str = "L1", rows: str = ROWS[0], n_draft_steps: int = 8
) -> Fit[ELMoE3DConstants]:
    """The constants. rows: `calibrate` fits speculation on the cells whose role_sd says so, `all-open` on every open one.

    Deterministic; a second. Raises ValueError for an unknown level or rows, and where a model lacks a calibration cell or no
    constant reproduces it; ImportError without scipy.
    """
    if level not in LEVELS or rows not in ROWS:
        raise ValueError(f"level {level!r} with rows {rows!r} is unknown; choose of {', '.join(LEVELS)} and {', '.join(ROWS)}")
    laws, of_laws = {}, []
    for model in dict.fromkeys(cell.model for cell in cells):
        mine = [cell for cell in cells if cell.model == model and cell.role_ar == CALIBRATE]
        laws[model], used = fit_law(mine, setup, level, model)
        of_laws += used
    chosen = [cell for cell in cells if cell.is_open and (rows != ROWS[0] or cell.role_sd == CALIBRATE)]
    start = replace(START, n_draft_steps=n_draft_steps)
    speculation, loss = fit_speculation(chosen, setup, laws, start)
    fitted_on = tuple(sorted({cell.ar_claim for cell in of_laws} | {cell.sd_claim for cell in chosen}))
    return Fit(ELMoE3DConstants(level, rows, speculation, laws), fitted_on, loss)


def fit_law(cells: Sequence[Cell], setup: Setup, level: str, model: str) -> tuple[ModelLaw, list[Cell]]:
    """A model's law from its calibration cells of Phi_AR, and the cells that were used."""
    by_scheme = {cell.scheme: cell for cell in cells if cell.phi_ar is not None}
    others = [cell for scheme, cell in by_scheme.items() if scheme not in (ELASTIC, EAGLE)]
    if not {ELASTIC, EAGLE} <= set(by_scheme) or (level == LEVELS[1] and len(others) != 1):
        raise ValueError(f"{model}: needs open cells to calibrate on, of {ELASTIC}, {EAGLE} and, at {LEVELS[1]}, one more scheme")

    def error(cell: Cell, law: ModelLaw) -> float:
        fit = ELMoE3DConstants(level, "", START, {model: law})
        found = evaluate(as_points([setup.point(cell, fit)]))
        assert cell.phi_ar is not None
        return float(found.phi_ar[0]) - cell.phi_ar

    room = cache_of(setup.machines[by_scheme[EAGLE].hb_gb]).capacity_bytes.value
    beta = _root(lambda b: error(by_scheme[ELASTIC], ModelLaw(beta=b, exponent=1.0)), *_betas(by_scheme[ELASTIC], setup), "beta")
    tied = ModelLaw(beta=beta, exponent=1.0 - beta)
    head = _root(lambda e: error(by_scheme[EAGLE], replace(tied, head_bytes=e)), 1.0, room, f"{model}: head_bytes")
    law = replace(tied, head_bytes=head)
    used = [by_scheme[ELASTIC], by_scheme[EAGLE]]
    if level == LEVELS[1]:
        (cell,) = others
        law = replace(law, exponent=_root(lambda s: error(cell, replace(law, exponent=s)), 0.0, STEEPEST / 4, "exponent"))
        used.append(cell)
    return law, used


def _betas(cell: Cell, setup: Setup) -> tuple[float, float]:
    """Where Phi_AR falls with beta: below the first one HB would be the slower tier."""
    law = ModelLaw(beta=1.0, exponent=0.0)
    point = setup.point(cell, ELMoE3DConstants("", "", START, {cell.model: law}))
    share, profile = map_bytes(as_points([point])).share[0], profiles.load(PAPER)
    hb, ext = (s_per_byte(point.machine, Rows(kind="expert", tier=tier), profile) for tier in ("expert_cache", "expert_home"))
    both_busy = ext / (hb + ext)
    return max(LEAST_BETA, float(np.log(both_busy) / np.log(share))), 1.0


def _root(error: Callable[[float], float], low: float, high: float, name: str) -> float:
    """By bisection. Raises ValueError where the error has one sign at both ends."""
    at_low, at_high = error(low), error(high)
    if at_low * at_high > 0.0:
        raise ValueError(f"{name}: no value from {low:g} to {high:g} reproduces the cell it is read off")
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if error(middle) * at_low > 0.0 else (low, middle)
    return (low + high) / 2.0


def fit_speculation(
    cells: Sequence[Cell], setup: Setup, laws: dict[str, ModelLaw], start: Speculation = START
) -> tuple[Speculation, float]:
    """K, a, c and w by least squares of relative errors of Phi_SD, and the mean square that is left. Needs scipy."""
    least_squares = solver()
    if len(cells) < len(BOUNDS):
        raise ValueError(f"{len(cells)} cells cannot fix {len(BOUNDS)} constants of speculation")
    fit = ELMoE3DConstants("", "", start, laws)
    published = np.array([cell.phi_sd for cell in cells], np.float64)
    points = as_points([setup.point(cell, fit) for cell in cells] * (1 + len(BOUNDS)))
    at_once = ready(points, profiles.load(PAPER))
    low, high = np.array(list(BOUNDS.values())).T

    @lru_cache(maxsize=2)
    def tried(of: bytes) -> tuple[Floats, Floats]:
        """Errors, and their slopes by differences to one side: in one evaluation."""
        values = np.frombuffer(of)
        step = np.sqrt(np.finfo(float).eps) * np.maximum(1.0, np.abs(values))
        step = np.where(values + step > high, -step, step)
        beside = values[:, None] + np.hstack([np.zeros((values.size, 1)), np.diag(step)])
        told = dict(zip(BOUNDS, np.repeat(beside, published.size, axis=1), strict=True))
        errors = evaluate(replace(points, **told), on=at_once).phi_sd.reshape(-1, published.size) / published - 1.0
        return errors[0], (errors[1:] - errors[0]).T / step

    begin = [getattr(start, name) for name in BOUNDS]
    found = least_squares(
        lambda x: tried(x.tobytes())[0],
        begin,
        lambda x: tried(x.tobytes())[1],
        bounds=(low, high),
        x_scale="jac",
        xtol=1e-12,
    )
    values = {name: float(value) for name, value in zip(BOUNDS, found.x, strict=True)}
    return replace(start, **values), float((found.fun**2).mean())  # type: ignore[arg-type]
