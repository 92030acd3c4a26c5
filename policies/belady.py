"""Belady's MIN with demand insertion and no bypass: a bound, because it reads the future.

Source: L. A. Belady, IBM Systems Journal 5(2), 1966. Optimal for experts of equal size; with unequal sizes it is a strong
heuristic and no longer a bound in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Belady:
    """The expert whose next lookup is farthest away leaves."""

    kind: ClassVar[str] = "future"
    is_bound: ClassVar[bool] = True
