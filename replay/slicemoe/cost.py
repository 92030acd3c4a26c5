"""What passes of sliced serving look up and move, and what one decode token costs in closed form."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokentape.hw import profile as profiles
from tokentape.hw.clock import StepCost, clock
from tokentape.hw.spec import HardwareSpec
from tokentape.policies.sliced import Events
from tokentape.replay.passes import fetched
from tokentape.replay.trace import PREFILL, Trace
from tokentape.replay.transformer import Tokens, blocks_of, experts_of, steps_of
from tokentape.warehouse.geometry import Geometry

Ints = NDArray[np.int64]
PROFILE = "slicemoe"
OTHER_FORMAT = "int8"  # everything but the experts (SliceMoE section 2)


def by_layer(trace: Trace, events: Events) -> Ints:
    """(5, passes, MoE layers): lookups, hits, bytes read and fetched, fetches; a prompt looks an expert up once per layer.

    A fetch is all that one layer of a pass misses.
    """
    n, layers = trace.pass_ids.size, len(trace.geometry.moe_layers)
    at = trace.row_pass.astype(np.int64) * layers + trace.row_layer
    looked_up = looked_up_by_row(trace, events)
    missed = (1 - events.msb_hit).sum(axis=1)
    counted = (looked_up, looked_up - missed, events.dram_bytes, events.flash_bytes)
    sums = [np.bincount(at, values, n * layers).astype(np.int64).reshape(n, layers) for values in counted]  # exact below 2**53
    return np.stack([*sums, sums[3] > 0])


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


def decode_cost(
    geometry: Geometry,
    machine: HardwareSpec,
    read_bytes: float,
    missed_bytes: float,
    n_fetches: float,
    profile: str = PROFILE,
    context_tokens: int = 1,
) -> StepCost:
    """One decode token. read_bytes: of experts, all layers, what is fetched first included; n_fetches: of a layer."""
    blocks, n = blocks_of(geometry, by_layer=True), max(1, len(geometry.moe_layers))
    one, k = np.ones((1, 1)), geometry.top_k
    experts = experts_of(geometry, machine, blocks, one, k * one, k * one, read_bytes / n * one)
    missing = fetched(machine, blocks, missed_bytes / n * one, n_fetches * one, is_ahead=False)
    work = steps_of(geometry, machine, Tokens(decodes=1.0, context=context_tokens), (*missing, *experts), blocks, OTHER_FORMAT)
    return clock(work, machine, profiles.load(profile))
