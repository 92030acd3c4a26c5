"""A tape's routing as flat arrays: what every engine of this room reads. Made once per tape, shared by all replays of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
CELLS = 1 << 16  # passes x MoE layers of a part: what is computed of them stays in a processor's cache


@dataclass(frozen=True, eq=False)
class Trace:
    """Rows are (token, MoE layer) in the order executed: by pass, then layer, then token.

    row_pass, row_layer (index into geometry.moe_layers), row_request, row_position: (n,) i32. offsets: (n + 1,) i64 bounds of a
    row's experts in `ids`. ids: i32 logical expert ids by falling weight. pass_kind (p,) u8: PREFILL or DECODE; pass_tokens (p,)
    i64; pass_ids (p,) i64 as on the tape. members: i64 request ids of a pass's batch, bounded by member_offsets (p + 1,) i64.
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

    @cached_property
    def parts(self) -> list[tuple[slice, Trace]]:
        """Which passes, and the trace of them: all of a tape that is not long at once."""
        n, step = self.pass_ids.size, max(1, CELLS // len(self.geometry.moe_layers))
        if n <= step:
            return [(slice(0, n), self)]
        return [(slice(*at), self.between(*at)) for at in pairwise([*range(0, n, step), n])]

    def ids_of(self, rows: NDArray[np.integer]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Experts of these rows one after the other, and how many each row has."""
        widths = np.diff(self.offsets)[rows]
        first = np.repeat(self.offsets[rows] - (np.cumsum(widths) - widths), widths)
        return self.ids[first + np.arange(widths.sum())], widths


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

    @property
    def values(self) -> NDArray[Any]:
        return self._held[: self.n]


def trace_from_tables(
    trace_id: str,
    geometry: Geometry,
    origin: str,
    routing: pl.DataFrame | Iterable[pl.DataFrame],
    passes: pl.DataFrame,
    n_rows: int = 0,
) -> Trace:
    """Flat arrays of the tape's `routing` (whole, or its parts in order) and `passes` tables, in the order executed.

    n_rows: of routing, where it comes in parts and is long. Raises ValueError naming the row on an expert out of range or named
    twice, an empty row, a row that is there twice, a layer that is not a MoE layer, a pass that is not listed, or an empty tape.
    """
    whole: dict[str, type[np.generic]] = {"pass_id": np.int64, "layer": np.int32, "request_id": np.int32, "position": np.int32}
    columns = {name: _Column(dtype, n_rows) for name, dtype in whole.items()}
    held_ids, ends = _Column(np.int32, n_rows * geometry.top_k), _Column(np.int64, n_rows + 1)
    ends.add(np.zeros(1))
    for part in [routing] if isinstance(routing, pl.DataFrame) else routing:
        ends.add(held_ids.n + np.cumsum(part["expert_ids"].list.len().to_numpy(), dtype=np.int64))
        held_ids.add(part["expert_ids"].explode(empty_as_null=False).to_numpy())
        for name, column in columns.items():
            column.add(part[name].to_numpy())
    row_pass_id, row_layer_id, row_request, row_position = (column.values for column in columns.values())
    ids, offsets = held_ids.values, ends.values
    if not row_pass_id.size:
        raise ValueError(f"tape {trace_id} has no routing rows; nothing to replay")
    # A speculative tape's routing is that of the accepted path: draft passes are left out, verify passes count those tokens only.
    passes = passes.filter(pl.col("kind") != "draft").sort("pass_id")
    pass_ids = passes["pass_id"].to_numpy().astype(np.int64)
    runs = np.append(np.flatnonzero(np.append(True, row_pass_id[1:] != row_pass_id[:-1])), row_pass_id.size)
    at = np.searchsorted(pass_ids, row_pass_id[runs[:-1]])
    known = (at < pass_ids.size) & (pass_ids[np.minimum(at, pass_ids.size - 1)] == row_pass_id[runs[:-1]])
    if not known.all():
        raise ValueError(f"tape {trace_id}: routing row {runs[np.argmin(known)]} belongs to a pass that `passes` does not list")
    row_pass = np.repeat(at.astype(np.int32), np.diff(runs))
    moe = np.full(max(int(row_layer_id.max()), *geometry.moe_layers) + 1, -1, np.int32)
    moe[list(geometry.moe_layers)] = np.arange(len(geometry.moe_layers))
    row_layer = moe[row_layer_id]
    if (row_layer < 0).any():
        bad = int(np.argmin(row_layer))
        raise ValueError(f"tape {trace_id}: routing row {bad} is in layer {row_layer_id[bad]}, which the manifest calls dense")
    if ids.size and (ids.max() >= geometry.n_experts):
        bad = int(np.searchsorted(offsets, int(np.argmax(ids >= geometry.n_experts)), side="right")) - 1
        found, known_experts = ids.max(), geometry.n_experts
        raise ValueError(f"tape {trace_id}: routing row {bad} names expert {found}; the model has {known_experts} per layer")
    bad = _first_bad_row(ids, offsets)
    if bad >= 0:
        row = ids[offsets[bad] : offsets[bad + 1]].tolist()
        what = f"names an expert twice ({row})" if row else "names no expert"
        raise ValueError(f"tape {trace_id}: routing row {bad} {what}; record or import it again")
    kinds = passes["kind"].to_numpy()
    batch_sizes = passes["request_ids"].list.len().to_numpy().astype(np.int64)
    if batch_sizes.min() == 0:
        raise ValueError(f"tape {trace_id}: pass {pass_ids[int(np.argmin(batch_sizes))]} has no member requests")
    is_later = (row_pass[1:] > row_pass[:-1]) | ((row_pass[1:] == row_pass[:-1]) & (row_layer[1:] >= row_layer[:-1]))
    if not is_later.all():
        raise ValueError(f"tape {trace_id}: routing rows are not ordered by pass and layer; record or import it again")
    trace = Trace(
        trace_id=trace_id,
        origin=origin,
        geometry=geometry,
        row_pass=row_pass,
        row_layer=row_layer,
        row_request=row_request,
        row_position=row_position,
        offsets=offsets,
        ids=ids,
        pass_ids=pass_ids,
        pass_kind=np.where(kinds == "prefill", PREFILL, DECODE).astype(np.uint8),
        pass_tokens=np.where(
            kinds == "verify",
            np.bincount(row_pass, minlength=pass_ids.size) // len(geometry.moe_layers),
            passes["n_tokens"].to_numpy().astype(np.int64),
        ),
        member_offsets=np.concatenate(([0], np.cumsum(batch_sizes))),
        members=passes["request_ids"].explode().to_numpy().astype(np.int64),
    )
    twice = _first_double(trace)
    if twice is not None:
        raise ValueError(f"tape {trace_id}: routing row {twice} is there twice; record or import it again")
    return trace


def _first_double(trace: Trace) -> int | None:
    """The first row that repeats a token of a request in a layer. Positions that only grow repeat none; others are compared."""
    known, n_layers = np.unique(trace.members), len(trace.geometry.moe_layers)
    is_dense = known[-1] + 1 == known.size  # as ids are that count from 0
    request = trace.row_request if is_dense else np.searchsorted(known, trace.row_request).astype(np.int32)
    request = np.clip(request, 0, known.size - 1)
    if _is_growing(request, trace.row_layer, trace.row_position, np.full((known.size, n_layers), -1, np.int32)):
        return None
    rows = pl.DataFrame({"request": trace.row_request, "position": trace.row_position, "layer": trace.row_layer})
    again = (~rows.to_struct().is_first_distinct()).arg_true()
    return int(again[0]) if len(again) else None


@kernel("boolean(int32[::1], int32[::1], int32[::1], int32[:, ::1])")
def _is_growing(request, layer, position, last):  # type: ignore[no-untyped-def]
    for row in range(request.shape[0]):
        if position[row] <= last[request[row], layer[row]]:
            return False
        last[request[row], layer[row]] = position[row]
    return True


@kernel("int64(int32[::1], int64[::1])")
def _first_bad_row(ids, offsets):  # type: ignore[no-untyped-def]
    for row in range(offsets.shape[0] - 1):
        if offsets[row] == offsets[row + 1]:
            return row
        for i in range(offsets[row], offsets[row + 1]):
            for j in range(offsets[row], i):
                if ids[i] == ids[j]:
                    return row
    return -1
