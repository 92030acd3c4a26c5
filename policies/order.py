"""A stable order of numbers in kernels: numba compiles numpy's for three seconds in every kernel that asks for it."""

import numpy as np

from tokentape.policies.kernels import F64, I64, kernel

RUN = 16  # numbers that are put in order one by one before runs are merged


@kernel(I64(F64))
def ascending(values):  # type: ignore[no-untyped-def]
    """Places of the values (n,) from the lowest to the highest, equal ones as they stand; none of them NaN."""
    n = values.shape[0]
    order, merged = np.arange(n), np.empty(n, np.int64)
    for first in range(0, n, RUN):
        for i in range(first + 1, min(first + RUN, n)):
            at, j = order[i], i
            while j > first and values[order[j - 1]] > values[at]:
                order[j] = order[j - 1]
                j -= 1
            order[j] = at
    width = RUN
    while width < n:
        for first in range(0, n, 2 * width):
            i, middle, end = first, min(first + width, n), min(first + 2 * width, n)
            j = middle
            for to in range(first, end):
                if j == end or (i < middle and values[order[i]] <= values[order[j]]):
                    merged[to] = order[i]
                    i += 1
                else:
                    merged[to] = order[j]
                    j += 1
        order, merged, width = merged, order, 2 * width
    return order
