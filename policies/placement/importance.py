"""How important an expert is to a sequence, by what its prompt used, and the hot set that follows (CXL GPU-NDP section on
placement; specification 4.1).

    S = alpha * P / sum P + (1 - alpha) * W / sum W        sums over the experts of a layer

P counts the prompt's tokens that selected the expert, W sums the gate weights of those selections.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


def shares(values: NDArray[Any]) -> Floats:
    """(..., E) values as shares of their sum over the experts; zeros where they sum to zero."""
    wide = values.astype(np.float64)
    total = wide.sum(axis=-1, keepdims=True)
    return np.asarray(np.divide(wide, total, out=np.zeros_like(wide), where=total > 0.0))


def importance(counts: NDArray[Any], weights: NDArray[Any], alpha: float = 0.5) -> Floats:
    """S (..., E) from P and W of that shape: sums to 1 over the experts; a term whose sum is zero is all zero.

    Of a batch, give P and W summed over its sequences. Raises ValueError for alpha outside 0..1.
    """
    if not 0.0 <= alpha <= 1.0:
        raise ValueError(f"alpha {alpha} must lie in 0..1: the weight of counts against gate weights")
    return alpha * shares(counts) + (1.0 - alpha) * shares(weights)


def hot_set(scores: NDArray[Any], k: int) -> Flags:
    """(..., E) True for the k experts of highest score, ties to the lower index. Raises ValueError unless 0 <= k <= E."""
    n_experts = scores.shape[-1]
    if not 0 <= k <= n_experts:
        raise ValueError(f"{k} hot experts of {n_experts} per layer: give 0 to {n_experts}")
    hot = np.zeros(scores.shape, np.bool_)
    np.put_along_axis(hot, np.argsort(-scores, axis=-1, kind="stable")[..., :k], True, axis=-1)
    return hot
