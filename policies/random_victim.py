"""Random replacement: the baseline that any policy with an idea should beat."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class RandomVictim:
    """A resident expert drawn uniformly leaves. The draws depend on the cache's seed and on nothing else."""

    kind: ClassVar[str] = "uniform"
    is_bound: ClassVar[bool] = False
