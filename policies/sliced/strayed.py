"""How far a layer's output strays from the model's own where experts are replaced or computed low: the quality a replay can see.

Outputs of two experts are taken as unrelated and of one size, the error of a low-bit expert as noise of its own: squares add.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.matryoshka import MAT, approximate


@lru_cache
def low_error_frac(pair: MAT, is_glu: bool, scheme: str = "amat") -> float:
    """Squared error of a low-bit expert over its squared output: each of its matrices, three, or two without a gate, adds what
    the scheme makes of Gaussian weights."""
    weights = np.random.default_rng(0).standard_normal((2048, 32)).astype(np.float32)
    errors = approximate(weights, pair, scheme) - weights
    return (3 if is_glu else 2) * float(np.sum(errors**2, dtype=np.float64) / np.sum(weights**2, dtype=np.float64))


def strayed(
    gates: NDArray[np.float32],
    is_natural: NDArray[np.bool_],
    ids: NDArray[np.int32],
    is_low: NDArray[np.bool_],
    low_error: float,
) -> NDArray[np.float64]:
    """(n,): squared error of each row's output over its square. gates (n, E) before the top k; is_natural (n, E): the model's own
    experts; ids, is_low (n, k): those applied, and which of them at the low width; low_error: of such a one."""
    squares, at = gates.astype(np.float64) ** 2, ids.astype(np.int64)
    applied, own = np.take_along_axis(squares, at, axis=1), (squares * is_natural).sum(axis=1)
    stayed = (applied * np.take_along_axis(is_natural, at, axis=1)).sum(axis=1)
    return np.asarray((applied.sum(axis=1) + own - 2.0 * stayed + low_error * (applied * is_low).sum(axis=1)) / own)
