"""The stock router: the model's own top-k, whatever is resident."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tokentape.policies.kernels import kernel
from tokentape.policies.sliced.ranking import CHOOSE_SIGNATURE, Router


@kernel(CHOOSE_SIGNATURE)
def _natural(layer, values, gates, natural, resident, phase, params, work, ids):  # type: ignore[no-untyped-def]
    for i in range(ids.size):
        ids.flat[i] = natural.flat[i]


@dataclass(frozen=True)
class Stock(Router):
    """Routes as the model does; the cache keeps what was used last (plain LRU)."""

    needs_scores: ClassVar[bool] = False
    choose = staticmethod(_natural)
