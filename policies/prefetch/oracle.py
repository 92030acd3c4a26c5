"""Prefetching by an oracle: what the next layer is about to look up, the bound of all that foretell it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tokentape.policies.kernels import kernel
from tokentape.policies.prefetch.rule import PREDICT_SIGNATURE, Prefetcher


@kernel(PREDICT_SIGNATURE, allocates=False)
def _as_seen(layer, target, tokens, weights, memory, params, scores):  # type: ignore[no-untyped-def]
    """The scores are the tokens to come."""


@dataclass(frozen=True)
class Oracle(Prefetcher):
    """All experts to come (n: those with most tokens)."""

    sees: ClassVar[bool] = True
    predict = staticmethod(_as_seen)
