"""How alike a prompt and the decode that follows it use a layer's experts, and how much of that any other prompt would do.

Cosine of the two count vectors over the experts, per (sequence, layer). Counts are positive, so that even use is alike: of two
vectors whose uneven parts have nothing in common the cosine is `flat`. What lies above is this sequence's own, or popularity:
the prompts of all other sequences, each against this decode, show the latter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokentape.replay.cxl_ndp.routing import CXLNDPRouting

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Similarity:
    """own: (S, L) cosine of a sequence's prompt and decode; NaN where it decodes nothing. The others are means by layer (L,).

    shuffled: over all pairs of a decode and another sequence's prompt. static: of a decode and the prompts of all other sequences
    summed, a popularity list. flat, flat_shuffled: the same pairs as own and shuffled if uneven use had nothing in common. NaN
    where a tape has a single sequence that decodes.
    """

    own: Floats
    shuffled: Floats
    static: Floats
    flat: Floats
    flat_shuffled: Floats

    def by_layer(self) -> Floats:
        """(L,) mean of own."""
        return _mean(self.own)

    def static_frac(self) -> Floats:
        """(L,) share of the similarity above `flat` that other sequences' prompts have too; NaN where there is none above."""
        own, shuffled = self.by_layer() - self.flat, self.shuffled - self.flat_shuffled
        return np.asarray(np.divide(shuffled, own, out=np.full(own.size, np.nan), where=own > 0))


def similarity(routing: CXLNDPRouting) -> Similarity:
    """Of sequences that decode at least one token; the others have NaN and take part in nothing."""
    prompts, decoded = routing.prefill_counts.astype(np.float64), routing.decode_counts().astype(np.float64)
    is_used = routing.n_decode > 0
    own = np.full(prompts.shape[:2], np.nan)
    p, d = _unit(prompts[is_used]), _unit(decoded[is_used])
    own[is_used] = (p * d).sum(axis=2)
    even = np.full(p.shape[2], p.shape[2] ** -0.5)
    others = prompts[is_used].sum(axis=0) - prompts[is_used]
    return Similarity(
        own=own,
        shuffled=_of_pairs(p, d),
        static=_mean((_unit(others) * d).sum(axis=2)) if len(p) > 1 else np.full(p.shape[1], np.nan),
        flat=_mean((p @ even) * (d @ even)),
        flat_shuffled=_of_pairs((p @ even)[..., None], (d @ even)[..., None]),
    )


def _of_pairs(prompts: Floats, decoded: Floats) -> Floats:
    """(L,) mean inner product of a prompt and another sequence's decode, (n, L, m) each, over all n (n - 1) pairs."""
    n = len(prompts)
    if n < 2:
        return np.full(prompts.shape[1], np.nan)
    total = (prompts.sum(axis=0) * decoded.sum(axis=0)).sum(axis=1) - (prompts * decoded).sum(axis=(0, 2))
    return np.asarray(total / (n * (n - 1)), np.float64)


def _unit(counts: Floats) -> Floats:
    length = np.linalg.norm(counts, axis=2, keepdims=True)
    return np.asarray(np.divide(counts, length, out=np.zeros_like(counts), where=length > 0))


def _mean(values: Floats) -> Floats:
    """Over sequences, without NaNs; NaN where all are."""
    is_known = ~np.isnan(values)
    n = is_known.sum(axis=0)
    total = np.where(is_known, values, 0.0).sum(axis=0)
    return np.asarray(np.divide(total, n, out=np.full(n.shape, np.nan), where=n > 0))
