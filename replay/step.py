"""One forward pass of a replay as named operations on the machine's resources, layer by layer.

Within a layer, reading the fast tier and computing overlap; with blocking fetches the layer first waits for its misses, with
overlapped ones the fetches run beside all layers. The pass's cost in a result (replay/weights.py) is the roofline of the whole
pass; the clock here waits at every layer, so it is that or later: later where some layers are bound by memory and others by
compute.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tokentape.hw.spec import HardwareSpec
from tokentape.hw.timeline import Operation, Parallel, Serial, Step
from tokentape.hw.work import Floats, Work
from tokentape.replay.experts import look_up, make_cache, passes_over_weights
from tokentape.replay.semantics import Semantics
from tokentape.replay.stream import stream
from tokentape.replay.trace import Trace
from tokentape.replay.weights import PROFILE, cost_of, fetches, reads


def replay_step(
    trace: Trace,
    policy: Any,
    hardware: HardwareSpec,
    semantics: Semantics,
    capacity_bytes: int,
    expert_format: str,
    seed: int,
    pass_id: int,
) -> Step:
    """The pass `pass_id` of the replay that these arguments give. Raises ValueError if the tape has no such pass."""
    found = np.flatnonzero(trace.pass_ids == pass_id)
    if not found.size:
        first, last = trace.pass_ids[0], trace.pass_ids[-1]
        raise ValueError(f"tape {trace.trace_id} has no pass {pass_id}; its passes run from {first} to {last}")
    index = int(found[0])
    looked_up = stream(trace, semantics)
    cache = make_cache(trace, policy, semantics, capacity_bytes, expert_format, seed)
    hits = look_up(cache, looked_up, semantics)
    n_layers = len(trace.geometry.moe_layers)
    expert_bytes, missed_bytes, n_fetches = np.zeros(n_layers), np.zeros(n_layers), np.zeros(n_layers)
    for event in np.flatnonzero(looked_up.event_pass == index):
        span = slice(looked_up.offsets[event], looked_up.offsets[event + 1])
        keys = looked_up.keys[span]
        layers, sizes = keys // trace.geometry.n_experts, cache.sizes[keys]
        missed = hits[span] == 0
        expert_bytes += np.bincount(layers, sizes, n_layers)
        missed_bytes += np.bincount(layers, sizes * missed, n_layers)
        n_fetches += np.bincount(layers, missed, n_layers) > 0
    chosen = _chosen_per_layer(trace, index, n_layers)
    return _step(trace, hardware, semantics, expert_format, index, (expert_bytes, missed_bytes, n_fetches, chosen))


def _chosen_per_layer(trace: Trace, index: int, n_layers: int) -> Floats:
    """(L,) expert applications of the pass: tokens x top-k."""
    rows = np.flatnonzero(trace.row_pass == index)
    return np.asarray(np.bincount(trace.row_layer[rows], np.diff(trace.offsets)[rows], n_layers), np.float64)


def _step(
    trace: Trace,
    hardware: HardwareSpec,
    semantics: Semantics,
    expert_format: str,
    index: int,
    experts: tuple[Floats, Floats, Floats, Floats],
) -> Step:
    """The pass as a tree: every layer of the model, then the vocabulary's projection."""
    geometry, moe = trace.geometry, np.array(trace.geometry.moe_layers)
    n_reads = float(passes_over_weights(trace, semantics)[index])
    n_bytes = n_reads * np.array(geometry.non_expert_bytes_by_layer(expert_format), np.float64)
    ops = 2.0 * trace.pass_tokens[index] * np.array([*map(geometry.layer_params, range(geometry.n_layers)), 0.0])
    ops[-1] = 2.0 * np.diff(trace.member_offsets)[index] * geometry.vocab * geometry.hidden
    missed, n_fetches = np.zeros_like(ops), np.zeros_like(ops)
    expert_bytes, missed[moe], n_fetches[moe], chosen = experts
    n_bytes[moe] += expert_bytes
    ops[moe] += 2.0 * chosen * geometry.expert_params
    is_blocking = semantics.fetching == "blocking"
    rows = (*reads(hardware, n_bytes, 0.0), *reads(hardware, 0.0, ops))
    rows += fetches(missed, n_fetches, not is_blocking) if missed.any() else ()
    cost = cost_of(Work(n_steps=1, n_blocks=ops.size, rows=rows), hardware, PROFILE)
    seconds = [cost.rows_s[id(of)][0] for of in rows]
    layers: list[Step] = []
    fetched: list[Step] = []
    for block in range(ops.size):
        name = "attention and experts" if block in moe else "attention and dense FFN" if block < ops.size - 1 else "output head"
        layer = block if block < ops.size - 1 else -1
        if missed[block]:
            (layers if is_blocking else fetched).append(_fetch(hardware, layer, missed[block], float(seconds[2][block])))
        layers.append(
            _work(hardware, name, layer, (n_bytes[block], float(seconds[0][block])), (ops[block], float(seconds[1][block])))
        )
    return Parallel((Serial(tuple(fetched)), Serial(tuple(layers))))


def _work(hardware: HardwareSpec, name: str, layer: int, read: tuple[float, float], computed: tuple[float, float]) -> Step:
    """Weights read while the engine computes with them. read: bytes and seconds, computed: operations and seconds; bytes and
    operations of an operation are one device's share."""
    roles, d = hardware.roles, hardware.n_devices
    tier = roles.expert_cache or roles.expert_home
    return Parallel(
        (
            Operation(name=name, resource=tier, layer=layer, bytes=read[0] / d, seconds=read[1]),
            Operation(name=name, resource=roles.main, layer=layer, ops=computed[0] / d, seconds=computed[1]),
        )
    )


def _fetch(hardware: HardwareSpec, layer: int, n_bytes: float, seconds: float) -> Step:
    """What the layer misses, on the experts' home and the link in front of it at once."""
    ends, share = (hardware.roles.expert_home, hardware.roles.expert_cache), n_bytes / hardware.n_devices
    links = [name for name, link in hardware.links.items() if (link.source_tier, link.target_tier) == ends]
    return Parallel(
        tuple(
            Operation(name="fetch missing experts", resource=resource, layer=layer, bytes=share, seconds=seconds)
            for resource in (hardware.roles.expert_home, *links)
        )
    )
