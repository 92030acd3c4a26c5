"""What a bit-width rule is: a compiled function that gives each of n experts 1 to 4 bits within a budget.

The rules know losses by expert and width, listed by falling importance. A budget counts bits beyond 1 per expert (CXL GPU-NDP
section on mixed precision; specification 4.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.kernels import array, float64, int8, int64, void

Bits = NDArray[np.int8]
Floats = NDArray[np.float64]
FEWEST, MOST = 1, 4
N_WIDTHS = MOST - FEWEST + 1

# split(losses, budget, bits)
#   losses  (n, 4) f64  loss of each expert at 1, 2, 3 and 4 bits, by falling importance
#   budget  i64         bits beyond 1 per expert, 0..3n          bits (n,) i8  out: 1 to 4 each
RULE_SIGNATURE = void(array(float64, 2), int64, array(int8, 1))


def budget_bits(n: int, mean_bits: float) -> int:
    """R: bits beyond 1 that n experts share at `mean_bits` on average, rounded down. Raises ValueError outside 1..4."""
    if not FEWEST <= mean_bits <= MOST:
        raise ValueError(f"mean bits {mean_bits} must lie in {FEWEST}..{MOST}")
    return int(np.floor(n * (mean_bits - FEWEST) + 1e-9))


def checked(losses: NDArray[np.generic]) -> Floats:
    """(..., 4) f64, contiguous and writable, as kernels take it.

    Raises ValueError for another width or a loss that is not finite, naming where it stands.
    """
    if losses.ndim < 2 or losses.shape[-1] != N_WIDTHS:
        raise ValueError(f"a loss table needs {N_WIDTHS} columns, losses at 1 to {MOST} bits; got shape {losses.shape}")
    table = np.require(losses, np.float64, ["C", "W"])
    if not np.isfinite(table).all():
        *expert, width = (int(i) for i in np.argwhere(~np.isfinite(table))[0])
        value = table[(*expert, width)]
        raise ValueError(f"loss of expert {expert} at {width + FEWEST} bits is {value}; every loss must be finite")
    return table


@dataclass(frozen=True)
class BitRule:
    """split: compiled function of RULE_SIGNATURE. is_bound: no rule that keeps to the budget loses less."""

    split: Any
    is_bound: bool = False

    def __call__(self, losses: NDArray[np.generic], mean_bits: float) -> Bits:
        """(n,) int8 from losses (n, 4) by falling importance. n may be 0. Raises ValueError as `checked` and `budget_bits`."""
        table = checked(losses)
        bits = np.ones(table.shape[0], np.int8)
        self.split(table, budget_bits(table.shape[0], mean_bits), bits)
        return bits


def chosen_losses(losses: NDArray[np.generic], bits: NDArray[np.integer]) -> Floats:
    """(..., n) losses (n, 4) at the chosen bits (..., n); experts of 0 bits, kept at full precision, lose nothing."""
    table = np.broadcast_to(losses, (*bits.shape, N_WIDTHS))
    chosen = np.take_along_axis(table, np.maximum(bits.astype(np.int64) - FEWEST, 0)[..., None], axis=-1)[..., 0]
    return np.where(bits > 0, chosen, 0.0)


def table_loss(losses: NDArray[np.generic], bits: NDArray[np.integer]) -> float:
    """Their sum."""
    return float(chosen_losses(losses, bits).sum())
