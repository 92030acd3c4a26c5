"""One layer-step on the clock: what GPU, NDP and link are busy with. The last segment ends when the step does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokentape.replay.cxl_ndp.system import System
from tokentape.replay.cxl_ndp.timing import Unit, gpu_s, ndp_s, other_s

LANES = ("gpu", "ndp", "pcie")


@dataclass(frozen=True)
class Segment:
    """A stretch in which one of LANES is busy."""

    lane: str
    label: str
    start_s: float
    seconds: float


def segments(
    counts: NDArray[np.integer],
    resident: NDArray[np.bool_],
    bits: NDArray[np.floating],
    batch: int,
    migrated: NDArray[np.integer],
    unit: Unit,
    system: System,
) -> list[Segment]:
    """By start, lane by lane. counts, resident, bits: (E,) of a layer, resident after migration; migrated: experts that moved."""
    other = other_s(batch, unit)
    used = np.flatnonzero(counts)
    away = [int(e) for e in used if not resident[e]]
    moved = [int(e) for e in migrated] + (away if system.fetches else [])
    on_gpu = [int(e) for e in used if resident[e] or system.fetches]
    on_ndp = [] if system.fetches else away
    over_link = list(_after(other, "pcie", [(f"expert {e}", system.moved_bits * unit.fetch) for e in moved]))
    start = other if system.overlaps or not over_link else over_link[-1].start_s + over_link[-1].seconds
    shared = max(unit.shared_read, batch * unit.shared_token)
    gpu = [("shared experts", shared)] if shared else []
    gpu += [(f"expert {e}", gpu_s(int(counts[e]), unit)) for e in on_gpu]
    found = [Segment("gpu", "attention and KV", 0.0, other), *over_link, *_after(start, "gpu", gpu)]
    if on_ndp:
        half = (int(counts[on_ndp].sum()) * unit.activation + unit.exchange) / 2
        out = Segment("pcie", "activations out", start, half)
        inside = list(_after(start + half, "ndp", [(f"expert {e}", ndp_s(int(counts[e]), float(bits[e]), unit)) for e in on_ndp]))
        back = Segment("pcie", "activations back", inside[-1].start_s + inside[-1].seconds, half)
        found += [out, *inside, back]
    return sorted(found, key=lambda one: (LANES.index(one.lane), one.start_s))


def _after(start: float, lane: str, parts: list[tuple[str, float]]) -> Iterator[Segment]:
    """One after the other."""
    for label, seconds in parts:
        yield Segment(lane, label, start, seconds)
        start += seconds
