"""Prefetching by popularity: what the next layer has used most so far."""

from __future__ import annotations

from dataclasses import dataclass

from tokentape.policies.kernels import kernel
from tokentape.policies.prefetch.rule import PREDICT_SIGNATURE, Prefetcher


@kernel(PREDICT_SIGNATURE, allocates=False)
def _by_count(layer, target, tokens, weights, memory, params, scores):  # type: ignore[no-untyped-def]
    for e in range(tokens.shape[0]):
        memory[layer, 0, e] += tokens[e]
        scores[e] = memory[target, 0, e]


@dataclass(frozen=True)
class Popularity(Prefetcher):
    """Experts by the tokens that chose them since the run began."""

    predict = staticmethod(_by_count)
