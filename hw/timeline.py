"""When each resource of a machine is busy: a step as named operations with explicit overlap, placed on a clock.

A step is a tree. `Operation` occupies one resource (an engine, a tier, a link) for some seconds; `Serial` runs its parts one
after the other, `Parallel` together, `Pipelined` passes items through stages: stage j of item i waits for stage j - 1 of item i
and for stage j of item i - 1. Resources are not arbitrated: two operations that a tree overlaps on one resource do overlap.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Operation:
    """Work on one resource. bytes, ops: what one device moves and computes; layer: -1 outside the layers."""

    name: str
    resource: str
    seconds: float
    layer: int = -1
    bytes: float = 0.0
    ops: float = 0.0


@dataclass(frozen=True)
class Serial:
    """Parts one after the other."""

    parts: tuple[Step, ...]


@dataclass(frozen=True)
class Parallel:
    """Parts that start together; it ends with the last."""

    parts: tuple[Step, ...]


@dataclass(frozen=True)
class Pipelined:
    """items[i][j]: stage j of item i; every item has the same number of stages."""

    items: tuple[tuple[Step, ...], ...]

    def __post_init__(self) -> None:
        if len({len(item) for item in self.items}) > 1:
            raise ValueError("every item of a pipeline needs the same number of stages")


Step = Operation | Serial | Parallel | Pipelined


@dataclass(frozen=True)
class Placed:
    """An operation and when it runs, in seconds from the start of the step."""

    operation: Operation
    start_s: float
    end_s: float


def place(step: Step, start_s: float = 0.0) -> tuple[list[Placed], float]:
    """All operations of a step on the clock, in the order of the tree, and when the step ends."""
    if isinstance(step, Operation):
        end_s = start_s + step.seconds
        return [Placed(step, start_s, end_s)], end_s
    if isinstance(step, Pipelined):
        return _place_pipeline(step, start_s)
    placed: list[Placed] = []
    end_s = start_s
    for part in step.parts:
        inner, part_end_s = place(part, start_s if isinstance(step, Parallel) else end_s)
        placed += inner
        end_s = max(end_s, part_end_s)
    return placed, end_s


def _place_pipeline(step: Pipelined, start_s: float) -> tuple[list[Placed], float]:
    placed: list[Placed] = []
    free_s = [start_s] * len(step.items[0]) if step.items else []
    end_s = start_s
    for item in step.items:
        end_s = start_s
        for stage, part in enumerate(item):
            inner, end_s = place(part, max(end_s, free_s[stage]))
            placed += inner
            free_s[stage] = end_s
    return placed, max([start_s, *free_s])


def busy_s(placed: list[Placed]) -> dict[str, float]:
    """Seconds each resource works; overlapping operations count once."""
    return {resource: sum(end - start for start, end in _merged(spans)) for resource, spans in _spans(placed).items()}


def _spans(placed: list[Placed]) -> dict[str, list[tuple[float, float]]]:
    spans: dict[str, list[tuple[float, float]]] = {}
    for p in placed:
        spans.setdefault(p.operation.resource, []).append((p.start_s, p.end_s))
    return spans


def _merged(spans: list[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Disjoint spans that cover the same time."""
    start, end = 0.0, 0.0
    for left, right in sorted(spans):
        if left > end:
            yield start, end
            start, end = left, right
        end = max(end, right)
    yield start, end
