"""Lookups in the order the engine makes them: a trace under stated semantics becomes keys grouped into events.

A key is layer x experts + expert. An event is one (pass, layer): in decode the experts of the batch, in layer-major prefill all
experts the prompt needs in that layer, each once. Repeats within an event are dropped, keys stand in order of LAST mention: where
an event looks all its keys up before anything leaves (atomic), this gives the same hits and the same recency as looking repeats
up again. Serial lookup takes the keys in that order one by one; for a single token it is the order of weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.kernels import F32, I32, I64, int64, kernel, uint64, void
from tokentape.replay.semantics import Semantics
from tokentape.replay.trace import PREFILL, Trace


@dataclass(frozen=True, eq=False)
class Stream:
    """keys (n,) i32; offsets (m + 1,) i64 event bounds; event_pass (m,) i32; segments (s + 1,) i64 events between cold starts.
    told: of every key the largest gate or score of its event's tokens (protocol.GIVEN)."""

    keys: NDArray[np.int32]
    offsets: NDArray[np.int64]
    event_pass: NDArray[np.int32]
    segments: NDArray[np.int64]
    told: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)

    def between(self, first: int, last: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Keys and event bounds (from 0) of the events first..last-1."""
        start, end = self.offsets[first], self.offsets[last]
        return self.keys[start:end], self.offsets[first : last + 1] - start

    def of(self, passes: slice) -> Stream:
        """Of some passes of a stream that is all one segment, counted from the first of them."""
        first, last = np.searchsorted(self.event_pass, np.array((passes.start, passes.stop), np.int32))
        keys, offsets = self.between(first, last)
        return Stream(keys, offsets, self.event_pass[first:last] - np.int32(passes.start), np.array([0, last - first]))


@kernel(int64(I32, I64, I32, I64, I64, int64, int64, I32, I64))
def _unique_keys(ids, row_offsets, row_layer, order, event_rows, n_experts, n_keys, out, out_offsets):  # type: ignore[no-untyped-def]
    """Fills `out` with each event's distinct keys in order of last mention; returns how many there are.

    ids: all rows' experts, bounded by row_offsets; order: rows in the order of lookup, empty: as they are; event_rows (m + 1,):
    bounds of an event's rows in that order; out_offsets (m + 1,).
    """
    seen = np.full(n_keys, -1, np.int64)
    n = 0
    for e in range(event_rows.shape[0] - 1):
        out_offsets[e] = n
        if event_rows[e + 1] == event_rows[e] + 1:  # of one token, whose experts are distinct
            row = order[event_rows[e]] if order.shape[0] else event_rows[e]
            first_key, begin, end = row_layer[row] * n_experts, uint64(row_offsets[row]), uint64(row_offsets[row + 1])
            for i in range(begin, end):
                out[uint64(n) + i - begin] = first_key + ids[i]
            n += int64(end - begin)
            continue
        for r in range(event_rows[e + 1] - 1, event_rows[e] - 1, -1):
            row = order[r] if order.shape[0] else r
            first_key = row_layer[row] * n_experts
            for i in range(row_offsets[row + 1] - 1, row_offsets[row] - 1, -1):
                key = first_key + ids[i]
                if seen[key] != e:
                    seen[key] = e
                    out[n] = key
                    n += 1
        first = out_offsets[e]
        for i in range((n - first) // 2):
            out[first + i], out[n - 1 - i] = out[n - 1 - i], out[first + i]
    out_offsets[event_rows.shape[0] - 1] = n
    return n


@kernel(void(I32, I64, I32, I64, I64, int64, int64, I32, I64, F32, F32))
def _largest(ids, row_offsets, row_layer, order, event_rows, n_experts, n_keys, keys, offsets, values, out):  # type: ignore[no-untyped-def]
    """Fills `out` with the largest of `values` (of every entry of ids) that an event has of each of its keys."""
    place = np.zeros(n_keys, np.int64)
    for e in range(event_rows.shape[0] - 1):
        for i in range(offsets[e], offsets[e + 1]):
            place[keys[i]], out[i] = i, -np.inf
        for r in range(event_rows[e], event_rows[e + 1]):
            row = order[r] if order.shape[0] else r
            for i in range(row_offsets[row], row_offsets[row + 1]):
                at = place[row_layer[row] * n_experts + ids[i]]
                out[at] = max(out[at], values[i])


def stream(trace: Trace, semantics: Semantics, needs: Sequence[str] = ()) -> Stream:
    """The lookups of `trace` under `semantics`; needs: of GIVEN. Pure; about 4 B per lookup and 24 B per (token, layer)."""
    row_pass, row_layer = trace.row_pass, trace.row_layer
    starts = np.ones(row_pass.size, np.bool_)
    starts[1:] = (row_pass[1:] != row_pass[:-1]) | (row_layer[1:] != row_layer[:-1])
    order = np.zeros(0, np.int64)
    if semantics.prefill == "token-major":
        prefill = trace.pass_kind[row_pass] == PREFILL
        token = np.where(prefill, trace.row_position, 0)
        request = np.where(prefill, trace.row_request, 0)
        order = np.lexsort((row_layer, token, request, row_pass))
        row_pass, starts = row_pass[order], starts[order] | prefill[order]
    event_rows = np.append(np.flatnonzero(starts), row_pass.size)
    out, offsets = np.empty(trace.ids.size, np.int32), np.empty(event_rows.size, np.int64)
    rows = (trace.ids, trace.offsets, row_layer, order, event_rows, trace.geometry.n_experts, trace.n_keys)
    n = _unique_keys(*rows, out, offsets)
    told = {name: np.empty(n, np.float32) for name in needs}
    for name, largest in told.items():
        _largest(*rows, out, offsets, trace.told[name], largest)
    event_pass = row_pass[event_rows[:-1]]
    segments = _cold_starts(trace, event_pass) if semantics.start == "cold" else np.array([0, event_pass.size])
    return Stream(out[:n], offsets, event_pass, segments.astype(np.int64), told)


def _cold_starts(trace: Trace, event_pass: NDArray[np.int32]) -> NDArray[np.int64]:
    """Bounds of the events between cold starts: a pass before which every request has ended starts cold."""
    n = trace.pass_ids.size
    requests, of_member = np.unique(trace.members, return_inverse=True)
    at = np.repeat(np.arange(n), np.diff(trace.member_offsets))
    first, last = np.full(requests.size, n), np.zeros(requests.size, np.int64)
    np.minimum.at(first, of_member, at)
    np.maximum.at(last, of_member, at)
    going_on = np.cumsum(np.bincount(first + 1, minlength=n + 1) - np.bincount(last + 1, minlength=n + 1))[:n]
    new_pass = np.append(True, event_pass[1:] != event_pass[:-1])
    return np.append(np.flatnonzero(new_pass & (going_on == 0)[event_pass]), event_pass.size)
