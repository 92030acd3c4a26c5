"""Routed rows as any importer hands them over, and the tape they become.

An importer parses its format into `RoutedRows` in the order the engine executed them; `write_import` checks them (checks.py),
adds the other tables and writes one tape. Nothing reaches the store before every check has passed.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from tokentape.capture.importers import checks
from tokentape.capture.importers.limits import BadImport
from tokentape.warehouse.geometry import Geometry
from tokentape.warehouse.tape import Manifest, Store

# A trace without routing says nothing of the model.
NO_MODEL = Geometry(architecture="unknown", n_layers=0, hidden=0, n_heads=0, n_kv_heads=0, head_dim=0, vocab=0)


@dataclass(frozen=True)
class RoutedRows:
    """n rows, one per (token, MoE layer), in the order executed: by pass, layer, then token as the pass held them.

    request_id, position, layer, pass_id: (n,) integers; a pass holds tokens of one request. is_decode: (n,) bool.
    expert_ids: (n, k) integers by falling weight. gate_weights: (n, k) floats or None. residency: (n, k) u8 or None.
    """

    request_id: np.ndarray
    position: np.ndarray
    layer: np.ndarray
    pass_id: np.ndarray
    is_decode: np.ndarray
    expert_ids: np.ndarray
    gate_weights: np.ndarray | None = None
    residency: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.layer)

    @cached_property
    def grouped(self) -> Grouped:
        return Grouped.of(self)


@dataclass(frozen=True)
class Grouped:
    """Rows sorted once, by request, position and layer; whatever is asked per token or per request is read off the order.

    order: (n,) the rows in that order, code: (n,) their keys, (request * n_positions + position) * n_layers + layer. Of each
    token: starts, its first place in the order, and first, that row. request_ids: (R,) the requests, rising. expert_ids: (n, k)
    u16 in that order, right once they were found in range.
    """

    order: np.ndarray
    code: np.ndarray
    n_positions: int
    n_layers: int
    starts: np.ndarray
    first: np.ndarray
    request_ids: np.ndarray
    expert_ids: np.ndarray

    @classmethod
    def of(cls, rows: RoutedRows) -> Grouped:
        """Raises BadImport if positions are so far apart that request, position and layer do not fit 63 bits."""
        n_layers, n_positions = int(rows.layer.max()) + 1, int(rows.position.max()) + 1
        n_requests = int(rows.request_id.max()) + 1
        if n_requests * n_positions * n_layers >= 1 << 63:
            raise BadImport(f"{n_requests} requests with positions up to {n_positions}; the trace is damaged: record it again")
        code = (rows.request_id.astype(np.int64) * n_positions + rows.position) * n_layers + rows.layer
        order = np.argsort(code, kind="stable")  # stable: nearly sorted rows take linear time
        code = code[order]
        starts = _starts(code // n_layers)
        first = order[starts]
        requests = rows.request_id[first]
        ids = rows.expert_ids.astype(np.uint16)[order]
        return cls(order, code, n_positions, n_layers, starts, first, requests[_starts(requests)], ids)


def as_executed(request_id: np.ndarray, is_decode: np.ndarray, layer: np.ndarray, position: np.ndarray) -> np.ndarray:
    """Pass of each row where rows stand as they ran: a new one at another request or phase, at a layer that falls back (an engine
    split the prompt), and at every decoded token."""
    starts = (np.diff(request_id) != 0) | (np.diff(is_decode) != 0) | (np.diff(layer) < 0)
    starts |= is_decode[1:] & (np.diff(position) != 0)
    return np.concatenate(([0], np.cumsum(starts)))


def _starts(values: np.ndarray) -> np.ndarray:
    """Where a run of equal values begins."""
    return np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1])))


@dataclass(frozen=True)
class Source:
    """Where the rows come from. token_ids: input ids per request, prompt first, where the format has them."""

    path: Path  # the first of several files
    content: tuple[bytes, ...]  # bytes of every file that decides the tape
    model_id: str
    geometry: Geometry
    model_top_k: int | None  # of the published model, where known
    settings: dict[str, Any]
    token_ids: dict[int, np.ndarray] | None = None
    n_output_tokens: dict[int, int] | None = None  # where it is more than the rows of decode passes
    flags: dict[str, Any] | None = None  # findings of the parser itself
    origins: tuple[str, ...] = ()  # where each request stands, for error lines
    dataset: str = "unknown"

    @cached_property
    def trace_id(self) -> str:
        """Slug of the file's name and 8 hex digits of what it holds: the same file is the same tape."""
        slug = re.sub(r"[^a-z0-9]+", "-", self.path.stem.lower()[:80]).strip("-") or "trace"
        digest = hashlib.sha256(b"\0".join(self.content)).hexdigest()
        return f"{slug}-{digest[:8]}"


def write_import(store: Store, source: Source, rows: RoutedRows) -> str:
    """Writes the tape and returns its id; a tape of the same file that is already there stays as it is.

    Raises BadImport, with the store unchanged, if the rows break the tape's contract.
    """
    checks.reject(rows, source)
    if store.writer(source.trace_id).is_finished:
        return source.trace_id
    first = rows.grouped.first
    tables = {
        "requests": _requests(rows, first, source),
        "tokens": _tokens(rows, first, source.token_ids or {}),
        "passes": _passes(rows, first),
        "routing": _routing(rows),
    }
    return write_tape(store, source, tables, checks.findings(rows, source) | (source.flags or {}))


def write_tape(store: Store, source: Source, tables: dict[str, pa.Table], flags: dict[str, Any]) -> str:
    """Writes the tables as one tape and returns its id. One of the same file that is there stays; a failure leaves none."""
    writer = store.writer(source.trace_id)
    if writer.is_finished:
        return source.trace_id
    writer.discard()
    try:
        writer.write_shard(0, tables)
        writer.finish(
            Manifest(
                trace_id=source.trace_id,
                origin="imported",
                source=source.path.name,
                model_id=source.model_id,
                dataset=source.dataset,
                geometry=source.geometry,
                tables=tuple(tables),
                rows={name: table.num_rows for name, table in tables.items()},
                n_shards=1,
                settings=source.settings,
                flags=flags,
                versions={"numpy": np.__version__, "polars": pl.__version__, "pyarrow": pa.__version__},
                created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
            )
        )
    except BaseException:
        writer.discard()
        raise
    return source.trace_id


def _requests(rows: RoutedRows, first: np.ndarray, source: Source) -> pa.Table:
    ids, requests, decode = rows.grouped.request_ids, rows.request_id[first], rows.is_decode[first]
    begins = np.searchsorted(requests, ids)
    n_output = np.add.reduceat(decode, begins, dtype=np.int64)
    n_prompt = np.diff(begins, append=len(requests)) - n_output
    stated, known = source.n_output_tokens or {}, source.token_ids or {}
    prompts = zip((known.get(i) for i in ids.tolist()), n_prompt.tolist(), strict=True)
    hashes = [None if ids is None else hashlib.sha256(ids[:n].astype("<i4").tobytes()).hexdigest() for ids, n in prompts]
    return pa.table(
        {
            "request_id": ids,
            "dataset": [source.dataset] * len(ids),
            "arrival_s": np.zeros(len(ids)),
            "n_prompt_tokens": n_prompt,
            "n_output_tokens": [stated.get(i, n) for i, n in zip(ids.tolist(), n_output.tolist(), strict=True)],
            "prompt_sha256": pa.array(hashes, pa.string()),
        }
    )


def _tokens(rows: RoutedRows, first: np.ndarray, known: dict[int, np.ndarray]) -> pa.Table:
    requests, positions = rows.request_id[first], rows.position[first]
    ids, is_known = np.zeros(len(first), np.int32), np.zeros(len(first), bool)
    for request, of_request in known.items():
        begin, end = np.searchsorted(requests, (request, request + 1))
        ids[begin:end], is_known[begin:end] = of_request[positions[begin:end]], True
    return pa.table(
        {
            "request_id": requests,
            "position": positions,
            "token_id": pa.array(ids, mask=~is_known),
            "phase": _phases(rows.is_decode[first]),
            "pass_id": rows.pass_id[first],
            "nll": pa.nulls(len(first), pa.float32()),
        }
    )


def _phases(is_decode: np.ndarray) -> pa.Array:
    return pa.array(["prefill", "decode"]).take(pa.array(is_decode.astype(np.int8)))


def _passes(rows: RoutedRows, first: np.ndarray) -> pa.Table:
    begins = _starts(rows.pass_id)  # rows stand in the order of the passes
    pass_ids = rows.pass_id[begins]
    return pa.table(
        {
            "pass_id": pass_ids,
            "kind": _phases(rows.is_decode[begins]),
            "n_tokens": np.bincount(rows.pass_id[first])[pass_ids],
            "request_ids": _lists(rows.request_id[begins].astype(np.uint32)[:, None]),
            "policy_state": pa.nulls(len(begins), pa.string()),
        }
    )


def _routing(rows: RoutedRows) -> pa.Table:
    weights = rows.gate_weights
    columns = {
        "request_id": rows.request_id.astype(np.uint32),
        "position": rows.position.astype(np.int32),
        "layer": rows.layer.astype(np.uint16),
        "pass_id": rows.pass_id.astype(np.uint32),
        "expert_ids": _lists(rows.expert_ids.astype(np.uint16)),
        "gate_weights": pa.nulls(len(rows), pa.list_(pa.float32())) if weights is None else _lists(weights.astype(np.float32)),
    }
    if rows.residency is not None:
        columns["residency"] = _lists(rows.residency.astype(np.uint8))
    return pa.table(columns)


def _lists(values: np.ndarray) -> pa.ListArray:
    """(n, k) array -> n lists of k."""
    n, k = values.shape
    return pa.ListArray.from_arrays(np.arange(0, (n + 1) * k, k, dtype=np.int32), values.ravel())
