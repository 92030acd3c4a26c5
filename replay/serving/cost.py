"""What an iteration costs on a machine: a model's geometry, the machine's peaks and fitted constants as coefficients.

Per layer and device, where the machine's devices share the layer: routed experts read and multiplied, one after the other; what
every token uses (projections, dense FFN, shared experts) read or multiplied, whichever is longer; attention; two all-reduces; the
rest. See docs/serving.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tokentape.hw.collective import all_reduce_s
from tokentape.hw.serving_constants import ServingConstants
from tokentape.hw.spec import HardwareSpec
from tokentape.policies.serving import Speculation
from tokentape.replay.serving.coverage import Coverage, at_multiples
from tokentape.replay.serving.step import N_ENGINE, N_LAYER, N_TIMES, covered, iteration_cost
from tokentape.warehouse.geometry import Geometry

Floats = NDArray[np.float64]
VALUE_BYTES = 2  # weights but routed experts, activations and the KV cache: bf16
REFERENCE_HIDDEN = 2048
LOADS = ("full", "per_gpu", "one_matrix")


@dataclass(frozen=True, eq=False)
class CostTables:
    """Coefficients of step.py for one model on one machine.

    layers (C, N_LAYER), engine (N_ENGINE,), layers_before (L + 1, C): layers of each kind below a layer; moe_of (C,): the one MoE
    layer of a kind, -1 where it stands for several. cov_prefill, cov_decode: shares touched, a column per kind. expert_times: a
    table of serving_step.experts_s, empty where the constants tell. speculation: what decodes draft; cov_decode then is that of
    so many requests with all their nodes.
    """

    geometry: Geometry
    machine: str
    constants: ServingConstants
    n_devices: int
    expert_format: str
    outside: str
    layers: Floats = field(repr=False)
    engine: Floats = field(repr=False)
    layers_before: Floats = field(repr=False)
    moe_of: NDArray[np.int64] = field(repr=False)
    cov_prefill: Floats = field(repr=False)
    cov_decode: Floats = field(repr=False)
    window: int = 0
    expert_times: Floats = field(default_factory=lambda: np.zeros((0, 0)), repr=False)
    speculation: Speculation | None = None

    def load_frac(self, accounting: str) -> float:
        """Share of the expert-load counter that an accounting counts: full, per_gpu (a shard), one_matrix (of three)."""
        shares = dict(zip(LOADS, (1.0, 1.0 / self.n_devices, 1.0 / self.geometry.ffn_matrices), strict=True))
        if accounting not in shares:
            raise ValueError(f"load_accounting {accounting!r} is unknown; choose {', '.join(LOADS)}")
        return shares[accounting]


def cost_tables(
    geometry: Geometry,
    machine: HardwareSpec,
    constants: ServingConstants,
    coverage: Coverage,
    expert_format: str = "bf16",
    by_layer: bool = False,
    expert_times: Floats | None = None,
    speculation: Speculation | None = None,
) -> CostTables:
    """Coefficients for a model whose layers are shared by all devices of the machine (tensor parallelism).

    by_layer: a kind of its own for every MoE layer, which exact recorded coverage needs. expert_times: seconds of a layer's
    experts by tokens and share touched (replay/serving/experts.py) in place of the constants'. speculation: every decode is a
    draft-and-verify round. Raises ValueError for windows of
    several sizes, BadSpec where the machine lacks a link or a data type.
    """
    windows = {w for w in geometry.sliding_windows if w}
    if len(windows) > 1:
        raise ValueError(f"{geometry.architecture}: windows of {sorted(windows)} tokens; one size per model is supported")
    if geometry.moe_layers:
        prefill, decode = coverage.tables(geometry)
    else:
        prefill = decode = np.zeros((2, 1))
    if speculation is not None and speculation.n_nodes:
        decode = at_multiples(decode, coverage.tokens_of_nodes(speculation.n_nodes))
    by_layer = by_layer or prefill.shape[1] > 1
    moe_index = {layer: i for i, layer in enumerate(geometry.moe_layers)}
    sizes = geometry.sliding_windows or (0,) * geometry.n_layers
    keys = [
        (moe_index.get(layer, -1) if by_layer else -1, layer in moe_index, bool(sizes[layer]))
        for layer in range(geometry.n_layers)
    ]
    kinds = list(dict.fromkeys(keys))
    of_layer = np.array([kinds.index(key) for key in keys])
    before = np.zeros((geometry.n_layers + 1, len(kinds)))
    before[1:] = np.cumsum(of_layer[:, None] == np.arange(len(kinds)), axis=0)
    rows = [_layer(geometry, machine, constants, expert_format, is_moe, is_windowed) for _, is_moe, is_windowed in kinds]
    columns = [moe % prefill.shape[1] if is_moe else -1 for moe, is_moe, _ in kinds]
    return CostTables(
        geometry,
        machine.name,
        constants,
        machine.n_devices,
        expert_format,
        coverage.outside(geometry) if geometry.moe_layers else "",
        np.array(rows),
        _engine(geometry, machine, constants, speculation),
        before,
        np.array([moe for moe, _, _ in kinds], np.int64),
        _of_kinds(prefill, columns),
        _of_kinds(decode, columns),
        windows.pop() if windows else 0,
        np.zeros((0, 0)) if expert_times is None else np.ascontiguousarray(expert_times, np.float64),
        speculation,
    )


def decode_step_s(cost: CostTables, batch: int, context_tokens: int) -> float:
    """Seconds of an iteration of `batch` decodes, each attending to so many tokens, and no prefill."""
    keys = float(batch * context_tokens), float(batch * min(context_tokens, cost.window))
    covered_frac = np.array([covered(cost.cov_decode, batch, kind) for kind in range(len(cost.layers))])
    nothing = np.zeros_like(covered_frac)
    parts = iteration_cost(
        cost.layers,
        cost.engine,
        cost.expert_times,
        nothing,
        cost.layers_before[-1],
        covered_frac,
        covered_frac,
        0,
        batch,
        0.0,
        0.0,
        *keys,
    )
    return float(sum(parts[:N_TIMES]))


def _of_kinds(table: Floats, columns: list[int]) -> Floats:
    """A column per kind of layer; a dense one has no experts to touch."""
    return np.ascontiguousarray(np.column_stack([np.zeros(len(table)) if c < 0 else table[:, c] for c in columns]))


def _layer(
    geometry: Geometry, machine: HardwareSpec, constants: ServingConstants, expert_format: str, is_moe: bool, is_windowed: bool
) -> list[float]:
    """A row of CostTables.layers, in the order of step.py."""
    bytes_per_s = machine.n_devices * machine.tiers[machine.fast].peak_bytes_per_s.value
    ops_per_s = machine.n_devices * machine.compute.ops_per_s[machine.dtype].value
    expert_bytes = float(geometry.n_experts * geometry.expert_bytes(expert_format)[0]) if is_moe else 0.0
    expert_ops = 2.0 * geometry.top_k * geometry.expert_params if is_moe else 0.0
    # What every token uses is a plain matrix product: projections, shared experts, the FFN of a dense layer.
    always_wide = geometry.shared_intermediate if is_moe else geometry.dense_intermediate
    dense = geometry.attention_params + geometry.ffn_matrices * geometry.hidden * always_wide
    pair_ops = 2.0 * geometry.n_heads * (geometry.head_dim + (geometry.v_head_dim or geometry.head_dim))
    kv_bytes = geometry.kv_elements_per_token_layer * VALUE_BYTES
    row = [
        expert_bytes / (bytes_per_s * constants.expert_bandwidth_frac),
        expert_ops / (ops_per_s * constants.expert_ops_frac),
        dense * VALUE_BYTES / (bytes_per_s * constants.dense_bandwidth_frac),
        2.0 * dense / (ops_per_s * constants.dense_ops_frac),
        pair_ops / (ops_per_s * constants.attention_ops_frac),
        kv_bytes / (bytes_per_s * constants.kv_bandwidth_frac),
        float(is_windowed),
        expert_bytes,
        float(dense * VALUE_BYTES),
        float(kv_bytes),
        2.0 * constants.activation_passes * geometry.hidden,
        expert_ops + 2.0 * dense,
        pair_ops,
    ]
    assert len(row) == N_LAYER
    return row


def _engine(geometry: Geometry, machine: HardwareSpec, constants: ServingConstants, speculation: Speculation | None) -> Floats:
    """CostTables.engine, in the order of step.py."""
    bytes_per_s = machine.n_devices * machine.tiers[machine.fast].peak_bytes_per_s.value
    # The latency is the machine's own closed form; the bytes go at the constants' share of the link's peak.
    latency_s = float(all_reduce_s(machine, np.zeros(1))[0])
    link = machine.link(machine.fast, machine.fast)
    token_s = 0.0
    if machine.n_devices > 1 and link is not None:
        share = 2.0 * (machine.n_devices - 1) / machine.n_devices
        token_s = share * geometry.hidden * VALUE_BYTES / (link.peak_bytes_per_s.value * constants.link_frac)
    engine = np.array(
        [
            2.0 * latency_s,
            2.0 * token_s,
            constants.prefill_layer_s,
            constants.decode_layer_s,
            constants.prefill_token_s * geometry.hidden / REFERENCE_HIDDEN,
            geometry.vocab * geometry.hidden * VALUE_BYTES / (bytes_per_s * constants.dense_bandwidth_frac),
            constants.prefill_iteration_s,
            constants.decode_iteration_s,
            constants.kv_bandwidth_frac,
            constants.kv_frac_per_decode,
            constants.time_multiplier,
            *((speculation.n_nodes, speculation.draft_s) if speculation else (0, 0.0)),
        ],
        np.float64,
    )
    assert engine.size == N_ENGINE
    return engine
