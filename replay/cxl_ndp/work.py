"""What a system's decisions make a layer compute and move, as rows of work: experts on the GPU and elsewhere, weights and
activations over the link. All else of a layer comes from replay/transformer.py, seconds and joules from hw/clock.py.

Experts of the main engine are one kernel per layer, or one after the other where the profile's lane takes no operators for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.hw.work import Floats, Ints, Rows
from tokentape.replay.cxl_ndp.system import FETCHED, FP16_BITS, FP16_BYTES, IN_PLACE, NEAR, Setup, System
from tokentape.replay.transformer import experts_of

Numbers = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Items:
    """Experts by themselves, alike ones together, (n,): cells of the work, tokens, widths, and how many."""

    cells: Ints
    tokens: Numbers
    bits: Numbers
    times: Numbers

    def at_fp16(self) -> Items:
        return replace(self, bits=np.broadcast_to(float(FP16_BITS), self.cells.shape))


@dataclass(frozen=True, eq=False)
class Share:
    """Experts that one place computes, (steps, MoE layers): how many, their tokens, bytes in FP16 experts; and one by one."""

    active: Floats
    tokens: Floats
    reads: Floats
    items: tuple[Items, ...]


def layer_rows(made: Setup, system: System, hot: Share, away: Share, migrated: Floats, phase: str = "decode") -> tuple[Rows, ...]:
    """Of routed experts. hot, away: on the GPU when a layer computes, and not; migrated (steps, MoE layers): moved there."""
    how, moves = made.elsewhere(system), migrated * system.moved_bits / FP16_BITS
    if how == FETCHED:
        moves = moves + (away.active * system.moved_bits / FP16_BITS if system.fetches else away.reads)
        away = replace(away, reads=away.active, items=tuple(items.at_fp16() for items in away.items))
    rows = moved_rows(made, system, moves, phase)
    if how == NEAR:
        near = tuple(by_expert(made, items, "near_compute", False, phase, system.compute_scales) for items in away.items)
        return (*rows, *_main(made, hot, True, phase), *exchange_rows(made, away.tokens, phase), *near)
    if how == IN_PLACE and made.machine.roles.expert_cache:
        return (*rows, *_main(made, hot, True, phase), *_main(made, away, False, phase))
    together = Share(hot.active + away.active, hot.tokens + away.tokens, hot.reads + away.reads, hot.items + away.items)
    return (*rows, *_main(made, together, True, phase))


def moved_rows(made: Setup, system: System, moves: Floats, phase: str = "decode") -> tuple[Rows, ...]:
    """Weights over the link, in FP16 experts (steps, MoE layers): before a layer computes, or ahead of it."""
    kind = "prefetch" if system.overlaps else "fetch"
    return _crossing(made, kind, "move experts", moves * made.expert_bytes, moves > 0, phase)


def exchange_rows(made: Setup, tokens: Floats, phase: str) -> tuple[Rows, ...]:
    """Activations to the experts that compute where they lie, and back."""
    return _crossing(made, "exchange", "activations", tokens * made.activation_bytes, tokens > 0, phase)


def _crossing(made: Setup, kind: str, name: str, n_bytes: Floats, count: NDArray[np.bool_], phase: str) -> tuple[Rows, ...]:
    """Between the experts' home and the GPU; nothing where both are one memory."""
    if not made.machine.roles.expert_cache or not count.any():
        return ()
    row = Rows(kind=kind, name=name, tier="expert_home", target="expert_cache", phase=phase)
    return (replace(row, blocks=made.blocks.moe, bytes=n_bytes, count=count),)


def _main(made: Setup, of: Share, is_cached: bool, phase: str) -> tuple[Rows, ...]:
    """Experts of the main engine."""
    lane = made.profile.lane_of(by_expert(made, of.items[0], "main", is_cached, phase))
    if lane is not None and lane.per == "item" and not lane.operators:
        return tuple(by_expert(made, items, "main", is_cached, phase) for items in of.items)
    g, is_there = made.geometry, of.active > 0
    tokens, active = np.maximum(of.tokens / g.top_k, 1.0), np.maximum(of.active, 1.0)
    (row,) = experts_of(g, made.machine, made.blocks, tokens, active, of.tokens, of.reads * made.expert_bytes, is_cached)
    is_fitted = np.array_equal(of.reads, of.active)  # operators were measured on 16 bits
    timed = {"shapes": {**row.shapes, "topk": np.clip(of.tokens, 1.0, g.top_k)}} if is_fitted else {"operator": "", "shapes": {}}
    return (replace(row, phase=phase, times=1.0 if is_there.all() else is_there, **timed),)


def by_expert(made: Setup, of: Items, engine: str, is_cached: bool, phase: str, scales: bool = True) -> Rows:
    """One after the other. scales: computing shrinks with the width."""
    g, is_main, n = made.geometry, engine == "main", 1 if made.machine.expert_parallel else made.machine.n_devices
    return Rows(
        kind="expert",
        name="routed experts" if is_main else "experts in memory",
        tier="expert_cache" if is_cached and made.machine.roles.expert_cache else "expert_home",
        engine=engine,
        phase=phase,
        cells=of.cells,
        bytes=of.bits * (made.expert_bytes / FP16_BITS),
        activation_bytes=of.tokens * (FP16_BYTES * (2.0 * n * g.moe_hidden + 3.0 * g.expert_intermediate)) if is_main else 0.0,
        ops=of.tokens * (2.0 * g.expert_params),
        count=1.0,
        times=of.times,
        bits=of.bits if scales else FP16_BITS,
    )
