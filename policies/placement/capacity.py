"""How many experts the GPU holds: so many in every layer, or as many in all layers together, wherever they score highest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from tokentape.policies.placement.importance import Flags, hot_set


@dataclass(frozen=True)
class Capacity:
    """experts: per layer. across_layers: the layers share experts x L places, which go to the highest scores of all."""

    experts: int
    across_layers: bool = False

    def __post_init__(self) -> None:
        if self.experts < 0:
            raise ValueError(f"capacity {self.experts} must be 0 experts per layer or more")

    @classmethod
    def of_bytes(cls, layer_bytes: int, expert_bytes: int, n_experts: int, across_layers: bool = False) -> Capacity:
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
