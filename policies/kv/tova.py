"""Ranks by one query's attention: TOVA, by the newest query's (Oren et al. 2024), and the oracle, by those to come."""

from dataclasses import dataclass
from typing import ClassVar

from tokentape.policies.kernels import kernel, uint64
from tokentape.policies.kv.rule import WEIGH_SIGNATURE, KVPolicy


@dataclass(frozen=True)
class TOVA(KVPolicy):
    """The token that the newest query attends to least leaves; the newest one stays. The heads of a layer share one set, as
    published."""

    sink: int = 0
    recent: int | str = 1
    is_per_head: bool = False
    prompt_queries = 1

    @staticmethod
    @kernel(WEIGH_SIGNATURE)
    def weigh(mass, positions, now, total, rank, memory, salt, params):  # type: ignore[no-untyped-def]
        for s in range(uint64(mass.shape[0])):
            rank[s] = mass[s]


@dataclass(frozen=True)
class Oracle(KVPolicy):
    """Ranks by the attention that the recorded queries still to come pay: the replay hands that to `weigh` as mass.

    It sees the future, so it is drawn as a bound; it is greedy, so no proof that nothing keeps more. Over a tape only.
    """

    sink: int = 0
    recent: int | str = 0
    is_bound: ClassVar[bool] = True
    weigh = TOVA.weigh
