"""Routed rows by token: sorted once, and whatever is asked per token or per request is read off the order.

They are sorted in blocks of whole requests: what a block needs stays in the processor's cache, where the same steps over millions
of rows at once would spend most of their time on fresh memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokentape.capture.importers.limits import BadImport

if TYPE_CHECKING:
    from tokentape.capture.importers.rows import RoutedRows

BLOCK_ROWS = 1 << 16


@dataclass(frozen=True)
class Grouped:
    """The order of n rows by request, position and layer, with T tokens and R requests in it.

    order: (n,) rows in that order. starts: (T,) place in the order of each token's first row; first: (T,) that row.
    request_ids: (R,) the requests, rising; bounds: (R + 1,) where their tokens begin, and T. repeated: the first row that was
    already given; moved: the first that runs in another pass than its token's row before it; None where there is none.
    """

    order: np.ndarray
    starts: np.ndarray
    first: np.ndarray
    request_ids: np.ndarray
    bounds: np.ndarray
    repeated: int | None
    moved: int | None

    @classmethod
    def of(cls, rows: RoutedRows) -> Grouped:
        """Raises BadImport if positions are so far apart that request, position and layer do not fit 63 bits."""
        n_layers, n_positions = int(rows.layer.max()) + 1, int(rows.position.max()) + 1
        n_requests = int(rows.request_id.max()) + 1
        if n_requests * n_positions * n_layers >= 1 << 63:
            raise BadImport(f"{n_requests} requests with positions up to {n_positions}; the trace is damaged: record it again")
        requests, order = rows.request_id, np.arange(len(rows))
        if (requests[1:] < requests[:-1]).any():
            order = np.argsort(requests, kind="stable")
            requests = requests[order]
        begins = run_starts(requests)
        edges = np.append(begins, len(rows))
        edges = edges[np.searchsorted(begins, np.arange(0, len(rows) + BLOCK_ROWS, BLOCK_ROWS))]
        edges = edges[run_starts(edges)]  # np.unique would import numpy.ma
        starts: list[np.ndarray] = []
        repeated: list[int] = []
        moved: list[int] = []
        for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            block = order[begin:end]
            code = (requests[begin:end].astype(np.int64) * n_positions + rows.position[block]) * n_layers + rows.layer[block]
            ordered = np.argsort(code, kind="stable")  # stable: nearly sorted rows take linear time
            block[:], code = block[ordered], code[ordered]
            starts.append(begin + run_starts(code // n_layers))
            repeated += block[1:][code[1:] == code[:-1]][:1].tolist()
            passes = rows.pass_id[block]
            is_moved = passes[1:] != passes[:-1]
            is_moved[starts[-1][1:] - begin - 1] = False
            moved += block[1:][is_moved][:1].tolist()
        places = np.concatenate(starts)
        bounds = np.searchsorted(places, np.append(begins, len(rows)))
        faults = (next(iter(found), None) for found in (repeated, moved))
        return cls(order, places, order[places], requests[begins], bounds, *faults)


def run_starts(values: np.ndarray) -> np.ndarray:
    """Where a run of equal values begins."""
    return np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1])))
