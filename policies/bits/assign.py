"""Bits of the experts that are not on the GPU, for many groups at once: each layer its own budget, or one for all layers.

Within a budget, experts are ranked by importance, ties to the lower layer, then the lower index. Importance sums to 1 in every
layer, so a budget across layers ranks shares of their layers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.bits.rule import RULE_SIGNATURE, BitRule, Bits, Floats, budget_bits, checked
from tokentape.policies.kernels import array, boolean, float64, function, int8, kernel, void
from tokentape.policies.order import ascending

_F64_3D, _I8_3D = array(float64, 3), array(int8, 3)
_BOOL_3D = array(boolean, 3)


def assign(
    rule: BitRule,
    losses: NDArray[np.generic],
    scores: Floats,
    hot: NDArray[np.bool_],
    mean_bits: float,
    across_layers: bool = False,
    share: Floats | None = None,
) -> Bits:
    """(G, L, E) int8: 1 to 4 bits of the cold experts of each group, 0 of hot ones.

    losses: (L, E, 4) at 1 to 4 bits. scores: (G, L, E) importance. hot: (G, L, E). mean_bits: average over the cold experts of a
    budget. share: (G, L, E) weights of the losses (`prefill_share`: shares of P); None: experts count equally, as in the paper.
    Raises ValueError for mean_bits outside 1..4 and losses that are not finite.
    """
    table = checked(losses)
    budget_bits(0, mean_bits)
    if table.ndim != 3 or scores.shape != hot.shape or scores.shape[1:] != table.shape[:2]:
        raise ValueError(f"losses {table.shape} are (L, E, 4); scores {scores.shape} and hot {hot.shape} must be (G, L, E)")
    bits = np.zeros(scores.shape, np.int8)
    weights = np.zeros((0, 0, 0)) if share is None else share
    ranked, weights = (np.require(array, np.float64, ["C", "W"]) for array in (scores, weights))
    _assign(rule.split, table, ranked, np.require(hot, np.bool_, ["C", "W"]), weights, float(mean_bits), across_layers, bits)
    return bits


@kernel(
    void(function(RULE_SIGNATURE), _F64_3D, _F64_3D, _BOOL_3D, _F64_3D, float64, boolean, _I8_3D),
)
def _assign(split, losses, scores, hot, share, mean_bits, across_layers, bits):  # type: ignore[no-untyped-def]
    n_groups, n_layers, n_experts = scores.shape
    width = n_layers if across_layers else 1  # layers that share a budget
    layer, expert = np.empty(width * n_experts, np.int64), np.empty(width * n_experts, np.int64)
    rank = np.empty(width * n_experts)
    for g in range(n_groups):
        for first in range(0, n_layers, width):
            n = 0
            for at in range(first, first + width):
                for e in range(n_experts):
                    if not hot[g, at, e]:
                        layer[n], expert[n], rank[n] = at, e, -scores[g, at, e]
                        n += 1
            order = ascending(rank[:n])  # ties stay in order of layer and index
            table, chosen = np.empty((n, 4)), np.ones(n, np.int8)
            for i in range(n):
                at, e = layer[order[i]], expert[order[i]]
                weight = share[g, at, e] if share.shape[0] else 1.0
                for b in range(4):
                    table[i, b] = weight * losses[at, e, b]
            split(table, int(np.floor(n * (mean_bits - 1.0) + 1e-9)), chosen)
            for i in range(n):
                bits[g, layer[order[i]], expert[order[i]]] = chosen[i]
