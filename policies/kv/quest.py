"""Quest: every token stays, a query reads the pages whose keys could score most (Tang et al. 2024, arXiv:2406.10774)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.kv.rule import Floats, KVPolicy

PAGE_TOKENS = 16  # as published


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

    def reads(self, n_seen: NDArray[np.int64], window: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Tokens that a query reads of the n_seen up to its own, of which it sees the last `window` (0: all), and the pages whose
        bounds it scores; which pages it takes is for the keys to say, how many not."""
        page, first = PAGE_TOKENS, np.maximum(0, n_seen - window) if window else np.zeros_like(n_seen)
        n_pages = (n_seen - 1) // page - first // page + 1
        if self.budget is None:
            return n_seen - first, np.zeros_like(n_pages)
        others = np.minimum(n_pages - 1, max(0, self.budget // page - 1))
        return np.minimum(n_seen - first, others * page + (n_seen - 1) % page + 1), n_pages


def page_scores(query: Floats, low: Floats, high: Floats) -> Floats:
    """(P,): no less than q.k of any key of a page, summed over a group's query heads. query (G, D); low, high (P, D)."""
    scores: Floats = np.maximum(query[:, None] * low, query[:, None] * high).sum(axis=(0, 2))
    return scores
