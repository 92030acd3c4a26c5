"""What the memory of a serving engine holds: weights, what an iteration computes with, and KV blocks from what is left.

As vLLM sizes its cache (`gpu_memory_utilization`): a share of all the devices' memory, less the weights, less the peak of a pass
over as many tokens as an iteration may carry. Not counted: the driver's context and communication buffers, 1 to 2 GB per GPU, by
which five real servers on H100s have 1 to 3 % fewer blocks than come out here (docs/serving.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokentape.hw.spec import HardwareSpec
from tokentape.policies.serving import BatchRule
from tokentape.warehouse.formats import bytes_per_value
from tokentape.warehouse.geometry import Geometry
from tokentape.warehouse.model_sizes import kv_copies, parameters, weight_bytes

MEMORY_FRAC = 0.9  # the engines' default
KV_FRAC = 0.5  # of what a machine has for KV and for experts that not all fit (assumed)
BLOCK_TOKENS = 16
VALUE_BYTES = 2  # weights but routed experts, activations and the KV cache: bf16
# Of a rule that takes whole prompts and names no budget: the longest prompt of the paper's server (assumed).
WHOLE_PROMPT_TOKENS = 32_768
_LOGIT_BYTES = 6  # of a logit as the output head makes it, and in single precision


@dataclass(frozen=True)
class Footprint:
    """Bytes of a model on all devices of a machine together. block_bytes: KV of BLOCK_TOKENS tokens in all layers; windows: those
    fields of `Limits`. movable_bytes: of the weights, experts that may stay at a home of their own."""

    model: str
    machine: str
    memory_bytes: float
    weights_bytes: int
    activation_bytes: int
    block_bytes: int
    windows: Mapping[str, Any]
    movable_bytes: int = 0

    def kv_blocks(self, memory_frac: float = MEMORY_FRAC, kv_frac: float = KV_FRAC) -> int:
        """Blocks that fit this share of the memory beside the model, or beside what must lie there with kv_frac of the rest.
        Raises ValueError with the sizes where not one does, and for no share."""
        left = self._left(memory_frac)
        n_blocks = int((left - self.movable_bytes) // self.block_bytes)
        if n_blocks < 1 and self.movable_bytes:
            n_blocks = int(kv_frac * left // self.block_bytes)
        if n_blocks < 1:
            room = memory_frac * self.memory_bytes
            raise ValueError(
                f"{self.model} does not fit {self.machine}: {self._taken} leave no room for a KV cache in {_gb(room)}, "
                f"{100 * memory_frac:g} % of its memory; take more devices or smaller --weights, "
                "or leave memory out of account with --kv-blocks unbounded"
            )
        return n_blocks

    def held_frac(self, n_blocks: int, memory_frac: float = MEMORY_FRAC) -> float:
        """Share of the movable experts that fit beside so many blocks."""
        if not self.movable_bytes:
            return 1.0
        return float(min(1.0, max(0.0, self._left(memory_frac) - n_blocks * self.block_bytes) / self.movable_bytes))

    def _left(self, memory_frac: float) -> float:
        """For KV blocks and movable experts."""
        if not 0.0 < memory_frac <= 1.0:
            raise ValueError(f"--memory-frac {memory_frac:g} must be above 0 and at most 1")
        return memory_frac * self.memory_bytes - (self.weights_bytes - self.movable_bytes + self.activation_bytes)

    def refuse_more_than_fit(self, n_blocks: int) -> None:
        """Raises ValueError with the sizes where so many blocks do not fit the whole memory."""
        most = int(self._left(1.0) // self.block_bytes) if self.movable_bytes else self.kv_blocks(1.0)
        if n_blocks > most:
            raise ValueError(
                f"kv_blocks is {n_blocks}, {_gb(n_blocks * self.block_bytes)}: beside {self._taken} there is room for {most} "
                f"in the {_gb(self.memory_bytes)} of {self.machine}; take fewer, or --kv-blocks unbounded"
            )

    @property
    def _taken(self) -> str:
        return f"{_gb(self.weights_bytes)} of weights and {_gb(self.activation_bytes)} of activations"


def footprint(
    model: str,
    geometry: Geometry,
    machine: HardwareSpec,
    expert_format: str,
    rule: BatchRule,
    max_seqs: int,
    n_nodes: int = 0,
    formats: Mapping[str, str] | None = None,
    kv_format: str = "bf16",
    n_replicas: int = 0,
) -> Footprint:
    """What a model takes of a machine whose devices share every layer (tensor parallelism), under a scheduler's rule.

    model: its name in errors. Weights but routed experts are bf16, or of the formats of their kinds. Every device keeps the
    hidden states; KV heads are copied where there are fewer of them than devices, as the one latent of MLA is. n_nodes: drafts
    that a decode has verified beside its token; n_replicas: slots of a layer beyond one per expert. Memory is the upper end of
    the tier's band, as drivers count it: that of the weights' home. Where experts have a home of their own only those that are
    cached lie in it."""
    n_devices, sizes = machine.n_devices, []
    for size, of in geometry.caches:
        copies = kv_copies(of, machine.tensor_parallel)
        sizes.append((size, round(copies * BLOCK_TOKENS * of.kv_elements_per_token_layer * bytes_per_value(kv_format))))
    of_windowed, of_others = (sum(n for size, n in sizes if (size > 0) == has) for has in (True, False))
    # Layers with a window are in groups as large as the others, the last one filled up; where they are fewer, they take as many.
    windowed = -(-of_windowed // of_others) if 0 < of_others <= of_windowed else 0
    block_bytes = (1 + windowed) * of_others if windowed else of_windowed + of_others
    weights = weight_bytes(geometry, expert_format, "bf16", "bf16") - _saved_bytes(geometry, formats or {})
    weights += n_replicas * sum(geometry.expert_bytes(expert_format)) if n_replicas else 0
    if machine.data_parallel > 1:
        routed = sum(geometry.expert_bytes(expert_format)) * (geometry.n_experts + n_replicas) if geometry.moe_layers else 0
        weights += (machine.data_parallel - 1) * (weights - routed)
    roles, movable = machine.roles, 0
    if roles.expert_home != roles.weights_home and geometry.moe_layers:
        experts = len(geometry.moe_layers) * geometry.n_experts * geometry.expert_bytes(expert_format)[0]
        movable, weights = (experts, weights) if roles.expert_cache == roles.weights_home else (0, weights - experts)
    of_replica = activation_bytes(geometry, machine.tensor_parallel, rule, -(-max_seqs // machine.data_parallel), n_nodes)
    activations = machine.data_parallel * of_replica
    memory = machine.tiers[roles.weights_home].capacity_bytes.high * n_devices
    windows = {"windowed": windowed, "window_tokens": max(sizes, default=(0,))[0], "has_states": bool(geometry.state_layers)}
    return Footprint(model, machine.name, memory, weights, activations, block_bytes, windows if windowed else {}, movable)


def _saved_bytes(geometry: Geometry, formats: Mapping[str, str]) -> int:
    """Of matrices that are kept in fewer bits than 16."""
    of = parameters(geometry)
    kinds = {"proj": of.attention, "dense_ffn": of.dense_ffn, "shared": of.shared_ffn, "router": of.routers, "head": of.head}
    return round(sum(kinds[kind] * (VALUE_BYTES - bytes_per_value(told)) for kind, told in formats.items()))


def activation_bytes(geometry: Geometry, n_devices: int, rule: BatchRule, max_seqs: int, n_nodes: int) -> int:
    """The peak of a layer over the tokens of the largest iteration, with the logits of every request."""
    g, decodes = geometry, max_seqs * (1 + n_nodes)
    n_prefill = min(rule.budget_tokens, WHOLE_PROMPT_TOKENS)
    n_tokens = max(n_prefill, decodes) if rule.counts_decodes else n_prefill + decodes
    attention = max(2 * of.n_heads * of.head_dim + of.kv_elements_per_token_layer for of in (g.alike(False), g.alike(True)))
    dense = g.dense_intermediate if g.n_dense else g.shared_intermediate
    widths = [attention, g.mixer_in, g.ffn_matrices * dense]
    if g.moe_layers:  # of every selection: gate and up or, in their place, the down product, and what the activation makes
        gates = (g.ffn_matrices - 1) * g.expert_intermediate
        widths.append(g.top_k * (max(gates, n_devices * g.moe_hidden) + g.expert_intermediate))
    per_token = 2 * g.hidden * n_devices + max(widths)
    return VALUE_BYTES * n_tokens * per_token + decodes * g.vocab * _LOGIT_BYTES * n_devices


def _gb(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:.3g} GB"
