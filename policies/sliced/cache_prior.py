"""Cache-Prior: resident experts get a bonus on their logits in proportion to the layer's usual spread of logits.

Source: arXiv 2412.00099; the formula as independent re-implementations write it (SliceMoE spec 4.4, an assumption).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.bounds import Count, Share
from tokentape.policies.kernels import int32, kernel, uint64
from tokentape.policies.sliced import ranking as rk


@kernel(inline="always")
def _spread(values):  # type: ignore[no-untyped-def]
    """max - min over the experts that the family does not rule out."""
    high, low = int32(rk.RULED_OUT), int32(rk.INFINITE)
    for e in range(uint64(values.shape[0])):
        number = rk.to_ordered(values[e])
        high = max(high, number)
        low = min(low, number if number > int32(rk.RULED_OUT) else int32(rk.INFINITE))
    return rk.from_ordered(high) - rk.from_ordered(low) if high >= low else np.float32(0.0)


@dataclass(frozen=True)
class CachePrior(rk.Router):
    """Top k by z + strength x D x m; m is 1 for a resident expert and for the model's own top `protect`, else 0.

    D: running mean, per layer, of max z - min z over the decoded tokens, the current one included. strength 0 is the stock
    router byte for byte. protect: 2 for many small experts, 1 for models of 8. The weights of the chosen experts stay those
    of the unmodified scores.
    """

    strength: Share = 0.2
    protect: Count = 2

    @staticmethod
    @kernel(rk.CHOOSE_SIGNATURE, allocates=False)
    def choose(layer, values, gates, natural, resident, phase, params, work, ids):  # type: ignore[no-untyped-def]
        n, k, keys, mean = uint64(values.shape[1]), uint64(ids.shape[1]), work[0], uint64(2 + 2 * layer)
        for i in range(uint64(values.shape[0])):
            row = values[i]
            params[mean] += _spread(row)
            params[mean + uint64(1)] += 1.0
            bonus = np.float32(params[0] * params[mean] / params[mean + uint64(1)])
            for e in range(n):
                keys[e] = rk.key_of(row[e] + bonus * np.float32(resident[e]), e)
            for j in range(min(uint64(int(params[1])), k)):
                if natural[i, j] >= 0:
                    e = uint64(natural[i, j])
                    keys[e] = rk.key_of(row[e] + bonus, e)
            rk.take(ids.shape[1], keys, ids[i])

    @property
    def n_natural(self) -> int:  # type: ignore[override]
        return self.protect

    def params(self, n_layers: int, n_experts: int) -> NDArray[np.float64]:
        """Behind the two: the sum of a layer's spreads, and of how many tokens."""
        if self.protect > n_experts:
            raise ValueError(f"cache_prior: protect {self.protect} is more than the {n_experts} experts of a layer")
        return np.append((self.strength, self.protect), np.zeros(2 * n_layers))
