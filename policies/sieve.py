"""SIEVE: one queue in order of entry; a hand walks it from the oldest on and drops the first expert unused since it last came by.

Source: Y. Zhang, J. Yang, Y. Yue, Y. Vigfusson, K. V. Rashmi, SIEVE is simpler than LRU, NSDI 2024, algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tokentape.policies.lists import SIEVE


@dataclass(frozen=True)
class Sieve:
    """The oldest expert behind the hand that was not used since the hand last passed it leaves; hits move nothing."""

    kind: ClassVar[str] = "lists"
    which: ClassVar[int] = SIEVE
    is_bound: ClassVar[bool] = False

    def params(self) -> tuple[float, ...]:
        return ()
