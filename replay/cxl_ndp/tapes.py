"""From a tape's tables to CXLNDPRouting, shard by shard: prompts are summed as they come, decode rows kept as ids."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from tokentape.replay.cxl_ndp.routing import ENDED, CXLNDPRouting
from tokentape.warehouse.geometry import Geometry

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
    with_decode_weights: bool = False

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
    made = _Sums(trace_id, geometry, np.array(sorted(request_ids), np.int64), passes, reading or Reading())
    if made.reading.weight_source == "softmax":
        if scores is None:
            raise ValueError(f"tape {trace_id} holds no scores; choose weight source gate, or record it with --tables scores")
        for shard, of_shard in zip(routing, scores, strict=True):
            made.add(shard, of_shard)
    else:
        for shard in routing:
            made.add(shard, None)
    return made.routing(origin)


class _Sums:
    """P and W so far, and the decode rows as they came."""

    def __init__(
        self, trace_id: str, geometry: Geometry, requests: NDArray[np.int64], passes: pl.DataFrame, reading: Reading
    ) -> None:
        if requests.size == 0 or not geometry.moe_layers:
            raise ValueError(f"tape {trace_id} has no requests or no MoE layers; nothing to place")
        self.trace_id, self.geometry, self.requests, self.reading = trace_id, geometry, requests, reading
        by_id = passes.sort("pass_id")
        self._pass_ids = by_id["pass_id"].to_numpy().astype(np.int64)
        self._is_prefill = (by_id["kind"] == "prefill").to_numpy()
        self._first = np.full(requests.size, np.iinfo(np.int64).max)  # position where each request begins
        shape = (requests.size, len(geometry.moe_layers), geometry.n_experts)
        self._counts, self._weights = np.zeros(shape, np.int64), np.zeros(shape)
        self._decoded: list[tuple[NDArray[Any], ...]] = []
        self._n_rows = 0

    def add(self, shard: pa.Table, scores: pa.Table | None) -> None:
        frame = pl.from_arrow(shard)
        assert isinstance(frame, pl.DataFrame)
        sequence = self._index(frame["request_id"], self.requests, "request", "table requests does not list")
        layer = self._index(frame["layer"], np.array(self.geometry.moe_layers), "layer", "the manifest calls dense")
        position = frame["position"].to_numpy().astype(np.int64)
        ids = self._ids(frame)
        weights = self._gate_weights(frame) if scores is None else self._softmax(frame, scores, ids)
        np.minimum.at(self._first, sequence, position)
        is_prompt = self._is_prompt(frame, sequence, position)
        where = sequence[is_prompt, None], layer[is_prompt, None], ids[is_prompt]
        np.add.at(self._counts, where, 1)
        np.add.at(self._weights, where, weights[is_prompt])
        kept = ~is_prompt
        rows = (sequence[kept], layer[kept], position[kept], ids[kept].astype(np.int16), weights[kept].astype(np.float32))
        self._decoded.append(rows if self.reading.with_decode_weights else rows[:-1])
        self._n_rows += frame.height

    def _index(self, column: pl.Series, known: NDArray[np.int64], what: str, why: str) -> NDArray[np.int64]:
        values = column.to_numpy().astype(np.int64)
        found = np.minimum(np.searchsorted(known, values), known.size - 1)
        wrong = known[found] != values
        if wrong.any():
            row = int(np.argmax(wrong))
            raise ValueError(f"tape {self.trace_id}: routing row {self._n_rows + row} is in {what} {values[row]}, which {why}")
        return found

    def _ids(self, frame: pl.DataFrame) -> NDArray[np.int64]:
        k, n_experts = self.geometry.top_k, self.geometry.n_experts
        widths = frame["expert_ids"].list.len().to_numpy()
        if (widths != k).any():
            row = int(np.argmax(widths != k))
            raise ValueError(
                f"tape {self.trace_id}: routing row {self._n_rows + row} names {widths[row]} experts, the model routes to {k}"
            )
        ids = frame["expert_ids"].explode().to_numpy().astype(np.int64).reshape(-1, k)
        if ids.size and ids.max() >= n_experts:
            row = int(np.argmax((ids >= n_experts).any(axis=1)))
            raise ValueError(
                f"tape {self.trace_id}: routing row {self._n_rows + row} names expert {ids[row].max()}; "
                f"the model has {n_experts} per layer"
            )
        return ids

    def _gate_weights(self, frame: pl.DataFrame) -> NDArray[np.float64]:
        weights = frame["gate_weights"].explode()
        if weights.null_count():  # an engine that logs ids only: importance is then by counts
            return np.zeros((frame.height, self.geometry.top_k))
        return weights.to_numpy().astype(np.float64).reshape(-1, self.geometry.top_k)

    def _softmax(self, frame: pl.DataFrame, scores: pa.Table, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        told = pl.from_arrow(scores)
        assert isinstance(told, pl.DataFrame)
        keys = ["request_id", "position", "layer"]
        if not frame.select(keys).equals(told.select(keys)):
            raise ValueError(f"tape {self.trace_id}: score rows do not follow the routing rows; record it again")
        raw = told["scores"].explode().to_numpy().astype(np.float64)
        if raw.size != frame.height * self.geometry.n_experts or np.isnan(raw).any():
            raise ValueError(f"tape {self.trace_id}: every score row needs {self.geometry.n_experts} numbers; record it again")
        raw = raw.reshape(frame.height, -1)
        shares = np.exp(raw - raw.max(axis=1, keepdims=True))
        return np.asarray(np.take_along_axis(shares, ids, axis=1) / shares.sum(axis=1, keepdims=True))

    def _is_prompt(self, frame: pl.DataFrame, sequence: NDArray[np.int64], position: NDArray[np.int64]) -> NDArray[np.bool_]:
        if self.reading.prompt_tokens is not None:
            return np.asarray(position - self._first[sequence] < self.reading.prompt_tokens)
        found = self._index(frame["pass_id"], self._pass_ids, "pass", "table passes does not list")
        return np.asarray(self._is_prefill[found])

    def routing(self, origin: str) -> CXLNDPRouting:
        self._refuse_prompts()
        columns = [np.concatenate(parts) for parts in zip(*self._decoded, strict=True)]
        by_step = [column[np.lexsort((columns[2], columns[1], columns[0]))] for column in columns]  # position within layer
        step, n_decode = self._steps(by_step[0], by_step[1])
        if self.reading.max_steps is not None:
            kept = step < self.reading.max_steps
            by_step, step, n_decode = [c[kept] for c in by_step], step[kept], np.minimum(n_decode, self.reading.max_steps)
        where = by_step[0], step, by_step[1]
        shape = (self.requests.size, int(n_decode.max()), len(self.geometry.moe_layers), self.geometry.top_k)
        ids = np.full(shape, ENDED, np.int16)
        ids[where] = by_step[3]
        weights = np.zeros(shape, np.float32) if self.reading.with_decode_weights else None
        if weights is not None:
            weights[where] = by_step[4]
        return CXLNDPRouting(
            trace_id=self.trace_id,
            origin=origin,
            layers=tuple(self.geometry.moe_layers),
            request_ids=self.requests,
            prefill_counts=self._counts.astype(np.int32),
            prefill_weights=self._weights,
            decode_ids=ids,
            n_decode=n_decode.astype(np.int32),
            decode_weights=weights,
        )

    def _refuse_prompts(self) -> None:
        n_prompt = self._counts.sum(axis=2)
        uneven = (n_prompt != n_prompt[:, :1]).any(axis=1)
        if not (uneven | (n_prompt[:, 0] == 0)).any():
            return
        bad = int(np.argmax(uneven | (n_prompt[:, 0] == 0)))
        what = "prompt rows that some layers lack" if uneven[bad] else "no prompt rows"
        raise ValueError(f"tape {self.trace_id}: request {self.requests[bad]} has {what}; placement needs them: record prefill")

    def _steps(self, sequence: NDArray[np.int64], layer: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of decode rows by sequence, layer and position: the step (n,) of each, and how many steps a sequence (S,) has."""
        n_layers = len(self.geometry.moe_layers)
        n_rows = np.bincount(sequence * n_layers + layer, minlength=self.requests.size * n_layers)
        step = np.arange(sequence.size) - np.repeat(np.cumsum(n_rows) - n_rows, n_rows)
        by_layer = n_rows.reshape(-1, n_layers)
        uneven = (by_layer != by_layer[:, :1]).any(axis=1)
        if uneven.any():
            bad = self.requests[int(np.argmax(uneven))]
            raise ValueError(f"tape {self.trace_id}: request {bad} has decode steps that some layers lack; record it again")
        return step, by_layer[:, 0]
