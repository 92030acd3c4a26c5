"""Max-Rank: resident experts among the model's top M go first. Source: arXiv 2412.00099, as SliceMoE section 4.4 names it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.kernels import kernel, uint64
from tokentape.policies.sliced.ranking import CHOOSE_SIGNATURE, Router, top_k


@kernel(CHOOSE_SIGNATURE, allocates=False)
def _resident_of_top(layer, values, gates, natural, resident, phase, params, work, ids):  # type: ignore[no-untyped-def]
    k, order = uint64(ids.shape[1]), work[1]
    m = min(max(int(params[0]), ids.shape[1]), values.shape[1])
    for i in range(uint64(values.shape[0])):
        top_k(values[i], m, work[0], order)
        ids[i] = -1
        n = uint64(0)
        for wanted in (uint64(1), uint64(0)):  # the resident ones, then the others, each by rank
            for j in range(uint64(m)):
                e = order[j]
                if n < k and e >= 0 and uint64(resident[uint64(e)]) == wanted:
                    ids[i, n] = e
                    n += uint64(1)


@dataclass(frozen=True)
class MaxRank(Router):
    """k experts from the model's top `max_rank`: resident ones by rank, then the rest by rank. max_rank <= k is stock."""

    max_rank: int = 12
    choose = staticmethod(_resident_of_top)
    n_natural: ClassVar[int | None] = 0

    def __post_init__(self) -> None:
        if self.max_rank < 1:
            raise ValueError(f"max_rank: max_rank {self.max_rank} must be at least 1")

    def params(self, n_layers: int, n_experts: int) -> NDArray[np.float64]:
        return np.array([self.max_rank], np.float64)
