"""Routed rows as any importer hands them over, and the tape they become.

An importer parses its format into `RoutedRows` in the order the engine executed them; `write_import` checks them (checks.py),
adds the other tables and writes one tape. Nothing reaches the store before every check has passed.
"""

import hashlib
import re
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tokentape.capture.importers import checks
from tokentape.capture.importers.limits import BadImport
from tokentape.capture.rows import numbers, request_table, rows_of, words
from tokentape.warehouse.geometry import Geometry
from tokentape.warehouse.tape import Store


def no_widths(architecture: str = "unknown", n_layers: int = 0, **known: Any) -> Geometry:
    """What a trace tells of a model without its config.json."""
    return Geometry(architecture=architecture, n_layers=n_layers, hidden=0, n_heads=0, n_kv_heads=0, head_dim=0, vocab=0, **known)


NO_MODEL = no_widths()  # a trace without routing says nothing of it


@dataclass(frozen=True)
class Grouped:
    """The order of n rows by request, position and layer, with T tokens and R requests in it: sorted once.

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
    def of(cls, rows: "RoutedRows") -> "Grouped":
        """Raises BadImport if positions are so far apart that request, position and layer do not fit 63 bits."""
        n_layers, n_positions = int(rows.layer.max()) + 1, int(rows.position.max()) + 1
        n_requests = int(rows.request_id.max()) + 1
        if n_requests * n_positions * n_layers >= 1 << 63:
            raise BadImport(f"{n_requests} requests with positions up to {n_positions}; the trace is damaged: record it again")
        code = rows.request_id.astype(np.int64)  # in place: fresh memory is most of the time of millions of rows
        for number, n in ((rows.position, n_positions), (rows.layer, n_layers)):
            code *= n
            code += number
        order = np.argsort(code, kind="stable")  # stable: nearly sorted rows take linear time
        code = code[order]
        repeated = order[1:][code[1:] == code[:-1]]
        code //= n_layers
        starts = run_starts(code)
        passes, first = rows.pass_id[order], order[starts]
        is_moved = passes[1:] != passes[:-1]
        is_moved[starts[1:] - 1] = False
        begins = run_starts(rows.request_id[first])
        faults = (next(iter(found[:1].tolist()), None) for found in (repeated, order[1:][is_moved]))
        return cls(order, starts, first, rows.request_id[first[begins]], np.append(begins, len(first)), *faults)


def run_starts(values: np.ndarray) -> np.ndarray:
    """Where a run of equal values begins."""
    return np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1])))


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


def as_executed(request_id: np.ndarray, is_decode: np.ndarray, layer: np.ndarray, position: np.ndarray) -> np.ndarray:
    """Pass of each row where rows stand as they ran: a new one at another request or phase, at a layer that falls back (an engine
    split the prompt), and at every decoded token."""
    starts = (np.diff(request_id) != 0) | (np.diff(is_decode) != 0) | (np.diff(layer) < 0)
    starts |= is_decode[1:] & (np.diff(position) != 0)
    return np.concatenate(([0], np.cumsum(starts)))


def in_order(
    request: int, n_prompt: int, n_tokens: int, layers: np.ndarray, first_pass: int, first: int = 0
) -> dict[str, np.ndarray]:
    """Columns of a request's rows: its prompt is one pass, layer by layer, then each token is one. first: its first position."""
    n, prompt, decoded = len(layers), np.arange(n_prompt), np.arange(n_prompt, n_tokens)
    token = np.concatenate((np.tile(prompt, n), np.repeat(decoded, n)))
    return {
        "request_id": np.full(len(token), request, np.uint32),
        "position": first + token,
        "layer": np.concatenate((np.repeat(layers, n_prompt), np.tile(layers, len(decoded)))).astype(np.uint16),
        "pass_id": (np.maximum(token - (n_prompt - 1), 0) + first_pass).astype(np.uint32),
        "is_decode": token >= n_prompt,
    }


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
        digest = hashlib.sha256()
        for number, part in enumerate(self.content):
            digest.update(b"\0" * (number > 0))
            digest.update(part)
        return f"{slug}-{digest.hexdigest()[:8]}"


def prefix_blocks(blocks: Iterable[Hashable], seen: dict[tuple[int, Hashable], int]) -> list[int]:
    """Ids of a prompt's blocks: equal where the block and all before it are. seen: those of all prompts of the trace."""
    found, before = list[int](), -1
    for block in blocks:
        before = seen.setdefault((before, block), len(seen))
        found.append(before)
    return found


def write_import(store: Store, source: Source, rows: RoutedRows) -> str:
    """Writes the tape and returns its id; a tape of the same file that is already there stays as it is.

    Raises BadImport, with the store unchanged, if the rows break the tape's contract.
    """
    checks.reject(rows, source)
    if store.writer(source.trace_id).is_finished:
        return source.trace_id
    tables = tables_of(rows, source.dataset, source.n_output_tokens or {}, source.token_ids or {})
    return write_tape(store, source, tables, checks.findings(rows, source) | (source.flags or {}))


def tables_of(rows: RoutedRows, dataset: str, n_output: dict[int, int], token_ids: dict[int, np.ndarray]) -> dict[str, pa.Table]:
    """Tables requests, tokens, passes and routing; n_output, token_ids: as a Source has them, empty where nothing is known."""
    first = rows.grouped.first
    return {
        "requests": _requests(rows, first, dataset, n_output, token_ids),
        "tokens": _tokens(rows, first, token_ids),
        "passes": _passes(rows, first),
        "routing": _routing(rows),
    }


def write_tape(store: Store, source: Source, tables: dict[str, pa.Table], flags: dict[str, Any]) -> str:
    """Writes the tables as one tape and returns its id. One of the same file that is there stays; a failure leaves none."""
    writer = store.writer(source.trace_id)
    if writer.is_finished:
        return source.trace_id
    with writer.whole():
        writer.write_shard(0, tables)
        writer.finish(
            tables,
            1,
            origin="imported",
            source=source.path.name,
            model_id=source.model_id,
            dataset=source.dataset,
            geometry=source.geometry,
            settings=source.settings,
            flags=flags,
            versions={"numpy": np.__version__, "polars": version("polars"), "pyarrow": pa.__version__},
        )
    return source.trace_id


def _requests(
    rows: RoutedRows, first: np.ndarray, dataset: str, stated: dict[int, int], known: dict[int, np.ndarray]
) -> pa.Table:
    ids, bounds, places = rows.grouped.request_ids, rows.grouped.bounds, rows.position[first].astype(np.int64)
    counted = np.diff(places, prepend=0)  # a token, and those before it that were not recorded
    counted[bounds[:-1]] = 1
    n_output = np.add.reduceat(np.where(rows.is_decode[first], counted, 0), bounds[:-1])
    n_prompt = places[bounds[1:] - 1] + 1 - n_output  # with what came before the first row
    n_stated = [stated.get(i, n) for i, n in zip(ids.tolist(), n_output.tolist(), strict=True)]
    prompts = [known[i][:n] if i in known else None for i, n in zip(ids.tolist(), n_prompt.tolist(), strict=True)]
    return request_table(n_prompt, n_stated, dataset, ids=ids, prompts=prompts)


def _tokens(rows: RoutedRows, first: np.ndarray, known: dict[int, np.ndarray]) -> pa.Table:
    grouped, positions = rows.grouped, rows.position[first]
    ids, is_known = np.zeros(len(first), np.int32), np.zeros(len(first), bool)
    for request, begin, end in zip(grouped.request_ids.tolist(), grouped.bounds, grouped.bounds[1:], strict=False):
        if request in known:
            ids[begin:end], is_known[begin:end] = known[request][positions[begin:end]], True
    return pa.table(
        {
            "request_id": numbers(rows.request_id[first], np.uint32),
            "position": numbers(positions, np.int32),
            "token_id": numbers(ids, np.int32, is_known),
            "phase": _phases(rows.is_decode[first]),
            "pass_id": numbers(rows.pass_id[first], np.uint32),
            "nll": pa.nulls(len(first), pa.float32()),
        }
    )


def _phases(is_decode: np.ndarray) -> pa.Array:
    return words(np.array(["prefill", "decode"], object)[is_decode.astype(np.int8)])


def _passes(rows: RoutedRows, first: np.ndarray) -> pa.Table:
    begins = run_starts(rows.pass_id)  # rows stand in the order of the passes
    pass_ids = rows.pass_id[begins]
    return pa.table(
        {
            "pass_id": numbers(pass_ids, np.uint32),
            "kind": _phases(rows.is_decode[begins]),
            "n_tokens": numbers(np.bincount(rows.pass_id[first])[pass_ids], np.uint32),
            "request_ids": rows_of(rows.request_id[begins][:, None], np.uint32),
            "policy_state": pa.nulls(len(begins), pa.string()),
        }
    )


def _routing(rows: RoutedRows) -> pa.Table:
    ids, weights = rows.expert_ids, rows.gate_weights
    columns = {
        "request_id": numbers(rows.request_id, np.uint32),
        "position": numbers(rows.position, np.int32),
        "layer": numbers(rows.layer, np.uint16),
        "pass_id": numbers(rows.pass_id, np.uint32),
        "expert_ids": rows_of(ids.view(np.uint16) if ids.dtype == np.int16 else ids, np.uint16),  # none is negative
        "gate_weights": pa.nulls(len(rows), pa.list_(pa.float32())) if weights is None else rows_of(weights, np.float32),
    }
    if rows.residency is not None:
        columns["residency"] = rows_of(rows.residency, np.uint8)
    return pa.table(columns)
