"""From a tape's tables to CXLNDPRouting, shard by shard: prompts are summed as they come, decode rows kept as ids."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import repeat

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from tokentape.replay.cxl_ndp.routing import ENDED, CXLNDPRouting
from tokentape.warehouse.geometry import Geometry

Ints = NDArray[np.int64]
WEIGHT_SOURCES = ("gate", "softmax")


@dataclass(frozen=True)
class Reading:
    """What of a tape is taken. weight_source: gate (weights as the model applied them) or softmax (of all scores, of the chosen).

    prompt_tokens: so many first tokens of a request are its prompt, whatever it was recorded as; the rest is decoded. None: as
    recorded. max_steps: decode steps kept. Together they cut long requests to the windows of a closed loop.
    """

    weight_source: str = "gate"
    prompt_tokens: int | None = None
    max_steps: int | None = None

    def __post_init__(self) -> None:
        if self.weight_source not in WEIGHT_SOURCES:
            raise ValueError(f"weight source {self.weight_source!r} is unknown; choose {', '.join(WEIGHT_SOURCES)}")
        for name in ("prompt_tokens", "max_steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name.replace('_', ' ')} {value} must be 1 or more")


def routing_of_tape(
    trace_id: str,
    origin: str,
    geometry: Geometry,
    request_ids: Iterable[int],
    passes: pl.DataFrame,
    routing: Iterable[pa.Table],
    scores: Iterable[pa.Table] | None = None,
    reading: Reading | None = None,
) -> CXLNDPRouting:
    """The tape's requests as sequences. passes: columns pass_id and kind. routing, scores: shards in order; scores for softmax.

    A verify pass of speculative decoding counts as decode. Memory: the result and one shard. Raises ValueError naming the row or
    the request on rows without exactly k experts or in a dense layer, a request without prompt rows, steps that some layer lacks,
    and scores that do not follow the routing.
    """
    read, requests, by_id = reading or Reading(), np.array(sorted(request_ids), np.int64), passes.sort("pass_id")
    if requests.size == 0 or not geometry.moe_layers:
        raise ValueError(f"tape {trace_id} has no requests or no MoE layers; nothing to place")
    if read.weight_source == "softmax" and scores is None:
        raise ValueError(f"tape {trace_id} holds no scores; choose weight source gate, or record it with --tables scores")
    told: Iterable[pa.Table | None] = scores if read.weight_source == "softmax" and scores is not None else repeat(None)
    pass_ids, is_prefill = by_id["pass_id"].to_numpy().astype(np.int64), (by_id["kind"] == "prefill").to_numpy()
    begins = np.full(requests.size, np.iinfo(np.int64).max)  # position where each request begins
    shape = (requests.size, len(geometry.moe_layers), geometry.n_experts)
    counts, weights, n_rows, decoded = np.zeros(shape, np.int64), np.zeros(shape), 0, list[tuple[Ints, ...]]()
    for table, of_table in zip(routing, told, strict=scores is not None and read.weight_source == "softmax"):
        shard = _Shard(trace_id, geometry, pl.DataFrame(table), n_rows)
        sequence = shard.index("request_id", requests, "request", "table requests does not list")
        layer = shard.index("layer", np.array(geometry.moe_layers), "layer", "the manifest calls dense")
        position, ids = shard.frame["position"].to_numpy().astype(np.int64), shard.ids()
        weight = shard.gates() if of_table is None else shard.softmax(pl.DataFrame(of_table), ids)
        np.minimum.at(begins, sequence, position)
        if read.prompt_tokens is not None:
            is_prompt = position - begins[sequence] < read.prompt_tokens
        else:
            is_prompt = is_prefill[shard.index("pass_id", pass_ids, "pass", "table passes does not list")]
        where = sequence[is_prompt, None], layer[is_prompt, None], ids[is_prompt]
        np.add.at(counts, where, 1)
        np.add.at(weights, where, weight[is_prompt])
        decoded.append(tuple(column[~is_prompt] for column in (sequence, layer, position, ids)))
        n_rows += shard.frame.height
    n_prompt = counts.sum(axis=2)
    _refuse(trace_id, requests, (n_prompt != n_prompt[:, :1]).any(axis=1), "prompt rows that some layers lack", _NO_PLACEMENT)
    _refuse(trace_id, requests, n_prompt[:, 0] == 0, "no prompt rows", _NO_PLACEMENT)
    sequence, layer, position, ids = (np.concatenate(parts) for parts in zip(*decoded, strict=True))
    order = np.lexsort((position, layer, sequence))
    sequence, layer, ids = sequence[order], layer[order], ids[order]
    of_layer = np.bincount(sequence * shape[1] + layer, minlength=shape[0] * shape[1])
    step = np.arange(sequence.size) - np.repeat(np.cumsum(of_layer) - of_layer, of_layer)
    n_decode = of_layer.reshape(shape[:2])
    _refuse(
        trace_id, requests, (n_decode != n_decode[:, :1]).any(axis=1), "decode steps that some layers lack", "record it again"
    )
    last = np.minimum(n_decode[:, 0], read.max_steps or n_decode.max())
    kept = step < last[sequence]
    of_steps = np.full((shape[0], int(last.max()), shape[1], geometry.top_k), ENDED, np.int16)
    of_steps[sequence[kept], step[kept], layer[kept]] = ids[kept]
    layers, of_prompts = tuple(geometry.moe_layers), counts.astype(np.int32)
    return CXLNDPRouting(trace_id, origin, layers, requests, of_prompts, weights, of_steps, last.astype(np.int32))


_NO_PLACEMENT = "placement needs them: record prefill"


def _refuse(trace_id: str, requests: Ints, is_bad: NDArray[np.bool_], what: str, remedy: str) -> None:
    if is_bad.any():
        raise ValueError(f"tape {trace_id}: request {requests[int(np.argmax(is_bad))]} has {what}; {remedy}")


@dataclass(frozen=True)
class _Shard:
    """Rows of table routing, n_before of them in the shards before."""

    trace_id: str
    geometry: Geometry
    frame: pl.DataFrame
    n_before: int

    def _bad(self, is_bad: NDArray[np.bool_]) -> tuple[int, str]:
        """The first such row, and how it is called."""
        row = int(np.argmax(is_bad))
        return row, f"tape {self.trace_id}: routing row {self.n_before + row}"

    def index(self, name: str, known: Ints, what: str, why: str) -> Ints:
        """Where the column's values stand among those that are known, rising."""
        values = self.frame[name].to_numpy().astype(np.int64)
        found = np.minimum(np.searchsorted(known, values), known.size - 1)
        if (known[found] != values).any():
            row, called = self._bad(known[found] != values)
            raise ValueError(f"{called} is in {what} {values[row]}, which {why}")
        return found

    def ids(self) -> Ints:
        k, n_experts = self.geometry.top_k, self.geometry.n_experts
        widths = self.frame["expert_ids"].list.len().to_numpy()
        if (widths != k).any():
            row, called = self._bad(widths != k)
            raise ValueError(f"{called} names {widths[row]} experts, the model routes to {k}")
        ids = self.frame["expert_ids"].explode().to_numpy().astype(np.int64).reshape(-1, k)
        if (ids >= n_experts).any():
            row, called = self._bad(np.asarray((ids >= n_experts).any(axis=1)))
            raise ValueError(f"{called} names expert {ids[row].max()}; the model has {n_experts} per layer")
        return ids

    def gates(self) -> NDArray[np.float64]:
        weights = self.frame["gate_weights"].explode()
        if weights.null_count():  # an engine that logs ids only: importance is then by counts
            return np.zeros((self.frame.height, self.geometry.top_k))
        return weights.to_numpy().astype(np.float64).reshape(-1, self.geometry.top_k)

    def softmax(self, told: pl.DataFrame, ids: Ints) -> NDArray[np.float64]:
        """Of all scores, of the experts chosen."""
        keys = ["request_id", "position", "layer"]
        if not self.frame.select(keys).equals(told.select(keys)):
            raise ValueError(f"tape {self.trace_id}: score rows do not follow the routing rows; record it again")
        raw = told["scores"].explode().to_numpy().astype(np.float64)
        if raw.size != self.frame.height * self.geometry.n_experts or np.isnan(raw).any():
            raise ValueError(f"tape {self.trace_id}: every score row needs {self.geometry.n_experts} numbers; record it again")
        raw = raw.reshape(self.frame.height, -1)
        shares = np.exp(raw - raw.max(axis=1, keepdims=True))
        return np.asarray(np.take_along_axis(shares, ids, axis=1) / shares.sum(axis=1, keepdims=True))
