"""Segmented LRU: an expert rises a segment with every hit and sinks as others rise; the oldest of the lowest leaves.

Source: R. Karedla, J. S. Love, B. G. Wherry, Caching strategies to improve disk system performance, Computer 1994; four segments
of equal room, and entry into the lowest that has some, as libCacheSim has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tokentape.policies.lists import SLRU as WHICH
from tokentape.policies.sieve import Sieve


@dataclass(frozen=True)
class SLRU(Sieve):
    """LRU in four segments: experts that were used once leave before those used more often."""

    which: ClassVar[int] = WHICH
