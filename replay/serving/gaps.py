"""Times between tokens without storing them: how many were how long, and the longest of a request's.

A gap is the duration of an iteration, had by every decode in it. Pooled gaps are counted in bins of the durations' leading bits,
2^-12 of them wide at most, so percentiles are within 0.025 %. A request decodes in consecutive iterations: its longest gap is a
maximum over a range, read from a stack of falling durations.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tokentape.policies.kernels import F64, I64, float64, int64, kernel, void

_SHIFT = 40  # of a double's 52 bits of mantissa, 12 are kept
_BASE = (1023 - 30) << 12  # 2^-30 s
N_BINS = 48 << 12  # up to 2^18 s

# Entries of `sums`.
GAP_SUM_S, GAP_SQUARES = range(2)


@kernel(void(float64, int64, I64, F64, F64), allocates=False)
def add_gap(seconds, times, histogram, sums, scratch):  # type: ignore[no-untyped-def]
    """Counts a gap so many times. sums: (2,) of gaps and of their squares. scratch: (1,)."""
    scratch[0] = seconds
    leading = (scratch.view(np.int64)[0] >> _SHIFT) - _BASE
    histogram[min(max(leading, 0), N_BINS - 1)] += times
    sums[GAP_SUM_S] += times * seconds
    sums[GAP_SQUARES] += times * seconds * seconds


@kernel(float64(I64, F64, int64, int64), allocates=False)
def longest_since(stack_at, stack_s, stacked, first):  # type: ignore[no-untyped-def]
    """Longest duration of the iterations from `first` on."""
    low, high = 0, stacked - 1
    while low < high:
        middle = (low + high) // 2
        if stack_at[middle] < first:
            low = middle + 1
        else:
            high = middle
    return stack_s[low]


@kernel(int64(I64, F64, int64, int64), allocates=False)
def drop_before(stack_at, stack_s, stacked, first):  # type: ignore[no-untyped-def]
    """Drops the stack's entries of iterations before `first`; returns how many stay."""
    kept = 0
    for i in range(stacked):
        if stack_at[i] >= first:
            stack_at[kept], stack_s[kept] = stack_at[i], stack_s[i]
            kept += 1
    return kept


def percentiles_s(histogram: NDArray[np.int64], q: ArrayLike) -> NDArray[np.float64]:
    """Percentiles (0 to 100, any shape) of the counted gaps, linear within a bin; NaN where there are none."""
    ranked = np.asarray(q, np.float64) / 100.0
    filled = np.flatnonzero(histogram)
    if not filled.size:
        return np.full(ranked.shape, np.nan)
    counts = histogram[filled]
    upto = np.cumsum(counts)
    rank = ranked * float(upto[-1] - 1)
    i = np.searchsorted(upto, rank, side="right")
    inside = np.minimum((rank + 0.5 - (upto[i] - counts[i])) / counts[i], 1.0)
    low_s, high_s = (((_BASE + filled[i] + end) << _SHIFT).view(np.float64) for end in (0, 1))
    return np.asarray(low_s + (high_s - low_s) * inside)
