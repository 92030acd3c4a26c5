"""Hit rates of the resident experts, by named law (paper section 5 names a power law without giving it; these forms are ours).

paper_law: (resident share)^beta whatever the batch; in verification beta fades with it. It fits the paper's table and is not
physical: at batches above 1 more bytes hit than are resident. physical: the same, bounded by what is resident, and never
tuned to the table. che: an LRU under independent references.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tokentape.replay.elmoe3d.unions import che_hit_frac, touched

Floats = NDArray[np.float64]


class HitLaw(Protocol):
    """Hit rate (n,) of n points.

    share: resident share of the experts, 0..1; beta: exponent of the power law; weights: (n, N) popularity; n_tokens: independent
    tokens of the step; n_experts: N.
    """

    def __call__(self, share: Floats, beta: Floats, weights: Floats, n_tokens: Floats, n_experts: Floats) -> Floats: ...


def _power(share: Floats, beta: Floats) -> Floats:
    return np.where(share > 0.0, np.power(share, beta, where=share > 0.0, out=np.zeros_like(share)), 0.0)


def paper_law(share: Floats, beta: Floats, weights: Floats, n_tokens: Floats, n_experts: Floats) -> Floats:
    """As HitLaw; 0 where nothing is resident."""
    return _power(share, beta)


def physical(share: Floats, beta: Floats, weights: Floats, n_tokens: Floats, n_experts: Floats) -> Floats:
    """As HitLaw: no step hits more experts than are resident."""
    return np.minimum(_power(share, beta), share * n_experts / touched(weights, n_tokens))


def che(share: Floats, beta: Floats, weights: Floats, n_tokens: Floats, n_experts: Floats) -> Floats:
    """As HitLaw; beta plays no part."""
    return che_hit_frac(weights, n_tokens, share * n_experts)


HIT_LAWS: dict[str, HitLaw] = {"paper_law": paper_law, "physical": physical, "che": che}
