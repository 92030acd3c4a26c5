"""The stock router: the model's own top-k, whatever is resident."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.kernels import kernel, uint64
from tokentape.policies.sliced.ranking import SELECT_SIGNATURE, no_table, top_k


@kernel(SELECT_SIGNATURE)
def _natural(values, gates, resident, strength, params, table, memory, scratch, keys, order, chosen):  # type: ignore[no-untyped-def]
    k = chosen.shape[0]
    top_k(values, k, keys, order)
    for j in range(uint64(k)):
        chosen[j] = order[j]


@dataclass(frozen=True)
class Stock:
    """Routes as the model does; the cache keeps what was used last (plain LRU)."""

    needs_scores: ClassVar[bool] = False
    strength: ClassVar[float] = 0.0
    select = staticmethod(_natural)

    def params(self) -> NDArray[np.float64]:
        return np.zeros(0)

    def table(self, n_layers: int, n_experts: int) -> NDArray[np.float32]:
        return no_table()
