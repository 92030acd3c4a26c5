"""The systolic evictor, cycle by cycle: a column beside the array that finds the lowest score while the scores are summed.

Row i of the array emits the score of token i in cycle i; evictor row i adds it to the token's sum and passes (minimum, index)
down. The result is there `rows` + 1 cycles after the first row, hidden behind the array; software would read every sum again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass
class SystolicEvictor:
    """sums (rows,) f64: S_i of each row's token, advanced by every pass."""

    sums: NDArray[np.float64]

    def run(self, scores: NDArray[np.float64], eligible: NDArray[np.bool_]) -> tuple[int, int]:
        """(victim, cycles) of one pass. Row i hands (minimum, index) to row i + 1 in the next cycle; with a strict `<` the first
        minimum wins. victim -1: no row is eligible."""
        rows = self.sums.size
        lowest = np.full(rows + 1, np.inf)  # register between row i - 1 and row i
        index = np.full(rows + 1, -1, np.int64)
        for cycle in range(rows):
            row = cycle  # the one row that its operands reach in this cycle
            self.sums[row] += scores[row]
            wins = eligible[row] and (index[row] < 0 or self.sums[row] < lowest[row])
            lowest[row + 1] = self.sums[row] if wins else lowest[row]
            index[row + 1] = row if wins else index[row]
        return int(index[rows]), rows + 1  # one more cycle latches the result
