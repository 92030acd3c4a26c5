"""Routed rows as any importer hands them over, and the tape they become.

An importer parses its format into `RoutedRows` in the order the engine executed them; `write_import` checks them (checks.py),
adds the other tables and writes one tape. Nothing reaches the store before every check has passed.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from capture.importers import checks
from warehouse.geometry import Geometry
from warehouse.tape import Manifest, Store

TABLES = ("requests", "tokens", "passes", "routing")


@dataclass(frozen=True)
class RoutedRows:
    """n rows, one per (token, MoE layer), in the order executed: by pass, layer, then token as the pass held them.

    request_id, position, layer, pass_id: (n,) integers; a pass holds tokens of one request. is_decode: (n,) bool.
    expert_ids: (n, k) integers by falling weight. gate_weights: (n, k) f32 or None. residency: (n, k) u8 or None.
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

    def first_of_token(self) -> np.ndarray:
        """Index of each (request, position)'s first row, by request and position."""
        return np.unique((self.request_id.astype(np.int64) << 32) | self.position, return_index=True)[1]


@dataclass(frozen=True)
class Source:
    """Where the rows come from. token_ids: input ids per request, prompt first, where the format has them."""

    path: Path
    content: tuple[bytes, ...]  # bytes of every file that decides the tape
    model_id: str
    geometry: Geometry
    model_top_k: int | None  # of the published model, where known
    settings: dict[str, Any]
    token_ids: dict[int, np.ndarray] | None = None
    n_output_tokens: dict[int, int] | None = None  # where it is more than the rows of decode passes
    flags: dict[str, Any] | None = None  # findings of the parser itself

    @property
    def trace_id(self) -> str:
        """Slug of the file's name and 8 hex digits of what it holds: the same file is the same tape."""
        slug = re.sub(r"[^a-z0-9]+", "-", self.path.stem.lower()).strip("-") or "trace"
        digest = hashlib.sha256(b"\0".join(self.content)).hexdigest()
        return f"{slug}-{digest[:8]}"


def write_import(store: Store, source: Source, rows: RoutedRows) -> str:
    """Writes the tape and returns its id; a tape of the same file that is already there stays as it is.

    Raises BadImport, with the store unchanged, if the rows break the tape's contract.
    """
    checks.reject(rows, source.geometry.n_experts, str(source.path))
    writer = store.writer(source.trace_id)
    if writer.is_finished:
        return source.trace_id
    first = rows.first_of_token()
    tables = {
        "requests": _requests(rows, first, source),
        "tokens": _tokens(rows, first, source.token_ids),
        "passes": _passes(rows),
        "routing": _routing(rows),
    }
    writer.discard()
    try:
        writer.write_shard(0, tables)
        writer.finish(
            Manifest(
                trace_id=source.trace_id,
                origin="imported",
                source=source.path.name,
                model_id=source.model_id,
                dataset="unknown",
                geometry=source.geometry,
                tables=TABLES,
                rows={name: table.num_rows for name, table in tables.items()},
                n_shards=1,
                settings=source.settings,
                flags=checks.findings(rows, source) | (source.flags or {}),
                versions={"numpy": np.__version__, "pyarrow": pa.__version__},
                created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
            )
        )
    except BaseException:
        writer.discard()
        raise
    return source.trace_id


def _requests(rows: RoutedRows, first: np.ndarray, source: Source) -> pa.Table:
    requests, decode = rows.request_id[first], rows.is_decode[first]
    ids = np.unique(requests)
    n_prompt = [int(np.sum((requests == i) & ~decode)) for i in ids]
    n_output = [(source.n_output_tokens or {}).get(int(i), int(np.sum((requests == i) & decode))) for i in ids]
    prompts = [(source.token_ids or {}).get(int(i)) for i in ids]
    known = zip(prompts, n_prompt, strict=True)
    hashes = [None if ids is None else hashlib.sha256(ids[:n].astype("<i4").tobytes()).hexdigest() for ids, n in known]
    return pa.table(
        {
            "request_id": ids,
            "dataset": ["unknown"] * len(ids),
            "arrival_s": np.zeros(len(ids)),
            "n_prompt_tokens": n_prompt,
            "n_output_tokens": n_output,
            "prompt_sha256": pa.array(hashes, pa.string()),
        }
    )


def _tokens(rows: RoutedRows, first: np.ndarray, token_ids: dict[int, np.ndarray] | None) -> pa.Table:
    requests, positions = rows.request_id[first], rows.position[first]
    known = token_ids or {}
    ids = [int(known[r][p]) if r in known else None for r, p in zip(requests.tolist(), positions.tolist(), strict=True)]
    return pa.table(
        {
            "request_id": requests,
            "position": positions,
            "token_id": pa.array(ids, pa.int32()),
            "phase": pa.array(np.where(rows.is_decode[first], "decode", "prefill").tolist(), pa.string()),
            "pass_id": rows.pass_id[first],
            "nll": pa.nulls(len(first), pa.float32()),
        }
    )


def _passes(rows: RoutedRows) -> pa.Table:
    pass_ids, first = np.unique(rows.pass_id, return_index=True)
    tokens = np.unique((rows.pass_id.astype(np.int64) << 32) | rows.position) >> 32
    return pa.table(
        {
            "pass_id": pass_ids,
            "kind": pa.array(np.where(rows.is_decode[first], "decode", "prefill").tolist(), pa.string()),
            "n_tokens": np.bincount(tokens, minlength=len(pass_ids)),
            "request_ids": _lists(rows.request_id[first].astype(np.uint32)[:, None]),
            "policy_state": pa.nulls(len(first), pa.string()),
        }
    )


def _routing(rows: RoutedRows) -> pa.Table:
    weights = rows.gate_weights
    columns = {
        "request_id": rows.request_id,
        "position": rows.position,
        "layer": rows.layer,
        "pass_id": rows.pass_id,
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
