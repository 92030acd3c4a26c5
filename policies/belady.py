"""Belady's MIN: bounds, because they read the future.

Source: L. A. Belady, IBM Systems Journal 5(2), 1966. Optimal for experts of equal size; with unequal sizes a strong heuristic and
no longer a bound in bytes.
"""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Belady:
    """The expert whose next lookup is farthest away leaves. Every missed expert enters: bounds all policies that do the same."""

    kind: ClassVar[str] = "future"
    bypass: ClassVar[bool] = False
    is_bound: ClassVar[bool] = True


@dataclass(frozen=True)
class BypassBelady(Belady):
    """The same, but a missed expert may be streamed through: bounds every policy, those that pin experts included."""

    bypass: ClassVar[bool] = True
