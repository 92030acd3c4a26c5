"""Cache-Prior: resident experts get a bonus on their logits in proportion to the layer's usual spread of logits.

Source: arXiv 2412.00099; the formula as independent re-implementations write it (SliceMoE spec 4.4, an assumption).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.kernels import int32, kernel, uint64
from tokentape.policies.sliced.ranking import INFINITE, RULED_OUT, SELECT_SIGNATURE, Router, from_ordered, to_ordered, top_k


@kernel(inline="always")
def _spread(values):  # type: ignore[no-untyped-def]
    """max - min over the experts that the family does not rule out."""
    high, low = int32(RULED_OUT), int32(INFINITE)
    for e in range(uint64(values.shape[0])):
        number = to_ordered(values[e])
        high = max(high, number)
        low = min(low, number if number > int32(RULED_OUT) else int32(INFINITE))
    return from_ordered(high) - from_ordered(low) if high >= low else np.float32(0.0)


@kernel(SELECT_SIGNATURE)
def _boosted(values, gates, resident, strength, params, table, memory, scratch, keys, order, chosen):  # type: ignore[no-untyped-def]
    k, protect = chosen.shape[0], int(params[0])
    n = uint64(values.shape[0])
    memory[0] += _spread(values)
    memory[1] += 1.0
    bonus = np.float32(strength * memory[0] / memory[1])
    for e in range(n):
        scratch[e] = values[e] + bonus * np.float32(resident[e])
    top_k(values, protect, keys, order)
    for j in range(uint64(protect)):
        if order[j] >= 0:
            e = uint64(order[j])
            scratch[e] = values[e] + bonus
    top_k(scratch, k, keys, order)
    for j in range(uint64(k)):
        chosen[j] = order[j]


@dataclass(frozen=True)
class CachePrior(Router):
    """Top k by z + strength x D x m; m is 1 for a resident expert and for the model's own top `protect`, else 0.

    D: running mean, per layer, of max z - min z over the decoded tokens, the current one included. strength 0 is the stock
    router byte for byte. protect: 2 for many small experts, 1 for models of 8. The weights of the chosen experts stay those
    of the unmodified scores.
    """

    strength: float = 0.2
    protect: int = 2
    select = staticmethod(_boosted)

    def __post_init__(self) -> None:
        if not 0.0 <= self.strength <= 1.0 or self.protect < 0:
            raise ValueError(f"cache_prior: strength {self.strength} must lie in 0..1 and protect {self.protect} be 0 or more")

    def params(self) -> NDArray[np.float64]:
        return np.array([self.protect], np.float64)

    def table(self, n_layers: int, n_experts: int) -> NDArray[np.float32]:
        if self.protect > n_experts:
            raise ValueError(f"cache_prior: protect {self.protect} is more than the {n_experts} experts of a layer")
        return super().table(n_layers, n_experts)
