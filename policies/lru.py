"""Least recently used, and its sibling first in, first out."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class LRU:
    """The expert whose last lookup is oldest leaves."""

    kind: ClassVar[str] = "queue"
    promote: ClassVar[bool] = True
    is_bound: ClassVar[bool] = False


@dataclass(frozen=True)
class FIFO(LRU):
    """The expert that entered first leaves; hits change nothing."""

    promote: ClassVar[bool] = False
