"""A priced step as named operations on the machine's resources, to be placed on a clock (hw/timeline.py)."""

from __future__ import annotations

import numpy as np

from tokentape.hw.clock import StepCost
from tokentape.hw.spec import HardwareSpec
from tokentape.hw.timeline import Operation, Parallel, Serial, Step
from tokentape.hw.work import Rows, Work


def operations_of(work: Work, cost: StepCost, machine: HardwareSpec, index: int = 0) -> Step:
    """Step `index` of the work: its rows in their order, block by block, one after the other; what is prefetched beside them.

    Bytes and operations are one device's share. What its cost overlaps otherwise, the tree does not.
    """
    shape = (work.n_steps, work.n_blocks)
    in_order: list[list[Step]] = [[] for _ in range(work.n_blocks)]
    ahead: list[Step] = []
    for rows in work.rows:
        seconds = np.broadcast_to(cost.rows_s[id(rows)], shape)[index] if id(rows) in cost.rows_s else np.zeros(work.n_blocks)
        n_bytes, ops = (
            np.broadcast_to(work.by_cell(rows, values), shape)[index]
            for values in (np.asarray(rows.bytes) + rows.activation_bytes, rows.ops)
        )
        for block in np.flatnonzero((seconds > 0) | (n_bytes > 0) | (ops > 0)).tolist():
            layer = block if block < work.n_blocks - 1 else -1
            moved = (float(n_bytes[block]) / machine.n_devices, float(ops[block]) / machine.n_devices)
            step = _operation(rows, machine, layer, float(seconds[block]), *moved)
            (ahead if rows.kind == "prefetch" else in_order[block]).append(step)
    steps = Serial(tuple(step for block in in_order for step in block))
    return Parallel((Serial(tuple(ahead)), steps)) if ahead else steps


def _operation(rows: Rows, machine: HardwareSpec, layer: int, seconds: float, n_bytes: float, ops: float) -> Step:
    """On its engine; what is moved, on every tier and link that it leaves or crosses."""
    resources = [machine.roles.of(rows.engine) if rows.engine else machine.roles.main]
    if rows.target:
        ends = (machine.roles.of(rows.tier), machine.roles.of(rows.target))
        links = [name for name, link in machine.links.items() if (link.source_tier, link.target_tier) == ends]
        resources = [*(() if ends[0] == ends[1] else ends[:1]), *links[:1]]
    made = [Operation(name=rows.name, resource=on, layer=layer, seconds=seconds, bytes=n_bytes, ops=ops) for on in resources]
    return made[0] if len(made) == 1 else Parallel(tuple(made))
