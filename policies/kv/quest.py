"""Quest: every token stays, a query reads the pages whose keys could score most (Tang et al. 2024, arXiv:2406.10774)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.kv.rule import Floats, KVPolicy


@dataclass(frozen=True)
class Quest(KVPolicy):
    """Evicts nothing. budget: tokens that a query reads, as whole pages, the newest page always; dense_layers: the first layers
    read everything, as published. It needs pages of keys and queries: a tape of `capture --key-pages`."""

    sink: int = 0
    recent: int | str = 0
    dense_layers: int = 2
    reads_pages: ClassVar[bool] = True

    def read(self, scores: Floats, page: int) -> NDArray[np.int64]:
        """Pages that are read, by their scores (P,), the newest last; of equals the older."""
        if self.budget is None:
            return np.arange(scores.size)
        others = np.argsort(-scores[:-1], kind="stable")[: max(0, self.budget // page - 1)]
        return np.append(others, scores.size - 1)


def page_scores(query: Floats, low: Floats, high: Floats) -> Floats:
    """(P,): no less than q.k of any key of a page, summed over a group's query heads. query (G, D); low, high (P, D)."""
    scores: Floats = np.maximum(query[:, None] * low, query[:, None] * high).sum(axis=(0, 2))
    return scores
