"""GPTQ: a matrix rounded column by column, each column's error passed on to the columns that are still open.

Frantar et al., GPTQ (ICLR 2023), as CXL-NDP section 4.4 sets it: H = 2 X'X, damping 0.01 of its mean diagonal, inputs that are
never active get diagonal 1 and weight 0, columns in their natural order, levels those of round to nearest (policies/replicas.py).

Behind another rounded matrix the inputs are no longer those that the weights were trained for. `refitted` makes that good before
rounding: the idea of asymmetric calibration (GPTAQ, Li et al., 2025, arXiv:2504.02692), here in one step for the whole matrix.
"""

import torch

from tokentape.policies.replicas import Levels

DAMPING = 0.01
BLOCK = 128  # columns whose errors reach the rest of the matrix in one product


class Gptq:
    """Rounds matrices that see the inputs x (n, inputs); one factorisation serves every matrix and width."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x.float()
        h = 2 * self.x.T @ self.x
        diagonal = h.diagonal()
        self.dead = diagonal == 0
        diagonal[self.dead] = 1.0
        diagonal += DAMPING * diagonal.mean()
        self.lower = torch.linalg.cholesky(h)  # h = lower lower'
        inverse = torch.cholesky_inverse(self.lower)
        self.upper = torch.linalg.cholesky(inverse, upper=True)  # inverse = upper' upper

    def __call__(self, w: torch.Tensor, levels: Levels) -> torch.Tensor:
        """The rounded matrix, f32. w: (rows, inputs); levels: its own."""
        rest = w.float().clone()
        rest[:, self.dead] = 0.0
        rounded = torch.empty_like(rest)
        n = rest.shape[1]
        for start in range(0, n, BLOCK):
            stop = min(start + BLOCK, n)
            errors = torch.empty_like(rest[:, start:stop])
            for j in range(start, stop):
                column = rest[:, j : j + 1]
                rounded[:, j : j + 1] = levels.nearest(column, j)
                error = (column - rounded[:, j : j + 1]) / self.upper[j, j]
                rest[:, j:stop] -= error * self.upper[j, j:stop]
                errors[:, j - start : j - start + 1] = error
            rest[:, stop:] -= errors @ self.upper[start:stop, stop:]
        return rounded

    def refitted(self, w: torch.Tensor, meant: torch.Tensor) -> torch.Tensor:
        """What makes of the inputs seen, by damped least squares, what w makes of `meant` (n, inputs): (rows, inputs) f32.

        Damping draws it to w, which it stays where the inputs seen say nothing.
        """
        missing = 2 * self.x.T @ ((meant.float() - self.x) @ w.float().T)
        return w.float() + torch.cholesky_solve(missing, self.lower).T
