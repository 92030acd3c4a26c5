"""Which of two systems is better, and where fitted knobs say the opposite of the model with nothing fitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from tokentape.replay.kelle.ratios import ENERGY, SPEED, Steps
from tokentape.replay.kelle.work import Floats, Work

TIE = 1e-9  # of a ratio's logarithm: equal but for rounding
Cell = tuple[str, Work]


@dataclass(frozen=True)
class Reversal:
    """`better` beats `worse` in these cells with the fitted knobs and loses to it without, of n_cells in which both fit.

    most_frac: how far apart the two are in the clearest cell, by the reading that separates them less.
    """

    metric: str
    better: str
    worse: str
    cells: tuple[Cell, ...]
    n_cells: int
    most_frac: float

    @property
    def where(self) -> str:
        """The cells, summed up."""
        batches, lengths = ([getattr(work, name) for _, work in self.cells] for name in ("batch", "n_tokens"))
        within = f"batch {_span(batches)}, {_span(lengths)} tokens"
        return f"{len(self.cells)} of {self.n_cells} cells, at most by {100 * self.most_frac:.2g} %: {within}"

    def __str__(self) -> str:
        return f"{self.metric}: {self.better} over {self.worse} in {self.where}"


def _span(values: list[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


def reversals(plain: Steps, fitted: Steps, cells: Sequence[Cell]) -> list[Reversal]:
    """Of every pair of systems in time and energy; a cell where one of the two does not fit is left out."""
    costs = {system: (_costs(plain, system, cells), _costs(fitted, system, cells)) for system in plain.systems}
    found = []
    for metric, column in ((SPEED, 0), (ENERGY, 1)):
        for better, worse in permutations(costs, 2):
            # (cells,) ln of how much `better` wins by: without the fit it must lose, with it win.
            without, with_fit = (np.log(costs[worse][i][column] / costs[better][i][column]) for i in (0, 1))
            least = np.minimum(-without, with_fit)
            turned = np.flatnonzero(least > TIE).tolist()
            if turned:
                at = tuple(cells[i] for i in turned)
                n_cells = int((~np.isnan(least)).sum())
                found.append(Reversal(metric, better, worse, at, n_cells, float(np.expm1(least[turned].max()))))
    return found


def _costs(steps: Steps, system: str, cells: Sequence[Cell]) -> tuple[Floats, Floats]:
    """(cells,) seconds and joules of a step; NaN where it does not fit."""
    steps.make((model, system, work) for model, work in cells)
    made = [steps.step(model, system, work) for model, work in cells]
    fits = np.array([step.is_feasible for step in made])
    seconds, joules = (np.array([getattr(step, name) for step in made]) for name in ("seconds", "energy_j"))
    return np.where(fits, seconds, np.nan), np.where(fits, joules, np.nan)
