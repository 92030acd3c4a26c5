"""Lookups in the order the engine makes them: a trace under stated semantics becomes keys grouped into events.

A key is layer x experts + expert. An event is one (pass, layer): in decode the experts of the batch, in layer-major prefill all
experts the prompt needs in that layer, each once. Repeats within an event are dropped, keys stand in order of LAST mention: an
event looks all its keys up before anything leaves, so this gives the same hits and the same recency as looking repeats up again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from replay.semantics import Semantics
from replay.trace import PREFILL, Trace


@dataclass(frozen=True, eq=False)
class Stream:
    """keys (n,) i32; offsets (m + 1,) i64 event bounds; event_pass (m,) i32; segments (s + 1,) i64 events between cold starts."""

    keys: NDArray[np.int32]
    offsets: NDArray[np.int64]
    event_pass: NDArray[np.int32]
    segments: NDArray[np.int64]

    def between(self, first: int, last: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Keys and event bounds (from 0) of the events first..last-1."""
        start, end = self.offsets[first], self.offsets[last]
        return self.keys[start:end], self.offsets[first : last + 1] - start


@njit("int64(int32[::1], int64[::1], int64[::1], int32[::1], int64[::1], int64)", cache=True, nogil=True)
def _unique_keys(keys, row_offsets, event_rows, out, out_offsets, n_keys):  # type: ignore[no-untyped-def]
    """Fills `out` with each event's distinct keys in order of last mention; returns how many there are.

    keys: all rows' keys; row_offsets: bounds of a row's keys; event_rows (m + 1,): of an event's rows; out_offsets (m + 1,).
    """
    seen = np.full(n_keys, -1, np.int64)
    n = 0
    for e in range(event_rows.shape[0] - 1):
        out_offsets[e] = n
        for i in range(row_offsets[event_rows[e + 1]] - 1, row_offsets[event_rows[e]] - 1, -1):
            key = keys[i]
            if seen[key] != e:
                seen[key] = e
                out[n] = key
                n += 1
        out[out_offsets[e] : n] = out[out_offsets[e] : n][::-1].copy()
    out_offsets[event_rows.shape[0] - 1] = n
    return n


def stream(trace: Trace, semantics: Semantics) -> Stream:
    """The lookups of `trace` under `semantics`. Pure; memory about 12 B per recorded expert id."""
    kind = trace.pass_kind[trace.row_pass]
    widths = np.diff(trace.offsets)
    keys = trace.ids + np.repeat(trace.row_layer, widths).astype(np.int32) * np.int32(trace.geometry.n_experts)
    row_offsets, row_pass, row_layer = trace.offsets, trace.row_pass, trace.row_layer
    starts = np.ones(row_pass.size, np.bool_)
    starts[1:] = (np.diff(row_pass) != 0) | (np.diff(row_layer) != 0)
    if semantics.prefill == "token-major":
        token = np.where(kind == PREFILL, trace.row_position, 0)
        order = np.lexsort((row_layer, token, row_pass))
        first = np.repeat(trace.offsets[:-1][order], widths[order])
        row_offsets = np.concatenate(([0], np.cumsum(widths[order])))
        keys = keys[first + np.arange(keys.size) - np.repeat(row_offsets[:-1], widths[order])]
        row_pass, row_layer, starts = row_pass[order], row_layer[order], starts[order] | (kind[order] == PREFILL)
    event_rows = np.concatenate((np.flatnonzero(starts), [row_pass.size])).astype(np.int64)
    out, offsets = np.empty(keys.size, np.int32), np.empty(event_rows.size, np.int64)
    n = _unique_keys(keys, row_offsets, event_rows, out, offsets, trace.n_keys)
    event_pass = row_pass[event_rows[:-1]]
    n_events = event_pass.size
    if semantics.start == "cold":
        request = trace.members[trace.member_offsets[event_pass]]  # the first of the batch
        segments = np.concatenate(([0], np.flatnonzero(np.diff(request)) + 1, [n_events]))
    else:
        segments = np.array([0, n_events])
    return Stream(out[:n].copy(), offsets, event_pass, segments.astype(np.int64))
