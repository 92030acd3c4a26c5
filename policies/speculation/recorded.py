"""Drafts as a tape recorded them, whatever made them: the draft slot of a replay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class AsRecorded:
    """The rounds of a speculative tape: its drafted nodes, those that were rejected too, and its accepted lengths."""

    slots: ClassVar[tuple[str, ...]] = ("draft",)
