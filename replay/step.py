"""One forward pass of a replay as named operations on the machine's resources, layer by layer.

Within a layer, reading the fast tier and computing overlap; with blocking fetches the layer first waits for its misses, with
overlapped ones the fetches run beside all layers. The pass's cost in a result (hw/cost.py) is the roofline of the whole pass; the
clock here waits at every layer, so it is that or later: later where some layers are bound by memory and others by compute.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.hw.cost import Rates, rates
from tokentape.hw.spec import HardwareSpec
from tokentape.hw.timeline import Operation, Parallel, Serial, Step
from tokentape.replay.experts import look_up, make_cache, passes_over_weights
from tokentape.replay.semantics import Semantics
from tokentape.replay.stream import stream
from tokentape.replay.trace import Trace

Floats = NDArray[np.float64]


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
    geometry, at = trace.geometry, rates(hardware)
    n_tokens = float(trace.pass_tokens[index])
    n_logits = float(np.diff(trace.member_offsets)[index])
    n_reads = float(passes_over_weights(trace, semantics)[index])
    non_expert_bytes = [n_reads * n_bytes for n_bytes in geometry.non_expert_bytes_by_layer(expert_format)]
    fetches: list[Step] = []
    layers: list[Step] = []
    for layer in range(geometry.n_layers):
        n_bytes, ops = non_expert_bytes[layer], 2.0 * n_tokens * geometry.layer_params(layer)
        name, fetch = "attention and dense FFN", list[Step]()
        if layer in geometry.moe_layers:
            i = geometry.moe_layers.index(layer)
            expert_bytes, missed_bytes, n_fetches, chosen = (float(values[i]) for values in experts)
            name, fetch = "attention and experts", _fetch(hardware, at, layer, missed_bytes, n_fetches)
            n_bytes, ops = n_bytes + expert_bytes, ops + 2.0 * chosen * geometry.expert_params
        if semantics.fetching == "blocking":
            layers += fetch
        else:
            fetches += fetch
        layers.append(_work(hardware, at, name, layer, n_bytes, ops))
    head_ops = 2.0 * n_logits * geometry.vocab * geometry.hidden
    layers.append(_work(hardware, at, "output head", -1, non_expert_bytes[-1], head_ops))
    return Parallel((Serial(tuple(fetches)), Serial(tuple(layers))))


def _work(hardware: HardwareSpec, at: Rates, name: str, layer: int, n_bytes: float, ops: float) -> Step:
    """Weights read from the fast tier while the engine computes with them; bytes and operations are one device's share."""
    seconds = {"bytes": n_bytes / at.fast_bytes_per_s, "ops": ops / at.ops_per_s}
    n_bytes, ops = n_bytes / hardware.n_devices, ops / hardware.n_devices
    return Parallel(
        (
            Operation(name=name, resource=hardware.fast, layer=layer, bytes=n_bytes, seconds=seconds["bytes"]),
            Operation(name=name, resource=hardware.engine, layer=layer, ops=ops, seconds=seconds["ops"]),
        )
    )


def _fetch(hardware: HardwareSpec, at: Rates, layer: int, missed_bytes: float, n_fetches: float) -> list[Step]:
    """What the layer misses, on the backing tier and the link in front of it at once; nothing if all were resident."""
    if not missed_bytes:
        return []
    seconds = missed_bytes / at.fetch_bytes_per_s + n_fetches * at.fetch_latency_s
    ends, share = (hardware.backing, hardware.fast), missed_bytes / hardware.n_devices
    links = [name for name, link in hardware.links.items() if (link.source_tier, link.target_tier) == ends]
    return [
        Parallel(
            tuple(
                Operation(name="fetch missing experts", resource=resource, layer=layer, bytes=share, seconds=seconds)
                for resource in (hardware.backing, *links)
            )
        )
    ]
