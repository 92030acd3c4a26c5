"""A priced step as named operations on the machine's resources, and when each resource is busy: rows of table `operations`."""

import ast
from typing import Any

import numpy as np
import polars as pl

from tokentape.hw.clock import StepCost
from tokentape.hw.spec import HardwareSpec
from tokentape.hw.work import Floats, Rows, Work
from tokentape.replay.passes import Pricing, pass_costs
from tokentape.replay.trace import Trace

END = pl.col("start_s") + pl.col("seconds")


def operations_of(work: Work, cost: StepCost, machine: HardwareSpec) -> pl.DataFrame:
    """The first step of the work: its rows in their order, block by block, one after the other; what is prefetched beside them,
    by a profile that looks ahead beside the block before its own. A moved row is on each tier and link that it leaves or crosses.

    Columns operation, resource, op_layer (-1 outside the layers), start_s, seconds, bytes, ops: bytes and operations are one
    device's share. What its cost overlaps otherwise, this does not.
    """
    shape, found = (work.n_steps, work.n_blocks), []
    for rows in work.rows:
        seconds = np.broadcast_to(cost.rows_s[id(rows)], shape)[0] if id(rows) in cost.rows_s else np.zeros(work.n_blocks)
        n_bytes, ops = (
            np.broadcast_to(work.by_cell(rows, values), shape)[0]
            for values in (np.asarray(rows.bytes) + rows.activation_bytes, rows.ops)
        )
        at = np.flatnonzero((seconds > 0) | (n_bytes > 0) | (ops > 0))
        moved = {"seconds": seconds[at], "bytes": n_bytes[at] / machine.n_devices, "ops": ops[at] / machine.n_devices}
        where = {"operation": rows.name, "resource": [_resources(rows, machine)] * at.size, "block": at}
        found.append(pl.DataFrame({**where, "is_ahead": rows.kind == "prefetch", **moved}, schema_overrides=_TYPES))
    in_order = pl.concat(found).sort(pl.when("is_ahead").then(-1).otherwise("block"), maintain_order=True)
    started = in_order.with_columns(
        start_s=pl.col("seconds").cum_sum().shift(1, fill_value=0.0).over("is_ahead") + _waits_s(in_order, work.n_blocks, cost),
        op_layer=pl.when(pl.col("block") < work.n_blocks - 1).then("block").otherwise(-1),
    )
    return started.explode("resource").select("operation", "resource", "op_layer", "start_s", "seconds", "bytes", "ops")


def _waits_s(in_order: pl.DataFrame, n_blocks: int, cost: StepCost) -> pl.Series:
    """How long each row waits beside what comes before it of its kind: for the block that runs beside its own."""
    block, is_ahead, seconds = (in_order[name].to_numpy() for name in ("block", "is_ahead", "seconds"))
    if not is_ahead.any() or "lookahead" not in ast.unparse(cost.profile.steps["value"]):
        return pl.zeros(in_order.height, eager=True)
    ahead_s, main_s = (np.bincount(block[of], seconds[of], n_blocks) for of in (is_ahead, ~is_ahead))
    begins_s = np.cumsum(np.concatenate((ahead_s[:1], np.maximum(ahead_s[1:], main_s[:-1]))))
    ahead_at_s = np.concatenate(([0.0], begins_s[:-1]))
    waits_s = [at - np.cumsum(of) + of for at, of in ((begins_s, main_s), (ahead_at_s, ahead_s))]
    return pl.Series(np.where(is_ahead, waits_s[1][block], waits_s[0][block]))


_TYPES: dict[str, Any] = {"operation": pl.String, "resource": pl.List(pl.String), "block": pl.Int64, "is_ahead": pl.Boolean}
_TYPES |= dict.fromkeys(("seconds", "bytes", "ops"), pl.Float64)  # of rows without a cell, too


def _resources(rows: Rows, machine: HardwareSpec) -> list[str]:
    if not rows.target:
        return [machine.roles.of(rows.engine) if rows.engine else machine.roles.main]
    ends = (machine.roles.of(rows.tier), machine.roles.of(rows.target))
    link = machine.link(*ends)
    return [*(() if ends[0] == ends[1] else ends[:1]), *(link[:1] if link else ())]


def end_s(operations: pl.DataFrame) -> float:
    """When the last one ends."""
    return float(operations.select(END.max()).item() or 0.0)


def busy_s(operations: pl.DataFrame) -> dict[str, float]:
    """Seconds each resource works; overlapping operations count once."""
    before = END.cum_max().shift(1, fill_value=0.0).over("resource")
    alone = operations.sort("start_s", END).select("resource", seconds=(END - pl.max_horizontal("start_s", before)).clip(0.0))
    return dict(alone.group_by("resource", maintain_order=True).agg(pl.sum("seconds")).rows())


def replay_step(trace: Trace, lookups: Floats, how: Pricing, pass_id: int) -> pl.DataFrame:
    """Operations of pass `pass_id` of a replay. lookups: what it found, as passes.costs_of takes it. Raises ValueError if the
    tape has no such pass."""
    found = np.flatnonzero(trace.pass_ids == pass_id)
    if not found.size:
        first, last = trace.pass_ids[0], trace.pass_ids[-1]
        raise ValueError(f"tape {trace.trace_id} has no pass {pass_id}; its passes run from {first} to {last}")
    at = int(found[0])
    work, cost = pass_costs(trace.between(at, at + 1), how, lookups[:, at : at + 1], by_layer=True)
    return operations_of(work, cost, how.machine)
