"""One fitted constant of an operator model: its name, unit, meaning and the range in which it may lie."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Parameter:
    """A constant that is fitted to measurements; `start`, `low`, `high` are in `unit` ("frac" for a dimensionless efficiency)."""

    name: str
    unit: str
    start: float
    low: float
    high: float
    meaning: str
