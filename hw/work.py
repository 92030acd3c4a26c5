"""What steps move and compute, before any machine: rows of bytes and operations, each by its kind, tier role and engine role.

Systems emit rows, machines give rates (hw/rates.py), profiles say what waits for what (hw/profile.py), and hw/clock.py makes
seconds and joules of the three. A step is `n_blocks` blocks: layers, or kinds of layers that stand for several, the output head
last. Tiers and engines are roles (hw/roles.py), never names of a machine's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Values = float | NDArray[Any]

# What a row is. `feed`: keys and values on their way into the array; `weights`: those that pass through a buffer; `scan`: scores
# read one by one to find the least; `launch`: kernels started by class; `layer` and `step`: marks that count them, for overheads
# of engines.
KINDS = (
    "expert", "shared", "proj", "router", "dense_ffn", "head", "attend", "kv_read", "kv_write", "recompute", "feed", "exchange",
    "all_reduce", "draft", "elementwise", "launch", "fetch", "prefetch", "weights", "activations", "scan", "layer", "step",
)  # fmt: skip
PHASES = ("decode", "prefill", "draft", "verify")


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """Rows of one kind, of all devices together; a multiply-add is two operations.

    Values are (n,) with `cells`, their step x n_blocks + block; without, they broadcast to (steps, blocks), or to (steps,
    len(blocks)) of the blocks named. tier: where the bytes lie; target: where they are moved to ("": read in place by the
    engine). activation_bytes: read and written there beside the bytes, by profiles that count them. count: launches, messages,
    queued reads. times: identical rows that one stands for. bits: width of the weights. streams: independent requests, of which
    each can draw only so much bandwidth. dtype: of the operands, where it is not the machine's. operator, shapes: the fitted GPU
    operator that times a row (hw/calibrate.py, `Fit.key`), and its arguments, each shaped as the values. waits: where devices
    have not as much to do, the rows were all as full as the fullest: what time follows from, while energy is of the rows.
    """

    kind: str
    name: str = ""  # for people
    tier: str = ""
    target: str = ""
    engine: str = ""
    phase: str = "decode"
    cells: Ints | None = None
    blocks: Ints | None = None
    bytes: Values = 0.0
    activation_bytes: Values = 0.0
    ops: Values = 0.0
    count: Values = 0.0
    times: Values = 1.0
    bits: Values = 16.0
    streams: Values = 1.0
    dtype: str = ""
    operator: str = ""
    shapes: Mapping[str, Values] = field(default_factory=dict)
    waits: Rows | None = None

    @property
    def timed(self) -> Rows:
        """What the seconds are those of."""
        return self.waits or self


@dataclass(frozen=True, kw_only=True, eq=False)
class Work:
    """Rows of `n_steps` steps. block_times: how often a block occurs, broadcast to (steps, blocks). held_bytes: what lies in the
    tier of a role during each step, broadcast to (steps,). spread: where blocks that are alike are one, which of them each is."""

    n_steps: int
    n_blocks: int
    rows: tuple[Rows, ...]
    block_times: Values = 1.0
    held_bytes: Mapping[str, Values] = field(default_factory=dict)
    spread: Ints | None = None

    def size(self, rows: Rows) -> tuple[int, ...]:
        """The shape of its operator's arguments together: of one step, or block, where they are alike in all."""
        return np.broadcast_shapes(*map(np.shape, rows.shapes.values())) if rows.cells is None else (rows.cells.size,)

    def by_cell(self, rows: Rows, values: Values) -> Floats:
        """(steps, blocks) sums of values of the rows, each as often as the row stands for."""
        each, shape = _each(rows, values), (self.n_steps, self.n_blocks)
        if not each.ndim and not each:
            return self.nothing
        if rows.cells is not None:
            weights = np.broadcast_to(each, rows.cells.size)
            return np.asarray(np.bincount(rows.cells, weights, self.n_steps * self.n_blocks).reshape(shape), np.float64)
        if rows.blocks is None:
            return each if each.shape == shape else np.broadcast_to(each, shape)
        placed = np.zeros(shape)
        first = int(rows.blocks[0]) if rows.blocks.size else 0
        if rows.blocks.size == rows.blocks[-1:].sum() + 1 - first:  # one after the other
            placed[:, first : first + rows.blocks.size] = each
        else:
            placed[:, rows.blocks] = each
        return placed

    def shapes(self, rows: Rows) -> dict[str, NDArray[Any]]:
        """The arguments of the rows' operator, each as long as those together."""
        size = self.size(rows)
        return {name: np.broadcast_to(np.asarray(values), size).ravel() for name, values in rows.timed.shapes.items()}

    def total(self, values: Floats, blocks: Ints | None = None) -> Floats:
        """(steps,) sums of values, each as often as its block occurs; broadcast to (steps, blocks), or (steps, len(blocks))
        of those named."""
        full, times = np.atleast_2d(values), self._times if blocks is None else self._times[..., blocks]
        if full.shape[1] == 1:
            found = full[:, 0] * times.sum(axis=-1)
        elif self.is_once and self.spread is None:
            found = np.einsum("ij->i", full)  # a third of .sum(axis=1)
        else:
            found = full @ times if times.ndim == 1 else np.einsum("ij,ij->i", *np.broadcast_arrays(full, times))
        return np.broadcast_to(found, self.n_steps)

    def summed(self, rows: Rows, values: Values) -> Floats:
        """(steps,) `total` of `by_cell`."""
        return self.total(self.by_cell(rows, values)) if rows.cells is not None else self.total(_each(rows, values), rows.blocks)

    @cached_property
    def _times(self) -> Floats:
        """(blocks,) how often each occurs; (steps, blocks) where that is not the same in every step."""
        if self.spread is not None:
            return np.bincount(self.spread, minlength=self.n_blocks).astype(np.float64)
        times = np.atleast_2d(np.asarray(self.block_times, np.float64))
        return np.broadcast_to(times, (len(times), self.n_blocks))[0 if len(times) == 1 else slice(None)]

    def apart(self, values: Floats) -> Floats:
        """(steps, blocks) values, one for each of those that are alike."""
        if self.spread is None or values.shape[-1:] != (self.n_blocks,):
            return values
        runs = self._runs  # three times as fast where kinds follow one another
        return np.take(values, self.spread, axis=1) if runs is None else np.repeat(values, runs, axis=1)

    @cached_property
    def _runs(self) -> Ints | None:
        assert self.spread is not None
        return np.bincount(self.spread, minlength=self.n_blocks) if (np.diff(self.spread) >= 0).all() else None

    @cached_property
    def is_once(self) -> bool:
        """Every block occurs once."""
        return bool(np.all(np.asarray(self.block_times) == 1.0))

    @cached_property
    def nothing(self) -> Floats:
        """(steps, blocks) zeros."""
        return np.zeros((self.n_steps, self.n_blocks))


def _each(rows: Rows, values: Values) -> Floats:
    """Values of the rows, as often as each stands for."""
    each = np.asarray(values, np.float64)
    return each if isinstance(rows.times, float) and rows.times == 1.0 else each * np.asarray(rows.times)
