"""Caches that tell what is used again from what came by once, in lists (lists.py has their kernel): SIEVE, SLRU, S3-FIFO, ARC.

Sources: Y. Zhang, J. Yang, Y. Yue, Y. Vigfusson, K. V. Rashmi, SIEVE is simpler than LRU, NSDI 2024, algorithm 1.
R. Karedla, J. S. Love, B. G. Wherry, Caching strategies to improve disk system performance, Computer 1994; four segments of equal
room, and entry into the lowest that has some, as libCacheSim has it.
J. Yang, Y. Zhang, Z. Qiu, Y. Yue, K. V. Rashmi, FIFO queues are all you need for cache eviction, SOSP 2023, with libCacheSim's
start: until something has left, the main queue takes what the small one has no room for.
N. Megiddo, D. S. Modha, ARC: a self-tuning, low overhead replacement cache, FAST 2003, figure 4; sizes in bytes.
"""

from dataclasses import dataclass
from typing import ClassVar

from tokentape.policies import lists
from tokentape.policies.bounds import Bounded, Positive, Share


@dataclass(frozen=True)
class Sieve(Bounded):
    """One queue in order of entry. A hand walks it from the oldest on and drops the first expert that was not used since it last
    came by; hits move nothing."""

    kind: ClassVar[str] = "lists"
    which: ClassVar[int] = lists.SIEVE
    is_bound: ClassVar[bool] = False

    def params(self) -> tuple[float, ...]:
        return ()


@dataclass(frozen=True)
class SLRU(Sieve):
    """LRU in four segments: an expert rises one with every hit and sinks as others rise; the oldest of the lowest leaves."""

    which: ClassVar[int] = lists.SLRU


@dataclass(frozen=True)
class S3FIFO(Sieve):
    """New experts pass a small queue; used often enough there they go on to the main one, else they leave a ghost.

    small_frac, ghost_frac: rooms of the small queue and of the ghosts, of the cache. promote_at: hits in the small queue that
    take an expert to the main one.
    """

    which: ClassVar[int] = lists.S3_FIFO
    small_frac: Share = 0.1
    ghost_frac: Share = 0.9
    promote_at: Positive = 2

    def params(self) -> tuple[float, ...]:
        return self.small_frac, self.ghost_frac, float(self.promote_at)


@dataclass(frozen=True)
class ARC(Sieve):
    """Experts seen once and experts seen again share the room: a miss on what left as seen once makes room for such experts, one
    on what left as seen again for those."""

    which: ClassVar[int] = lists.ARC
