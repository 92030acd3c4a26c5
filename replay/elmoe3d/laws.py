"""Popularity of experts, how many of them n tokens touch, hit rates of those that are resident, and what a round accepts: laws by
name, for many points at once. The forms are ours (paper section 5 names a power law and an acceptance rate, and gives neither).

An expert of rank i is chosen by a token with p_i = 1 - exp(-c i^-s), hw/coverage.py; n tokens miss it with exp(-n c i^-s). So a
point needs its `weights` c i^-s alone: U(n) = sum_i 1 - exp(-n c i^-s), n real, U(1) = k.

Hits: paper_law: (resident share)^beta whatever the batch; in verification beta fades with it. It fits the paper's table and is
not physical: at batches above 1 more bytes hit than are resident. physical: the same, bounded by what is resident, and never
tuned to the table. che: an LRU under independent references.

Acceptance: linear fits the paper's table best; chain is what a chain of drafts gives where each token is accepted independently.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import mul

import numpy as np

from tokentape.hw.coverage import PowerLaw
from tokentape.hw.work import Floats

HALVINGS = 60  # of the ratio of a bisection's ends


@lru_cache(maxsize=4096)
def _weights(n_experts: int, top_k: float, exponent: float) -> Floats:
    with np.errstate(divide="ignore"):  # an expert that every token chooses: its weight is infinite
        return np.asarray(-np.log1p(-PowerLaw(exponent=exponent).popularity(n_experts, top_k)))


def weights_of(laws: Sequence[tuple[int, float, float]]) -> Floats:
    """(n, largest N) weights by rank, 0 beyond a point's own experts. laws: of a point N, k and s.

    Raises ValueError for an exponent that is out of range.
    """
    found = np.zeros((len(laws), max(n_experts for n_experts, _, _ in laws)))
    for i, law in enumerate(laws):
        found[i, : law[0]] = _weights(*law)
    return found


def touched(weights: Floats, n_tokens: Floats) -> Floats:
    """(n,) expected experts that n_tokens (n,) independent tokens touch in a layer."""
    return np.asarray(-np.expm1(-n_tokens[:, None] * weights).sum(axis=1))


def chosen_frac(weights: Floats, share: Floats) -> Floats:
    """(n,) share of a token's choices that fall on the most popular experts, `share` (n,) of all; of one in part, so much."""
    held = share[:, None] * (weights > 0.0).sum(axis=1, keepdims=True)
    chosen = -np.expm1(-weights)  # most popular first
    return np.asarray((chosen * np.clip(held - np.arange(weights.shape[1]), 0.0, 1.0)).sum(axis=1) / chosen.sum(axis=1))


def che_hit_frac(weights: Floats, n_tokens: Floats, n_slots: Floats) -> Floats:
    """(n,) hit rate of an LRU of n_slots experts per layer, each step referring to those that n_tokens independent tokens touch.

    Che's approximation (Fricker, Robert, Roberts, ITC 2012): an expert stays for T steps, where the expected experts seen in T
    steps fill the cache. Here that is U(T n_tokens) = n_slots, so the time is the same in tokens whatever the batch.
    """
    n_experts = (weights > 0.0).sum(axis=1)
    low, high = np.full(len(weights), 1e-30), np.full(len(weights), 1e30)
    is_whole = n_slots >= n_experts
    for _ in range(HALVINGS):
        middle = np.sqrt(low * high)
        is_short = touched(weights, middle) < n_slots
        low, high = np.where(is_short, middle, low), np.where(is_short, high, middle)
    referred = -np.expm1(-n_tokens[:, None] * weights)
    kept = -np.expm1(-high[:, None] * weights)
    found = np.where(is_whole, 1.0, (referred * kept).sum(axis=1) / referred.sum(axis=1))
    return np.asarray(np.where(n_slots > 0.0, found, 0.0))


# Hit rate (n,) of n points, of: resident share of the experts, 0..1; exponent beta of the power law; (n, N) weights; independent
# tokens of the step; N.
HitLaw = Callable[[Floats, Floats, Floats, Floats, Floats], Floats]


def power(share: Floats, beta: Floats) -> Floats:
    """share^beta; 0 where nothing is resident."""
    return np.where(share > 0.0, np.power(share, beta, where=share > 0.0, out=np.zeros_like(share)), 0.0)


HIT_LAWS: dict[str, HitLaw] = {
    "paper_law": lambda share, beta, *_: power(share, beta),
    "physical": lambda share, beta, weights, n, size: np.minimum(power(share, beta), share * size / touched(weights, n)),
    "che": lambda share, _, weights, n, size: che_hit_frac(weights, n, share * size),
}


def chain(alpha: Floats, n_draft_steps: Floats) -> Floats:
    """sum of alpha^i over i = 1..d: no token counts after the first that is refused."""
    is_one = alpha >= 1.0
    safe = np.where(is_one, 0.0, alpha)
    return np.where(is_one, n_draft_steps, safe * (1.0 - safe**n_draft_steps) / (1.0 - safe))


FORMS: dict[str, Callable[[Floats, Floats], Floats]] = {"linear": mul, "chain": chain}
