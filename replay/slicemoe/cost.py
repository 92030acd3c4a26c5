"""What a pass of sliced serving moves and costs, as the paper counts it or with KV traffic and overlapped fetches."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokentape.hw.clock import StepCost
from tokentape.hw.spec import HardwareSpec
from tokentape.hw.work import Work
from tokentape.policies.sliced import Events
from tokentape.replay.trace import PREFILL, Trace, pass_ops
from tokentape.replay.weights import PROFILE, cost_of, fetches, reads, weights_cost
from tokentape.warehouse.model_sizes import kv_layer_bytes_per_token, static_bytes

Ints = NDArray[np.int64]
PROFILES = {"paper": PROFILE, "physical": "slicemoe_physical"}  # of a mode
OTHER_FORMAT = "int8"  # everything but the experts, and the KV cache (SliceMoE section 2)


def _sum_by(index: NDArray[np.integer], values: NDArray[np.integer], n: int) -> Ints:
    """(n,) i64 sums, exact below 2**53."""
    return np.bincount(index, values, n).astype(np.int64)


def per_pass_counts(trace: Trace, events: Events) -> dict[str, Ints]:
    """Lookups, hits, bytes and fetches of every pass, (p,) i64 each; in prefill an expert is looked up once per layer.

    A fetch is all that one layer of a pass misses.
    """
    n, p = trace.pass_ids.size, trace.row_pass
    missed = _sum_by(p, (1 - events.msb_hit).sum(axis=1), n)
    layers = len(trace.geometry.moe_layers)
    by_layer = _sum_by(p.astype(np.int64) * layers + trace.row_layer, events.flash_bytes, n * layers).reshape(n, layers)
    looked_up = _sum_by(p, looked_up_by_row(trace, events), n)
    return {
        "n_lookups": looked_up,
        "n_hits": looked_up - missed,
        "fast_bytes": _sum_by(p, events.dram_bytes, n) + static_bytes(trace.geometry, OTHER_FORMAT),
        "backing_bytes": by_layer.sum(axis=1),
        "n_fetches": (by_layer > 0).sum(axis=1),
    }


def looked_up_by_row(trace: Trace, events: Events) -> Ints:
    """(n,) experts that a row looks up: its top k in decode; in prefill those no row of its layer pass named before."""
    k = events.ids.shape[1]
    found = np.full(trace.row_pass.size, k, np.int64)
    rows = np.flatnonzero(trace.pass_kind[trace.row_pass] == PREFILL)
    if rows.size:
        layer_pass = trace.row_pass[rows].astype(np.int64) * len(trace.geometry.moe_layers) + trace.row_layer[rows]
        names = layer_pass[:, None] * trace.geometry.n_experts + events.ids[rows]
        _, first = np.unique(names.ravel(), return_index=True)
        found[rows] = np.bincount(first // k, minlength=rows.size)
    return found


def pass_cost(trace: Trace, events: Events, per_pass: dict[str, Ints], hardware: HardwareSpec, mode: str) -> StepCost:
    """Seconds and joules of every pass; `mode` as in replay.sliced. physical: adds KV bytes to the fast_bytes of per_pass."""
    if mode == "paper":
        return weights_cost(hardware, per_pass["fast_bytes"], per_pass["backing_bytes"], per_pass["n_fetches"], pass_ops(trace))
    return _overlapped_cost(trace, events, per_pass, hardware)


def _overlapped_cost(trace: Trace, events: Events, per_pass: dict[str, Ints], hardware: HardwareSpec) -> StepCost:
    """A block's misses are fetched while the block before computes; blocks are layers and the head."""
    g, n = trace.geometry, trace.pass_ids.size
    n_blocks, moe = g.n_layers + 1, np.array(g.moe_layers)
    tokens, context = trace.pass_tokens, np.zeros(n, np.int64)
    np.maximum.at(context, trace.row_pass, trace.row_position.astype(np.int64) + 1)
    windows = np.array(g.sliding_windows or (0,) * g.n_layers)
    seen = np.where(windows, np.minimum(context[:, None], windows), context[:, None])
    kv = seen * kv_layer_bytes_per_token(g, OTHER_FORMAT)
    at = trace.row_pass.astype(np.int64) * n_blocks + moe[trace.row_layer]
    fast, flash = (_sum_by(at, moved, n * n_blocks).reshape(n, n_blocks) for moved in (events.dram_bytes, events.flash_bytes))
    fast += np.array(g.non_expert_bytes_by_layer("int8-g32"), np.int64)  # one byte per weight
    fast[:, :-1] += kv
    ops = 2.0 * g.expert_params * np.bincount(at, np.diff(trace.offsets), n * n_blocks).reshape(n, n_blocks)
    ops[:, :-1] += 2.0 * tokens[:, None] * np.array([g.layer_params(layer) for layer in range(g.n_layers)])
    ops[:, -1] += 2.0 * g.vocab * g.hidden
    per_pass["fast_bytes"] += kv.sum(axis=1)
    assert np.array_equal(fast.sum(axis=1), per_pass["fast_bytes"]), "bytes were lost between layers"
    rows = (*reads(hardware, fast, ops), *fetches(flash, flash > 0, overlapped=True))
    return cost_of(Work(n_steps=n, n_blocks=n_blocks, rows=rows), hardware, PROFILES["physical"])
