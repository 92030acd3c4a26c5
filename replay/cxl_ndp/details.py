"""One layer-step, memory and bit widths: rows of `cxl_ndp_lanes`, `cxl_ndp_capacity`, `cxl_ndp_bits`, `cxl_ndp_losses`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.bits import BIT_RULES, chosen_losses
from tokentape.policies.placement import shares, start_average
from tokentape.replay.cxl_ndp.capacity import parts
from tokentape.replay.cxl_ndp.decode import Placed
from tokentape.replay.cxl_ndp.lanes import LANES, segments
from tokentape.replay.cxl_ndp.routing import CXLNDPRouting
from tokentape.replay.cxl_ndp.setting import Floats, Setting, placed_by, widths
from tokentape.replay.cxl_ndp.system import FP16_BITS, Setup, System, system_of

Row = dict[str, Any]
UNIFORM = "uniform"


def lanes(made: Setup, setting: Setting, systems: Sequence[str], tape: CXLNDPRouting, losses: Floats) -> Iterator[Row]:
    """The first batch's first decode step in the first layer, on every system."""
    placed = placed_by(tape, setting)
    members = placed.groups[0]
    counts = np.bincount(tape.decode_ids[members, 0, 0].ravel(), minlength=tape.n_experts)
    for name in systems:
        system = system_of(name, made)
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


def capacities(made: Setup, hot_experts: int, batch: int) -> Iterator[Row]:
    """Part by part."""
    where = {"hardware": made.machine.name, "model_id": made.name, "hot_experts": hot_experts}
    yield from (where | part for part in parts(made, hot_experts, batch))


def loss_rows(losses: Floats, layers: Sequence[int], where: Row) -> Iterator[Row]:
    """Of a table (L, E, 4). where: model_id, source and method."""
    for at, layer in enumerate(layers):
        for expert in range(losses.shape[1]):
            for width in range(losses.shape[2]):
                key = {**where, "layer": layer, "expert": expert, "bits": width + 1}
                yield key | {"mse": float(losses[at, expert, width])}


def bit_rows(
    means: Sequence[float],
    batch: int,
    tapes: Sequence[CXLNDPRouting],
    losses: Sequence[Floats],
    where: Row,
    hot_experts: int,
    weighted: bool = True,
) -> tuple[list[Row], list[Row]]:
    """Rows of `cxl_ndp_bits` and of `cxl_ndp_losses`, placed by the prompt, once per sequence and once per batch.

    means: bits on average; losses: a table (L, E, 4) per tape. where: model_id, source and method. weighted: losses count by
    shares of the prompts.
    """
    bits_rows, losses_rows = [], []
    for size in (1, min(batch, min(tape.n_sequences for tape in tapes))):
        setting = Setting(batch=size, hot_experts=hot_experts)
        placed = [placed_by(tape, setting) for tape in tapes]
        for mean_bits in means:
            found = {}
            for rule in BIT_RULES:
                of = [
                    (tape, at, table, widths(tape, at, table, mean_bits, rule, weighted))
                    for tape, at, table in zip(tapes, placed, losses, strict=True)
                ]
                found[rule] = np.concatenate([table_losses(*one, weighted).ravel() for one in of])
                by_rank = np.concatenate([ranked_bits(at, bits) for _, at, _, bits in of])
                key = {**where, "rule": rule, "mean_bits": mean_bits, "batch": size}
                bits_rows += [key | row for row in _by_rank(by_rank)]
            for rule, mine in found.items():
                ratio, gain = mine / found[UNIFORM], float((found[UNIFORM] - mine).mean())
                median, low, high = float(np.median(ratio)), float(np.quantile(ratio, 0.05)), float(np.quantile(ratio, 0.95))
                key = {**where, "rule": rule, "mean_bits": mean_bits, "batch": size}
                losses_rows.append(key | {"loss_ratio": median, "low": low, "high": high, "loss_gain": gain, "n": ratio.size})
    return bits_rows, losses_rows


def table_losses(tape: CXLNDPRouting, placed: Placed, losses: Floats, bits: NDArray[np.int8], weighted: bool) -> Floats:
    """(G, L) loss of the NDP's experts at their bits."""
    share = shares(tape.prefill_counts[placed.groups].sum(axis=1)) if weighted else 1.0
    return np.asarray((chosen_losses(losses, bits) * share).sum(axis=-1))


def ranked_bits(placed: Placed, bits: NDArray[np.int8]) -> NDArray[np.int8]:
    """(G L, n) bits of the NDP's experts of every group and layer, by falling importance."""
    n = bits.shape[-1] - placed.capacity
    order = np.argsort(np.where(placed.hot, np.inf, -placed.scores), axis=-1, kind="stable")[..., :n]
    return np.take_along_axis(bits, order, axis=-1).reshape(-1, n)


def _by_rank(bits: NDArray[np.int8]) -> Iterator[Row]:
    for rank in range(bits.shape[1]):
        low, high = np.quantile(bits[:, rank], (0.05, 0.95))
        row = {"importance_rank": rank + 1, "n_ranked": bits.shape[1], "bits_mean": float(bits[:, rank].mean())}
        yield row | {"bits_p05": float(low), "bits_p95": float(high)}
