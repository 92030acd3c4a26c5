"""How important an expert is to a sequence, by what its prompt used, and the hot set that follows (CXL GPU-NDP section on
placement; specification 4.1): so many experts in every layer, or as many in all layers together, wherever they score highest.

    S = alpha * P / sum P + (1 - alpha) * W / sum W        sums over the experts of a layer

P counts the prompt's tokens that selected the expert, W sums the gate weights of those selections.
"""

from dataclasses import dataclass
from typing import Any, Self

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


@dataclass(frozen=True)
class Capacity:
    """experts: per layer. across_layers: the layers share experts x L places, which go to the highest scores of all."""

    experts: int
    across_layers: bool = False

    def __post_init__(self) -> None:
        if self.experts < 0:
            raise ValueError(f"capacity {self.experts} must be 0 experts per layer or more")

    @classmethod
    def of_bytes(cls, layer_bytes: int, expert_bytes: int, n_experts: int, across_layers: bool = False) -> Self:
        """Whole experts in so many bytes per layer, all of a layer at most."""
        if expert_bytes <= 0:
            raise ValueError(f"expert_bytes {expert_bytes} must be above 0")
        return cls(min(n_experts, layer_bytes // expert_bytes), across_layers)

    def hot(self, scores: NDArray[Any]) -> Flags:
        """(..., L, E) True for the experts on the GPU. scores: that shape, comparable between layers where they share places.

        Ties to the lower layer, then the lower index. Raises ValueError for more places than experts.
        """
        if not self.across_layers:
            return hot_set(scores, self.experts)
        n_layers, n_experts = scores.shape[-2:]
        if self.experts > n_experts:
            raise ValueError(f"{self.experts} hot experts of {n_experts} per layer: give 0 to {n_experts}")
        flat = scores.reshape(*scores.shape[:-2], n_layers * n_experts)
        return hot_set(flat, self.experts * n_layers).reshape(scores.shape)
