"""A tape's attention rows as an engine reads them: in pieces, grouped into events, checked for what a replay may rest on."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tokentape.warehouse.geometry import Geometry

COLUMNS = ("request_id", "position", "layer", "kv_head", "reduction", "n_queries", "key_positions", "mass", "rest")
PIECE_BYTES = 32 << 20  # of masses that a piece of the tape should hold
KINDS = ("prompt_row", "column_sum", "row")  # reductions that are followed, in the order in which a request has them
EQUAL_SCORES = 1e-3  # relative spread below which a prompt's scores count as all the same


@dataclass(frozen=True, eq=False)
class AttentionTape:
    """pieces: opens the rows of table `attention` anew, in order, some at a time. requests: id -> (prompt tokens, inputs in all).

    notes: `attention` of the tape's manifest.
    """

    trace_id: str
    origin: str
    geometry: Geometry
    notes: Mapping[str, Any]
    requests: Mapping[int, tuple[int, int]]
    pieces: Callable[[], Iterable[pl.DataFrame]]

    @property
    def layers(self) -> tuple[int, ...]:
        """Those with keys and values, in whose order the rest of the replay counts."""
        return self.geometry.attending

    @property
    def n_heads(self) -> int:
        """KV heads whose rows are recorded; 1 with MLA."""
        return int(self.notes["n_kv_heads"])

    @property
    def row_sum(self) -> float:
        """What a row sums to: its query heads; negative where learned sinks take a share."""
        heads = float(self.notes["query_heads_per_kv_head"])
        return -heads if self.notes.get("has_sinks") else heads


@dataclass(frozen=True, eq=False)
class Events:
    """Prompts, or decoded queries, of one request in a piece, n_heads rows each: layers (m,) i32 by their place in the tape's,
    now (m,) i64, flat rows (events.py). kind: of KINDS."""

    request_id: int
    kind: str
    layers: NDArray[np.int32]
    now: NDArray[np.int64]
    mass_bounds: NDArray[np.int64]
    mass: NDArray[np.float32]
    key_bounds: NDArray[np.int64]
    keys: NDArray[np.int32]
    rest: NDArray[np.float32]


def events_of(tape: AttentionTape) -> Iterator[Events]:
    """The tape's events, request by request within a piece, prompts first; one that a piece cuts in two is put together again.
    Nodes off a draft's accepted path are left out.

    Raises ValueError naming the request for heads that are missing or out of order, or a request that the tape does not list.
    """
    if str(tape.notes["keep"]).startswith("block"):
        raise ValueError(
            f"tape {tape.trace_id} sums its attention over blocks: single tokens cannot be followed; "
            "record it with --attention full or top:M"
        )
    heads, left = tape.n_heads, None
    for piece in tape.pieces():
        frame = piece.select(COLUMNS)
        if left is not None:
            frame = pl.concat([left, frame])
        whole = len(frame) // heads * heads
        left = frame[whole:] if whole < len(frame) else None
        yield from _grouped(tape, frame[:whole])
    if left is not None:
        raise ValueError(f"tape {tape.trace_id}: its last attention event has {len(left)} of {heads} heads; record it again")


def _grouped(tape: AttentionTape, frame: pl.DataFrame) -> Iterator[Events]:
    heads = tape.n_heads
    keys = {name: frame[name].to_numpy().reshape(-1, heads) for name in ("request_id", "position", "layer", "kv_head")}
    same = all((keys[name] == keys[name][:, :1]).all() for name in ("request_id", "position", "layer"))
    if not same or (keys["kv_head"] != np.arange(heads)).any():
        raise ValueError(f"tape {tape.trace_id}: attention rows lack the {heads} heads of each layer in order; record it again")
    for request_id in np.unique(keys["request_id"]).tolist():
        if request_id not in tape.requests:
            raise ValueError(f"tape {tape.trace_id}: attention of request {request_id}, which `requests` does not list")
        for of in KINDS:
            part = frame.filter((pl.col("request_id") == request_id) & (pl.col("reduction") == of))
            if len(part):
                mass, listed = flat(part["mass"], np.float32), flat(part["key_positions"], np.int32)
                layers, now = (part[name].gather_every(heads).to_numpy() for name in ("layer", "position"))
                rest = part["rest"].to_numpy().astype(np.float32)
                layers = np.searchsorted(tape.layers, layers)
                yield Events(request_id, of, layers.astype(np.int32), now.astype(np.int64), *mass, *listed, rest)


def flat(column: pl.Series, dtype: type) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """(bounds (n + 1,), values) of a column of lists; null: an empty list."""
    lengths = column.list.len().fill_null(0).to_numpy().astype(np.int64)
    values = column.drop_nulls().explode(empty_as_null=False).to_numpy() if lengths.any() else np.zeros(0)
    return np.concatenate(([0], np.cumsum(lengths))), np.ascontiguousarray(values, dtype)


def prompt_mass(tape: AttentionTape, events: Events, e: int) -> NDArray[np.float64]:
    """(n_heads, c) f64 of prompt event e over its c tokens: sums over all its queries, or of the last of them alone.

    Raises ValueError where sums are not column sums: a key that no query saw has none, and row sums are all the same.
    """
    c, heads = int(events.now[e]) + 1, tape.n_heads
    dense = np.zeros((heads, c))
    for h in range(heads):
        row = e * heads + h
        mass = events.mass[events.mass_bounds[row] : events.mass_bounds[row + 1]]
        keys = events.keys[events.key_bounds[row] : events.key_bounds[row + 1]]
        dense[h, keys if keys.size else slice(0, mass.size)] = mass
    where = f"tape {tape.trace_id}: request {events.request_id}, layer {events.layers[e]}"
    if not np.isfinite(dense).all() or (dense < 0).any():
        raise ValueError(f"{where}: prompt attention is NaN or negative; record it again")
    if events.kind == "column_sum" and c >= 4 and bool((np.ptp(dense, axis=1) < EQUAL_SCORES * dense.mean(axis=1)).any()):
        raise ValueError(f"{where}: every prompt token scores the same, as sums over keys do; give sums over queries")
    return dense
