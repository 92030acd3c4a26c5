"""The stock router: the model's own top-k, whatever is resident."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tokentape.policies.kernels import kernel, uint64
from tokentape.policies.sliced.ranking import SELECT_SIGNATURE, Router, top_k


@kernel(SELECT_SIGNATURE)
def _natural(values, gates, resident, strength, params, table, memory, scratch, keys, order, chosen):  # type: ignore[no-untyped-def]
    k = chosen.shape[0]
    top_k(values, k, keys, order)
    for j in range(uint64(k)):
        chosen[j] = order[j]


@dataclass(frozen=True)
class Stock(Router):
    """Routes as the model does; the cache keeps what was used last (plain LRU)."""

    needs_scores: ClassVar[bool] = False
    select = staticmethod(_natural)
