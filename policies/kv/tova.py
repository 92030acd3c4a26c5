"""TOVA: the token that the newest query attends to least leaves (Oren et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass

from tokentape.policies.kernels import kernel, uint64
from tokentape.policies.kv.rule import WEIGH_SIGNATURE, KVPolicy


@kernel(WEIGH_SIGNATURE)
def weigh_by_last(mass, positions, now, total, rank, memory, salt, params):  # type: ignore[no-untyped-def]
    for s in range(uint64(mass.shape[0])):
        rank[s] = mass[s]


@dataclass(frozen=True)
class TOVA(KVPolicy):
    """Ranks by the last query's attention alone. The heads of a layer share one set, as published; the newest token stays."""

    sink: int = 0
    recent: int | str = 1
    is_per_head: bool = False
    prompt_queries = 1
    weigh = staticmethod(weigh_by_last)

    @property
    def per_head(self) -> bool:
        return self.is_per_head
