"""One step of a serving engine without a tape of it: a batch of decodes, and a prompt's slice, as named operations on a machine.

On a GPU with fitted constants, times are those of the operator models (hw/operators); elsewhere an operation takes the longer of
its bytes and its operations at the machine's reached rates. Operations follow one another. Norms, rotary embedding, activation
functions of dense layers, sampling and host time are not counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tokentape.hw.calibrate import Fit, gpu_of
from tokentape.hw.collective import all_reduce_s
from tokentape.hw.cost import rates
from tokentape.hw.spec import HardwareSpec
from tokentape.hw.timeline import Operation, Serial
from tokentape.warehouse.formats import value_bytes
from tokentape.warehouse.geometry import Geometry
from tokentape.warehouse.model_sizes import kv_bytes, weight_bytes

ACTIVATION = "bf16"
ATTENTION, ALL_REDUCE = ("decode attention", "prefill attention"), "all-reduce"  # names of operations


@dataclass(frozen=True, kw_only=True)
class Load:
    """What the step carries. batch: requests that decode one token each, context_tokens: what each attends to, itself included.
    prompt_tokens: tokens of one prompt, from its start, that are processed with them."""

    batch: int
    context_tokens: int
    prompt_tokens: int = 0

    def __post_init__(self) -> None:
        if min(self.batch, self.prompt_tokens) < 0 or not self.batch + self.prompt_tokens:
            raise ValueError(
                f"a step needs decodes or prompt tokens, got batch {self.batch} and {self.prompt_tokens} prompt tokens"
            )
        if self.batch and self.context_tokens < 1:
            raise ValueError(f"context_tokens must count the token itself, got {self.context_tokens}")

    @property
    def n_tokens(self) -> int:
        return self.batch + self.prompt_tokens


@dataclass(frozen=True)
class Estimate:
    """The step, and what of it lies outside the range its costs were fitted on, one sentence each."""

    step: Serial
    outside: tuple[str, ...]


def estimate(
    geometry: Geometry,
    machine: HardwareSpec,
    load: Load,
    active_experts: float,
    fits: Mapping[str, Fit] | None = None,
    weight_format: str = "bf16",
) -> Estimate:
    """The operations of one step in the order they run.

    active_experts: distinct routed experts per MoE layer, from a tape or a closed form; not used by dense models. fits: constants
    of this machine's operators, in bf16; without them the roofline. Raises ValueError for a format or geometry it cannot cost.
    """
    if not geometry.hidden:
        raise ValueError("this tape records no widths; give a model instead (see `tokentape models list`)")
    if fits and weight_format != ACTIVATION:
        raise ValueError(f"operator constants are for {ACTIVATION} weights, not {weight_format}; leave them out for the roofline")
    costing = _Costing(geometry, machine, load, weight_format, fits or {})
    windows = geometry.sliding_windows or (0,) * geometry.n_layers
    kinds = [(layer in geometry.moe_layers, window) for layer, window in enumerate(windows)]
    of_kind = {kind: costing.layer(*kind, active_experts) for kind in dict.fromkeys(kinds)}
    operations = [replace(operation, layer=layer) for layer, kind in enumerate(kinds) for operation in of_kind[kind]]
    n_logits = load.batch + bool(load.prompt_tokens)
    operations.append(costing.product("output head", n_logits, geometry.vocab / machine.n_devices, geometry.hidden))
    outside = (*_too_large(geometry, machine, load, weight_format), *costing.outside)
    return Estimate(Serial(tuple(operations)), tuple(dict.fromkeys(outside)))


def beside_weights(made: Estimate, with_attention: bool = True) -> float:
    """Seconds of the step that weights do not explain: attention over the KV cache, launches, and sums over devices."""
    whole = (*ATTENTION, ALL_REDUCE) if with_attention else (ALL_REDUCE,)
    operations = [part for part in made.step.parts if isinstance(part, Operation)]
    return sum(o.seconds if o.name in whole else o.launch_s for o in operations)


def _too_large(geometry: Geometry, machine: HardwareSpec, load: Load, weight_format: str) -> list[str]:
    """A sentence where weights and cache do not fit the tier that the step reads them from."""
    tier = machine.tiers[machine.fast]
    held = weight_bytes(geometry, weight_format, weight_format, ACTIVATION)
    held += load.batch * kv_bytes(geometry, load.context_tokens, ACTIVATION) + kv_bytes(geometry, load.prompt_tokens, ACTIVATION)
    room = tier.capacity_bytes.high * machine.n_devices
    if held <= room:
        return []
    return [
        f"weights and cache ({held / 1e9:.3g} GB) do not fit {machine.fast} ({room / 1e9:.3g} GB), from which all is read here"
    ]


def joules(machine: HardwareSpec, operations: Sequence[Operation]) -> dict[str, tuple[float, float, float]]:
    """Energy of a step by part: (nominal, low, high) joules of fast, link, compute and background, over all devices.

    The band is that of the machine's energies and powers; the step's time is taken as it is.
    """
    seconds = sum(operation.seconds for operation in operations)
    on_engine = [operation for operation in operations if operation.resource == machine.engine]
    n_bytes = machine.n_devices * sum(operation.bytes for operation in on_engine)
    ops = machine.n_devices * sum(operation.ops for operation in on_engine)
    by_end = []
    for end in ("value", "low", "high"):
        at = rates(machine, end)
        link_j = sum(
            8e-12 * getattr(machine.links[o.resource].energy_pj_per_bit, end) * 2.0 * (machine.n_devices - 1) * o.bytes
            for o in operations
            if o.resource in machine.links
        )
        fast_j, compute_j = 8e-12 * at.fast_pj_per_bit * n_bytes, 1e-12 * at.pj_per_op * ops
        by_end.append({"fast": fast_j, "link": link_j, "compute": compute_j, "background": at.background_w * seconds})
    return {part: (by_end[0][part], by_end[1][part], by_end[2][part]) for part in by_end[0]}


class _Costing:
    """Times of the operations of one step; collects what lies outside the fitted range."""

    def __init__(
        self, geometry: Geometry, machine: HardwareSpec, load: Load, weight_format: str, fits: Mapping[str, Fit]
    ) -> None:
        self.geometry, self.machine, self.load, self.fits = geometry, machine, load, fits
        self.weight_format = weight_format
        self.at = rates(machine)
        self.gpu = gpu_of(machine) if fits else None
        self.outside: list[str] = []

    def layer(self, is_moe: bool, window: int, active_experts: float) -> list[Operation]:
        """The operations of one layer on one of the devices that share it."""
        g, load, n_devices = self.geometry, self.load, self.machine.n_devices
        value_dim = g.v_head_dim if g.kv_lora_rank else g.head_dim
        operations = self._projections()
        if load.batch:
            operations.append(self._decode_attention(window))
        if load.prompt_tokens:
            operations.append(self._prefill_attention(window))
        operations.append(self.product("attention output", load.n_tokens, g.hidden, g.n_heads * value_dim / n_devices))
        operations += self._all_reduce()
        width = g.shared_intermediate if is_moe else g.dense_intermediate
        if is_moe:
            operations.append(self.product("router", load.n_tokens, g.n_experts, g.hidden))
            operations.append(self._experts(active_experts))
        if width:
            name = "shared experts" if is_moe else "dense FFN"
            up = (g.ffn_matrices - 1) * width / n_devices
            operations.append(self.product(f"{name}, up", load.n_tokens, up, g.hidden))
            operations.append(self.product(f"{name}, down", load.n_tokens, g.hidden, width / n_devices))
        return operations + self._all_reduce()

    def product(self, name: str, m: float, n: float, k: float) -> Operation:
        """Activations (m, k) times weights (k, n)."""
        n_bytes = value_bytes(round(n * k), self.weight_format) + value_bytes(round(m * (n + k)), ACTIVATION)
        return self._operation(name, "gemm", {"m": m, "n": n, "k": k}, n_bytes, 2.0 * m * n * k)

    def _projections(self) -> list[Operation]:
        """Query, key and value; for MLA through their latents."""
        g, m, n_devices = self.geometry, self.load.n_tokens, self.machine.n_devices
        if not g.kv_lora_rank:
            kv_heads = max(1.0, g.n_kv_heads / n_devices)
            n = (g.n_heads / n_devices + 2 * kv_heads) * g.head_dim
            return [self.product("query, key, value", m, n, g.hidden)]
        query = g.n_heads / n_devices * (g.qk_nope_head_dim + g.qk_rope_head_dim)
        down = g.kv_lora_rank + g.qk_rope_head_dim + g.q_lora_rank
        up = g.n_heads / n_devices * (g.qk_nope_head_dim + g.v_head_dim)
        return [
            self.product("latents", m, down, g.hidden),
            self.product("query", m, query, g.q_lora_rank or g.hidden),
            self.product("key and value up", m, up, g.kv_lora_rank),
        ]

    def _decode_attention(self, window: int) -> Operation:
        g, batch = self.geometry, self.load.batch
        heads = g.n_heads / self.machine.n_devices
        kv_heads = max(1.0, g.n_kv_heads / self.machine.n_devices)
        seen = min(self.load.context_tokens, window or self.load.context_tokens)
        if g.kv_lora_rank:
            ops = 2.0 * batch * heads * seen * (2 * g.kv_lora_rank + g.qk_rope_head_dim)
            n_bytes = value_bytes(batch * seen * g.kv_elements_per_token_layer, ACTIVATION)
            return self._operation("decode attention", None, {}, n_bytes, ops)
        n_bytes = value_bytes(round(batch * seen * 2 * kv_heads * g.head_dim), ACTIVATION)
        shape = self._heads(heads, kv_heads, window) | {"batch_size": batch, "isl": 1, "step": self.load.context_tokens - 1}
        return self._operation("decode attention", "decode_attention", shape, n_bytes, 4.0 * batch * heads * seen * g.head_dim)

    def _prefill_attention(self, window: int) -> Operation:
        g, n = self.geometry, self.load.prompt_tokens
        heads = g.n_heads / self.machine.n_devices
        kv_heads = max(1.0, g.n_kv_heads / self.machine.n_devices)
        full = min(n, window or n)
        pairs = full * (full + 1) / 2 + (n - full) * full
        value_dim = g.v_head_dim if g.kv_lora_rank else g.head_dim
        ops = 2.0 * heads * pairs * (g.head_dim + value_dim)
        n_bytes = value_bytes(round(n * (2 * heads + 2 * kv_heads) * g.head_dim), ACTIVATION)
        if g.kv_lora_rank:
            return self._operation("prefill attention", None, {}, n_bytes, ops)
        shape = self._heads(heads, kv_heads, window) | {"batch_size": 1, "isl": n}
        return self._operation("prefill attention", "prefill_attention", shape, n_bytes, ops)

    def _heads(self, heads: float, kv_heads: float, window: int) -> dict[str, float]:
        return {"num_heads": heads, "num_key_value_heads": kv_heads, "head_dim": self.geometry.head_dim, "window_size": window}

    def _experts(self, active_experts: float) -> Operation:
        g, n_tokens, n_devices = self.geometry, self.load.n_tokens, self.machine.n_devices
        chosen = n_tokens * g.top_k
        n_bytes = value_bytes(round(active_experts * g.expert_params / n_devices), self.weight_format)
        n_bytes += value_bytes(round(chosen * (2 * g.hidden + 3 * g.expert_intermediate / n_devices)), ACTIVATION)
        shape = {
            "num_tokens": n_tokens,
            "hidden_size": g.hidden,
            "inter_size": g.expert_intermediate,
            "topk": g.top_k,
            "num_experts": g.n_experts,
            "moe_tp_size": n_devices,
            "moe_ep_size": 1,
            "active_experts": active_experts,
        }
        return self._operation("routed experts", "moe", shape, n_bytes, 2.0 * chosen * g.expert_params / n_devices)

    def _all_reduce(self) -> list[Operation]:
        """The devices' parts of the hidden states, summed; none on one device."""
        if self.machine.n_devices == 1:
            return []
        n_bytes = value_bytes(self.load.n_tokens * self.geometry.hidden, ACTIVATION)
        seconds = float(all_reduce_s(self.machine, np.array([float(n_bytes)]))[0])
        ends = (self.machine.fast, self.machine.fast)
        link = next(name for name, link in self.machine.links.items() if (link.source_tier, link.target_tier) == ends)
        return [Operation(name=ALL_REDUCE, resource=link, seconds=seconds, bytes=n_bytes)]

    def _operation(self, name: str, operator: str | None, shape: Mapping[str, float], n_bytes: float, ops: float) -> Operation:
        """Timed by the operator's fitted model, else by the roofline of one device."""
        fit = self.fits.get(operator or "")
        if fit is None or self.gpu is None:
            if self.fits:
                self.outside.append(f"{name}: no measured operator of this kind, so its time is a roofline's")
            per_device = self.machine.n_devices
            seconds, launch_s = max(n_bytes / self.at.fast_bytes_per_s, ops / self.at.ops_per_s) * per_device, 0.0
        else:
            arguments: dict[str, NDArray[np.generic]] = {key: np.array([value]) for key, value in shape.items()}
            seconds, launch_s = float(fit.seconds(self.gpu, arguments)[0]), fit.constants["launch_s"]
            if fit.is_extrapolated(arguments)[0]:
                self.outside.append(f"{name}: {_beyond(fit, shape)}")
        resource = self.machine.engine
        return Operation(name=name, resource=resource, seconds=seconds, bytes=n_bytes, ops=ops, launch_s=launch_s)


def _beyond(fit: Fit, shape: Mapping[str, float]) -> str:
    """The arguments outside the fitted range, in words."""
    ranges = {name: fit.ranges[name] for name in shape if name in fit.ranges}
    named = [f"{k} {shape[k]:g} outside {low:g} to {high:g}" for k, (low, high) in ranges.items() if not low <= shape[k] <= high]
    return ", ".join(named)
