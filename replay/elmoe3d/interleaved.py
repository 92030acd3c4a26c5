"""Recorded requests decoded side by side, and how an LRU of experts fares then (event level of paper section 5).

Exact where a request's routing does not depend on its batch: only the order of the lookups is new.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tokentape.policies.cache import ExpertCache
from tokentape.policies.lru import LRU
from tokentape.replay.experts import look_up
from tokentape.replay.semantics import Semantics
from tokentape.replay.stream import stream
from tokentape.replay.trace import DECODE, Trace

STEP = Semantics(scope="per-layer", lookup="atomic", start="persistent")  # resident when the step starts


def interleaved(trace: Trace, batch: int) -> Trace:
    """The decoded tokens of `batch` requests at a time, one of each per pass, in the requests' order; a request that has ended
    leaves its pass smaller. Requests that fill no batch are left out.

    Raises ValueError where the tape decodes fewer requests than the batch.
    """
    if batch < 1:
        raise ValueError(f"batch is {batch}; it must be at least 1")
    decoded = np.flatnonzero(trace.pass_kind[trace.row_pass] == DECODE)
    requests, number = np.unique(trace.row_request[decoded], return_inverse=True)
    if requests.size < batch:
        raise ValueError(f"tape {trace.trace_id} decodes {requests.size} requests; a batch of {batch} needs as many")
    kept = number < requests.size // batch * batch
    rows, number = decoded[kept], number[kept]
    group, position = number // batch, trace.row_position[rows]
    first = np.full(requests.size, np.iinfo(np.int64).max)
    np.minimum.at(first, number, position)
    step = position - first[number]
    order = np.lexsort((number, trace.row_layer[rows], step, group))
    rows, group, step, number = rows[order], group[order], step[order], number[order]
    is_new = np.append(True, (np.diff(group) != 0) | (np.diff(step) != 0))
    row_pass = np.cumsum(is_new) - 1
    ids, widths = trace.ids_of(rows)
    members = np.unique(np.stack((row_pass, number), axis=1), axis=0)
    sizes = np.bincount(members[:, 0])
    return replace(
        trace,
        row_pass=row_pass.astype(np.int32),
        row_layer=trace.row_layer[rows],
        row_request=trace.row_request[rows],
        row_position=trace.row_position[rows],
        offsets=np.concatenate(([0], np.cumsum(widths))).astype(np.int64),
        ids=ids,
        pass_ids=np.arange(sizes.size, dtype=np.int64),
        pass_kind=np.full(sizes.size, DECODE, np.uint8),
        pass_tokens=sizes.astype(np.int64),
        member_offsets=np.concatenate(([0], np.cumsum(sizes))).astype(np.int64),
        members=requests[members[:, 1]].astype(np.int64),
    )


def lru_miss_frac(trace: Trace, n_slots: int, n_warm: int = 0) -> float:
    """Misses over unique lookups of a per-layer LRU of n_slots whole experts; the first n_warm passes fill it uncounted.

    An expert hits where it is resident when its step starts. 1.0 without a slot. Raises ValueError where no pass is left.
    """
    if n_warm >= trace.pass_ids.size:
        raise ValueError(f"tape {trace.trace_id} has {trace.pass_ids.size} passes; {n_warm} to warm up leave none to count")
    if n_slots < 1:
        return 1.0
    geometry, looked_up = trace.geometry, stream(trace, STEP)
    n_layers = len(geometry.moe_layers)
    cache_of = np.repeat(np.arange(n_layers, dtype=np.int32), geometry.n_experts)
    slots = np.full(n_layers, min(n_slots, geometry.n_experts), np.int64)
    hits = look_up(ExpertCache(LRU(), np.ones(cache_of.size, np.int64), cache_of, slots), looked_up, STEP)
    counted = np.repeat(looked_up.event_pass >= n_warm, np.diff(looked_up.offsets))
    return 1.0 - float(hits[counted].mean())
