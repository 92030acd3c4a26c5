"""Which of two systems is better, and where fitted knobs say the opposite of the model with nothing fitted."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import numpy as np

from tokentape.replay.kelle.ratios import ENERGY, SPEED, Steps
from tokentape.replay.kelle.work import Floats, Work

TIE = 1e-9  # of a ratio's logarithm: equal but for rounding
Cell = tuple[str, Work]


def reversals(plain: Steps, fitted: Steps, cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Pairs of systems, in time and in energy, of which `better` beats `worse` in some `cells` with the fitted knobs and loses to
    it without. A cell where one of the two does not fit is left out. frac: of the others; where: in words, with how far apart the
    two are in the clearest cell, by the reading that separates them less."""
    costs = {system: np.stack([_costs(steps, system, cells) for steps in (plain, fitted)]) for system in plain.systems}
    found = []
    for i, metric in enumerate((SPEED, ENERGY)):
        for better, worse in permutations(costs, 2):
            # (cells,) ln of how much `better` wins by: without the fit it must lose, with it win.
            without, with_fit = np.log(costs[worse][:, i] / costs[better][:, i])
            least = np.minimum(-without, with_fit)
            turned, n_cells = [cells[j] for j in np.flatnonzero(least > TIE).tolist()], int((~np.isnan(least)).sum())
            if turned:
                batches, lengths = (_span([getattr(work, name) for _, work in turned]) for name in ("batch", "n_tokens"))
                most = 100 * float(np.expm1(np.nanmax(least)))
                where = f"{len(turned)} of {n_cells} cells, at most by {most:.2g} %: batch {batches}, {lengths} tokens"
                pair = {"metric": metric, "better": better, "worse": worse, "cells": turned}
                found.append({**pair, "frac": len(turned) / n_cells, "where": where})
    return found


def _span(values: list[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


def _costs(steps: Steps, system: str, cells: Sequence[Cell]) -> Floats:
    """(2, cells) seconds and joules of a step; NaN where it does not fit."""
    steps.make((model, system, work) for model, work in cells)
    made = [steps.step(model, system, work) for model, work in cells]
    return np.array([(step.seconds, step.energy_j) if step.is_feasible else (np.nan, np.nan) for step in made]).T
