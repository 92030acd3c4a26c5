"""What a table declares."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """Column names in order, the ones that may be absent, and the key that identifies a row."""

    columns: tuple[str, ...]
    key: tuple[str, ...]
    meaning: str
    optional: tuple[str, ...] = ()
    nullable: tuple[str, ...] = ()
