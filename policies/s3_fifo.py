"""S3-FIFO: new experts pass a small queue; used often enough there they go on to the main one, else they leave a ghost.

Source: J. Yang, Y. Zhang, Z. Qiu, Y. Yue, K. V. Rashmi, FIFO queues are all you need for cache eviction, SOSP 2023, with
libCacheSim's start: until something has left, the main queue takes what the small one has no room for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tokentape.policies.lists import S3_FIFO as WHICH
from tokentape.policies.sieve import Sieve


@dataclass(frozen=True)
class S3FIFO(Sieve):
    """small_frac, ghost_frac: rooms of the small queue and of the ghosts, of the cache. promote_at: hits in the small queue that
    take an expert to the main one. Raises ValueError where a share is not within 0 and 1, or promote_at is below 1."""

    which: ClassVar[int] = WHICH
    small_frac: float = 0.1
    ghost_frac: float = 0.9
    promote_at: int = 2

    def __post_init__(self) -> None:
        for name in ("small_frac", "ghost_frac"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} {getattr(self, name)} must lie in 0..1")
        if self.promote_at < 1:
            raise ValueError(f"promote_at {self.promote_at} must be 1 or more")

    def params(self) -> tuple[float, ...]:
        return self.small_frac, self.ghost_frac, float(self.promote_at)
