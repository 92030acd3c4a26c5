"""One layer-step on the clock: what GPU, NDP and link are busy with. The last segment ends when the step does."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.hw.clock import clock
from tokentape.hw.profile import ENDS
from tokentape.hw.work import Floats, Rows, Work
from tokentape.policies.placement import start_average
from tokentape.replay.cxl_ndp.decode import rest_of_steps
from tokentape.replay.cxl_ndp.routing import CXLNDPRouting
from tokentape.replay.cxl_ndp.setting import Setting, placed_by, widths
from tokentape.replay.cxl_ndp.system import FP16_BITS, Setup, System
from tokentape.replay.cxl_ndp.work import Items, by_expert, exchange_rows, moved_rows

LANES = ("gpu", "ndp", "pcie")
Row = dict[str, Any]


@dataclass(frozen=True)
class Segment:
    """A stretch in which one of LANES is busy; expert: whose it is, where it is one's."""

    lane: str
    operation: str
    start_s: float
    seconds: float
    expert: int | None = None


def segments(
    made: Setup,
    system: System,
    counts: NDArray[np.integer],
    resident: NDArray[np.bool_],
    bits: NDArray[np.floating],
    batch: int,
    migrated: NDArray[np.integer],
) -> list[Segment]:
    """By start, lane by lane. counts, resident, bits: (E,) of a layer, resident after migration; migrated: experts that moved.
    All else is that of a mean layer."""
    blocks = made.blocks
    at, rest = np.array([blocks.moe[0]]), rest_of_steps(made, np.array([batch]), ENDS[:1])
    used = np.flatnonzero(counts)
    away = [int(e) for e in used if not resident[e]]
    moved = [int(e) for e in migrated] + (away if system.fetches else [])
    on_gpu = [int(e) for e in used if resident[e] or system.fetches]
    on_ndp = [] if system.fetches else away

    def expert(e: int, engine: str, width: float) -> Rows:
        items = Items(at, counts[e : e + 1], np.array([width]), np.ones(1))
        return by_expert(made, items, engine, engine == "main", "decode", system.compute_scales)

    gpu = {e: expert(e, "main", FP16_BITS) for e in on_gpu}
    ndp = {e: expert(e, "near_compute", float(bits[e])) for e in on_ndp}
    link = moved_rows(made, system, np.full((1, blocks.moe.size), system.moved_bits / FP16_BITS))
    activations = exchange_rows(made, np.full((1, blocks.moe.size), float(counts[on_ndp].sum())), "decode")
    rows = (*gpu.values(), *ndp.values(), *link, *activations)
    work = Work(n_steps=1, n_blocks=blocks.n, rows=rows)
    cost = clock(work, made.machine, made.profile, made.fits, rest.prepared, ENDS[:1])

    def seconds(row: Rows) -> float:
        return float(cost.rows_s[id(row)][0, at[0]])

    other = rest.other / blocks.moe.size
    over_link = list(_after(other, "pcie", [(e, seconds(row)) for e in moved for row in link]))
    start = other if system.overlaps or not over_link else over_link[-1].start_s + over_link[-1].seconds
    shared = float(rest.shared[0, at[0]])
    found = [Segment("gpu", "attention and KV", 0.0, other), *over_link]
    found += [Segment("gpu", "shared experts", start, shared)] if shared else []
    found += _after(start + shared, "gpu", [(e, seconds(row)) for e, row in gpu.items()])
    if on_ndp:
        half = sum(seconds(row) for row in activations) / 2
        inside = list(_after(start + half, "ndp", [(e, seconds(row)) for e, row in ndp.items()]))
        back = Segment("pcie", "activations back", inside[-1].start_s + inside[-1].seconds, half)
        found += [Segment("pcie", "activations out", start, half), *inside, back]
    return sorted(found, key=lambda one: (LANES.index(one.lane), one.start_s))


def _after(start: float, lane: str, experts: list[tuple[int, float]]) -> Iterator[Segment]:
    """One expert after the other."""
    for expert, seconds in experts:
        yield Segment(lane, "expert", start, seconds, expert)
        start += seconds


def lanes(made: Setup, setting: Setting, systems: Sequence[str], tape: CXLNDPRouting, losses: Floats) -> Iterator[Row]:
    """The first batch's first decode step in the first layer, on every system."""
    placed = placed_by(tape, setting)
    members = placed.groups[0]
    counts = np.bincount(tape.decode_ids[members, 0, 0].ravel(), minlength=tape.n_experts)
    for name in systems:
        system = setting.system(name, made)
        bits = np.full(tape.n_experts, float(FP16_BITS))
        if system.bits != FP16_BITS:
            bits = widths(tape, placed, losses, system.bits, setting.rule)[0, 0].astype(np.float64)
        average = start_average(tape.prefill_counts[members, 0].sum(axis=0), members.size, tape.top_k)
        resident, migrated = _after_migration(system, counts, placed.hot[0, 0], average, placed.capacity)
        found = segments(made, system, counts, resident, bits, members.size, migrated)
        for lane in LANES:
            for place, one in enumerate(one for one in found if one.lane == lane):
                yield {"model_id": made.name, "system": system.name, "place": place, **asdict(one)}


def _after_migration(
    system: System, counts: NDArray[np.int64], hot: NDArray[np.bool_], average: Floats, capacity: int
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """(E,) residents once the first step's experts have moved, and which did."""
    before = (hot if system.starts_placed else np.zeros_like(hot)).astype(np.uint8)
    resident = before.copy()
    system.reactive.migrate(counts, average, resident, capacity, system.reactive.params())
    return resident.astype(np.bool_), np.flatnonzero(resident > before)
