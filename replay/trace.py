"""A tape's routing as flat arrays: what every engine of this room reads. Made once per tape, shared by all replays of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tokentape.policies.kernels import kernel
from tokentape.warehouse.geometry import Geometry

PREFILL, DECODE = 0, 1
CELLS = 1 << 18  # passes x MoE layers of a part: some MB an array, so that calls take little beside what they compute
TOKENS = 1 << 16  # of a part: rows of few long passes
COLUMNS = ("request_id", "position", "layer", "pass_id", "expert_ids")  # of `routing`: what a trace is made of
_OF_ROWS = {"row_pass": "pass_id", "row_layer": "layer", "row_request": "request_id", "row_position": "position"}


@dataclass(frozen=True, eq=False)
class Trace:
    """Rows are (token, MoE layer) in the order executed: by pass, then layer, then token.

    row_pass, row_layer (index into geometry.moe_layers), row_request, row_position: (n,) i32. offsets: (n + 1,) i64 bounds of a
    row's experts in `ids`. ids: i32 logical expert ids by falling weight. pass_kind (p,) u8: PREFILL or DECODE; pass_tokens (p,)
    i64; pass_ids (p,) i64 as on the tape. members: i64 request ids of a pass's batch, bounded by member_offsets (p + 1,) i64.
    read: opens the tape's `routing` as its frames in order, of a trace too long to hold: its arrays of rows are empty then, and
    `parts` reads them, each time anew.
    told: gate and score of every entry of `ids`, as far as they were read.
    """

    trace_id: str
    origin: str
    geometry: Geometry
    row_pass: NDArray[np.int32]
    row_layer: NDArray[np.int32]
    row_request: NDArray[np.int32]
    row_position: NDArray[np.int32]
    offsets: NDArray[np.int64]
    ids: NDArray[np.int32]
    pass_ids: NDArray[np.int64]
    pass_kind: NDArray[np.uint8]
    pass_tokens: NDArray[np.int64]
    member_offsets: NDArray[np.int64]
    members: NDArray[np.int64]
    read: Callable[[], Iterable[pl.DataFrame]] | None = None
    told: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)

    @property
    def n_keys(self) -> int:
        """Experts in the model: MoE layers x experts per layer."""
        return len(self.geometry.moe_layers) * self.geometry.n_experts

    @property
    def cycle_experts(self) -> int:
        """L x k: lookups of one decode token. A global LRU of up to (L - 1) x k experts hits nothing from token to token."""
        return len(self.geometry.moe_layers) * self.geometry.top_k

    def between(self, first: int, last: int) -> Trace:
        """Of the passes first..last-1, counted from 0."""
        begin, end = np.searchsorted(self.row_pass, np.array((first, last), np.int32))  # of its own type: it would be copied
        of_rows = {name: getattr(self, name)[begin:end] for name in ("row_layer", "row_request", "row_position")}
        of_passes = {name: getattr(self, name)[first:last] for name in ("pass_ids", "pass_kind", "pass_tokens")}
        ids, members = self.offsets[begin : end + 1], self.member_offsets[first : last + 1]
        return replace(
            self, row_pass=self.row_pass[begin:end] - first, offsets=ids - ids[0], ids=self.ids[ids[0] : ids[-1]],
            member_offsets=members - members[0], members=self.members[members[0] : members[-1]], **of_rows, **of_passes,
            told={name: values[ids[0] : ids[-1]] for name, values in self.told.items()},
        )  # fmt: skip

    @property
    def parts(self) -> Iterator[tuple[slice, Trace]]:
        """Which passes, and the trace of them: all of a tape that is not long at once. Where rows are read part by part, a part's
        arrays hold until the next one is taken. Raises as `trace_from_tables` does, and NotGrowing."""
        if self.read is None:
            yield from self._held or [(slice(0, self.pass_ids.size), self)]
            return
        rows, bounds = _Rows(replace(self, read=None), 0), self._bounds
        for frame in self.read():
            rows.add(frame)
            while bounds[0][1] <= rows.last[0]:  # later passes have begun
                at = bounds.pop(0)
                yield slice(*at), rows.trace.between(*at)
                rows.forget(at[1])
        rows.end()
        if not rows.is_growing:
            raise NotGrowing(f"tape {self.trace_id}: positions of its routing rows go back")
        yield from ((slice(*at), rows.trace.between(*at)) for at in bounds)

    @cached_property
    def _held(self) -> list[tuple[slice, Trace]]:
        """The parts of a trace that is held, the same ones each time, for what is kept of them; none where it is one part."""
        bounds = self._bounds
        return [(slice(*at), self.between(*at)) for at in bounds] if len(bounds) > 1 else []

    @property
    def _bounds(self) -> list[tuple[int, int]]:
        of_cells = np.arange(self.pass_ids.size) // max(1, CELLS // len(self.geometry.moe_layers))
        of_tokens = (np.cumsum(self.pass_tokens) - self.pass_tokens) // TOKENS
        starts = 1 + np.flatnonzero((of_cells[1:] != of_cells[:-1]) | (of_tokens[1:] != of_tokens[:-1]))
        return [*pairwise([0, *starts.tolist(), self.pass_ids.size])]

    def ids_of(self, rows: NDArray[np.integer]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Experts of these rows one after the other, and how many each row has."""
        widths = np.diff(self.offsets)[rows]
        first = np.repeat(self.offsets[rows] - (np.cumsum(widths) - widths), widths)
        return self.ids[first + np.arange(widths.sum())], widths


class NotGrowing(ValueError):
    """Only a trace that is held whole can tell whether a row is there twice."""


class _Column:
    """Values that come in parts, in one array: made as long as is told beforehand, longer where more come."""

    def __init__(self, dtype: type[np.generic], n: int) -> None:
        self._held, self.n = np.empty(n, dtype), 0

    def add(self, values: NDArray[Any]) -> None:
        n = self.n + values.size
        if n > self._held.size:
            self._held = np.append(self._held[: self.n], np.empty(n, self._held.dtype))
        self._held[self.n : n] = values
        self.n = n

    def forget(self, n: int) -> None:
        """The first n; what comes after them takes their place."""
        self.n -= n
        self._held[: self.n] = self._held[n : n + self.n]

    @property
    def values(self) -> NDArray[Any]:
        return self._held[: self.n]


class _Rows:
    """Routing rows that come in parts, in the order executed: compared with the passes and with those before them, and held.

    passes: a trace without rows. The rows fit its geometry, as a tape's reader sees to (warehouse/contradictions.py). Raises
    ValueError naming the row, counted over all parts.
    """

    def __init__(self, passes: Trace, n_rows: int) -> None:
        layers, members = passes.geometry.moe_layers, np.unique(passes.members)
        self._passes, self._n_forgotten, self._members = passes, 0, members
        self._columns = {name: _Column(np.int32, n_rows) for name in _OF_ROWS}
        self._ids, self._ends = _Column(np.int32, n_rows * passes.geometry.top_k), _Column(np.int64, n_rows + 1)
        self._ends.add(np.zeros(1))
        self._index_of = np.full(max(layers) + 1, -1, np.int32)
        self._index_of[list(layers)] = np.arange(len(layers))
        self._positions = np.full((members.size, len(layers)), -1, np.int32)
        self._state = np.array([-1, -1, 1], np.int64)

    @property
    def last(self) -> tuple[int, int]:
        """Index of the pass, and of the layer, of the last row."""
        return int(self._state[0]), int(self._state[1])

    @property
    def is_growing(self) -> bool:
        """No row is there twice, since the positions of every request in every layer only grow."""
        return bool(self._state[2])

    @property
    def trace(self) -> Trace:
        of_rows: dict[str, Any] = {name: column.values for name, column in self._columns.items()}
        return replace(self._passes, offsets=self._ends.values, ids=self._ids.values, **of_rows)

    def add(self, rows: pl.DataFrame) -> None:
        n, members = self._columns["row_pass"].n, self._members
        for name, column in self._columns.items():
            column.add(rows[_OF_ROWS[name]].to_numpy())
        experts = rows["expert_ids"].to_arrow()
        ends = pl.Series(experts.offsets).to_numpy()
        self._ends.add(self._ids.n + ends[1:] - ends[0])
        self._ids.add(pl.Series(experts.flatten()).to_numpy())
        row_pass, row_layer, request, position = (column.values[n:] for column in self._columns.values())
        if members.size != members.max(initial=-1) + 1:  # else ids that count from 0
            request = np.searchsorted(members, request).astype(np.int32)
        pass_id, of_trace = rows["pass_id"].to_numpy().astype(np.int64), self._passes.pass_ids
        if not (widths := rows["expert_ids"].list.len().fill_null(0).to_numpy()).all():  # ids that a policy rerouted may be null
            row = self._n_forgotten + n + int(np.argmin(widths))
            raise ValueError(f"tape {self._passes.trace_id}: routing row {row} names no expert; record or import it again")
        why = _take(of_trace, self._index_of, pass_id, request, position, row_pass, row_layer, self._positions, self._state)
        if why:
            row = self._n_forgotten + n + int(np.argmax(row_pass == -2))
            raise ValueError(f"tape {self._passes.trace_id}: routing row {row} {REASONS[why]}")

    def forget(self, n_passes: int) -> None:
        """The rows of the first passes."""
        n = int(np.searchsorted(self._columns["row_pass"].values, np.int32(n_passes)))
        n_ids, self._n_forgotten = int(self._ends.values[n]), self._n_forgotten + n
        for column in (*self._columns.values(), self._ends):
            column.forget(n)
        self._ids.forget(n_ids)
        self._ends.values[:] -= n_ids

    def end(self) -> None:
        if not self._n_forgotten + self._columns["row_pass"].n:
            raise ValueError(f"tape {self._passes.trace_id} has no routing rows; nothing to replay")


def trace_from_tables(
    trace_id: str,
    geometry: Geometry,
    origin: str,
    routing: pl.DataFrame | Iterable[pl.DataFrame],
    passes: pl.DataFrame,
    n_rows: int = 0,
) -> Trace:
    """Flat arrays of the tape's `routing` (whole, or its parts in order) and `passes` tables, in the order executed.

    n_rows: of routing, where it comes in parts and is long. The rows fit the geometry, as those of warehouse.recorded.Tape do.
    Raises ValueError naming the row on one that is there twice or out of order, a pass that is not listed, or an empty tape.
    """
    # A speculative tape's routing is that of the accepted path: draft passes are left out, verify passes count those tokens only.
    passes = passes.filter(pl.col("kind") != "draft").sort("pass_id")
    rows = _Rows(without_rows(trace_id, geometry, origin, passes), n_rows)
    for part in [routing] if isinstance(routing, pl.DataFrame) else routing:
        rows.add(part)
    rows.end()
    trace, is_verify = rows.trace, (passes["kind"] == "verify").to_numpy()
    if not rows.is_growing:
        _refuse_doubles(trace)
    counted = np.bincount(trace.row_pass, minlength=is_verify.size) // len(geometry.moe_layers)
    return replace(trace, pass_tokens=np.where(is_verify, counted, trace.pass_tokens))


def without_rows(
    trace_id: str, geometry: Geometry, origin: str, passes: pl.DataFrame, read: Callable[[], Iterable[pl.DataFrame]] | None = None
) -> Trace:
    """The passes, in order and with members, of a trace whose rows are added later, or read."""
    batch_sizes, none = passes["request_ids"].list.len().to_numpy().astype(np.int64), np.zeros(0, np.int32)
    return Trace(
        trace_id=trace_id,
        origin=origin,
        geometry=geometry,
        row_pass=none,
        row_layer=none,
        row_request=none,
        row_position=none,
        offsets=np.zeros(1, np.int64),
        ids=none,
        pass_ids=passes["pass_id"].to_numpy().astype(np.int64),
        pass_kind=np.where((passes["kind"] == "prefill").to_numpy(), PREFILL, DECODE).astype(np.uint8),
        pass_tokens=passes["n_tokens"].to_numpy().astype(np.int64),
        member_offsets=np.concatenate(([0], np.cumsum(batch_sizes))),
        members=passes["request_ids"].explode().to_numpy().astype(np.int64),
        read=read,
    )


def _refuse_doubles(trace: Trace) -> None:
    """The first row that repeats a token of a request in a layer, where positions that go back leave it open."""
    rows = pl.DataFrame({"request": trace.row_request, "position": trace.row_position, "layer": trace.row_layer})
    again = (~rows.to_struct().is_first_distinct()).arg_true()
    if len(again):
        raise ValueError(f"tape {trace.trace_id}: routing row {again[0]} is there twice; record or import it again")


NO_PASS, NOT_ORDERED = 1, 2
REASONS = {
    NO_PASS: "belongs to a pass that `passes` does not list",
    NOT_ORDERED: "is not ordered by pass and layer, as those before it; record or import it again",
}


@kernel("int64(int64[::1], int32[::1], int64[::1], int32[::1], int32[::1], int32[::1], int32[::1], int32[:, ::1], int64[::1])")
def _take(pass_ids, index_of, pass_id, request, position, row_pass, row_layer, positions, state):  # type: ignore[no-untyped-def]
    """Writes the indices of the rows' passes and layers (in place of them), and in `state` the last's and whether positions grow.

    Returns what is wrong with the first bad row, marked by pass -2, or 0. positions: the last of each request in each layer.
    """
    p, last_layer, is_growing = state[0], state[1], state[2]
    for row in range(pass_id.shape[0]):
        at, index, why = max(p, 0), index_of[row_layer[row]], 0
        while at < pass_ids.shape[0] and pass_ids[at] < pass_id[row]:
            at += 1
        if at == pass_ids.shape[0] or (pass_ids[at] > pass_id[row] and at > p):
            why = NO_PASS
        elif pass_ids[at] > pass_id[row] or (at == p and index < last_layer):
            why = NOT_ORDERED
        if why:
            row_pass[row] = -2
            return why
        row_pass[row], row_layer[row] = at, index
        p, last_layer = at, index
        if request[row] < 0 or request[row] >= positions.shape[0] or position[row] <= positions[request[row], index]:
            is_growing = 0
        else:
            positions[request[row], index] = position[row]
    state[0], state[1], state[2] = p, last_layer, is_growing
    return 0
