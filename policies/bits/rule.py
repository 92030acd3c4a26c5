"""What a bit-width rule is: a compiled function that gives each of n experts 1 to 4 bits within a budget. And bits of the experts
that are not on the GPU, for many groups at once: each layer its own budget, or one for all layers.

The rules know losses by expert and width, listed by falling importance. A budget counts bits beyond 1 per expert (CXL GPU-NDP
section on mixed precision; specification 4.2). Within one, experts are ranked by importance, ties to the lower layer, then the
lower index. Importance sums to 1 in every layer, so a budget across layers ranks shares of their layers.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.kernels import F64_2D, F64_3D, array, boolean, float64, function, int8, int64, kernel, void
from tokentape.policies.order import ascending

Bits = NDArray[np.int8]
Floats = NDArray[np.float64]
FEWEST, MOST = 1, 4
N_WIDTHS = MOST - FEWEST + 1

# split(losses, budget, bits)
#   losses  (n, 4) f64  loss of each expert at 1, 2, 3 and 4 bits, by falling importance
#   budget  i64         bits beyond 1 per expert, 0..3n          bits (n,) i8  out: 1 to 4 each
RULE_SIGNATURE = void(F64_2D, int64, array(int8, 1))


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


_I8_3D, _BOOL_3D = array(int8, 3), array(boolean, 3)


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
    void(function(RULE_SIGNATURE), F64_3D, F64_3D, _BOOL_3D, F64_3D, float64, boolean, _I8_3D),
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
