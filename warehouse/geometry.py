"""Model geometry: what a tape's manifest says about the model, and the bytes that follow from it.

One place for layers, experts, heads and parameter counts, read from a Hugging Face config.json. Knows nothing of weights.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

# Bytes per weight with the scale's share: int8-g32 and int4 carry one FP16 scale per 32 weights (ELMoE-3D section 3),
# MXFP4 one 8-bit scale per 32 (OCP Microscaling v1.0).
EXPERT_FORMATS: dict[str, float] = {
    "int8-g32": 1.0 + 2 / 32,
    "int4": 0.5 + 2 / 32,
    "mxfp4": 4.25 / 8,
    "fp16": 2.0,
    "bf16": 2.0,
    "fp32": 4.0,
}
FLOAT_FORMATS = ("fp16", "bf16", "fp32")


class Geometry(BaseModel):
    """Shape of a model. Widths in elements, sizes in bytes; lists run over `moe_layers` in order."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    architecture: str
    n_layers: int
    hidden: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab: int
    moe_layers: tuple[int, ...] = ()
    n_experts: int = 0
    top_k: int = 0
    n_shared_experts: int = 0
    expert_intermediate: int = 0
    shared_intermediate: int = 0
    dense_intermediate: int = 0
    kv_lora_rank: int = 0
    q_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    qk_nope_head_dim: int = 0
    v_head_dim: int = 0
    is_glu: bool = True
    # Bytes of one routed expert per MoE layer, and of everything else a token reads per MoE layer, where an engine recorded
    # them; empty: they follow from the widths and the expert format.
    recorded_expert_bytes: tuple[int, ...] = ()
    recorded_dense_bytes: tuple[int, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Geometry:
        if self.moe_layers and not 0 < self.top_k <= self.n_experts:
            raise ValueError(f"top_k {self.top_k} must lie in 1..n_experts ({self.n_experts})")
        if any(not 0 <= layer < self.n_layers for layer in self.moe_layers):
            raise ValueError(f"moe_layers {self.moe_layers} must lie in 0..{self.n_layers - 1}")
        for name in ("recorded_expert_bytes", "recorded_dense_bytes"):
            if getattr(self, name) and len(getattr(self, name)) != len(self.moe_layers):
                raise ValueError(f"{name} needs one entry per MoE layer ({len(self.moe_layers)})")
        return self

    @property
    def ffn_matrices(self) -> int:
        return 3 if self.is_glu else 2

    @property
    def expert_params(self) -> int:
        """Weights of one routed expert."""
        return self.ffn_matrices * self.hidden * self.expert_intermediate

    @property
    def attention_params(self) -> int:
        """Weights of one layer's attention projections."""
        h = self.hidden
        if self.kv_lora_rank:
            qk = self.qk_nope_head_dim + self.qk_rope_head_dim
            q = h * self.q_lora_rank + self.q_lora_rank * self.n_heads * qk if self.q_lora_rank else h * self.n_heads * qk
            kv = h * (self.kv_lora_rank + self.qk_rope_head_dim)
            up = self.kv_lora_rank * self.n_heads * (self.qk_nope_head_dim + self.v_head_dim)
            return q + kv + up + self.n_heads * self.v_head_dim * h
        return 2 * h * self.n_heads * self.head_dim + 2 * h * self.n_kv_heads * self.head_dim

    @property
    def non_expert_params(self) -> int:
        """Weights a decode token reads besides routed experts: attention, shared and dense FFNs, routers, lm_head."""
        n_moe = len(self.moe_layers)
        shared = self.ffn_matrices * self.hidden * self.shared_intermediate + self.hidden * self.n_experts
        dense = self.ffn_matrices * self.hidden * self.dense_intermediate * (self.n_layers - n_moe)
        return self.n_layers * self.attention_params + n_moe * shared + dense + self.vocab * self.hidden

    @property
    def kv_elements_per_token_layer(self) -> int:
        """Cached elements per token and layer; MLA keeps one latent and the RoPE part."""
        if self.kv_lora_rank:
            return self.kv_lora_rank + self.qk_rope_head_dim
        return 2 * self.n_kv_heads * self.head_dim

    def expert_bytes(self, expert_format: str) -> tuple[int, ...]:
        """Bytes of one routed expert, per MoE layer. 'recorded' takes what the engine wrote into the tape."""
        if expert_format == "recorded":
            if not self.recorded_expert_bytes:
                raise ValueError(f"this tape records no expert sizes; give --expert-format {'|'.join(EXPERT_FORMATS)}")
            return self.recorded_expert_bytes
        if expert_format not in EXPERT_FORMATS:
            raise ValueError(f"unknown expert format {expert_format!r}; known: recorded, {', '.join(EXPERT_FORMATS)}")
        if not self.expert_params:
            raise ValueError("this tape records no expert width; use --expert-format recorded")
        return tuple(round(self.expert_params * EXPERT_FORMATS[expert_format]) for _ in self.moe_layers)

    def non_expert_bytes(self, expert_format: str) -> int:
        """Bytes of non-expert weights read per decode token: as recorded, else INT8 (1 byte per weight)."""
        if expert_format == "recorded" and self.recorded_dense_bytes:
            return sum(self.recorded_dense_bytes)
        return self.non_expert_params


def _first(config: dict[str, Any], *names: str, default: Any = 0) -> Any:
    for name in names:
        if config.get(name) is not None:
            return config[name]
    return default


def _moe_layers(config: dict[str, Any], n_layers: int, n_experts: int) -> tuple[int, ...]:
    if not n_experts:
        return ()
    first_dense = _first(config, "first_k_dense_replace")
    step = _first(config, "decoder_sparse_step", "moe_layer_freq", default=1)
    if isinstance(step, list):
        return tuple(i for i, moe in enumerate(step) if moe)
    dense_only = set(_first(config, "mlp_only_layers", default=[]))
    layer_types = config.get("mlp_layer_types")
    if layer_types:
        return tuple(i for i, kind in enumerate(layer_types) if kind == "sparse")
    return tuple(i for i in range(first_dense, n_layers) if i not in dense_only and (i + 1) % max(1, step) == 0)


def from_config(config: dict[str, Any]) -> Geometry:
    """Geometry from a Hugging Face config.json (as a dict), for the MoE and dense families of docs/capture.md.

    Raises ValueError naming the field that is missing.
    """
    config = config.get("text_config", config)
    for field in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"):
        if field not in config:
            raise ValueError(f"config.json: {field} is missing; give the config of a decoder-only language model")
    hidden, n_layers, n_heads = config["hidden_size"], config["num_hidden_layers"], config["num_attention_heads"]
    n_experts = _first(config, "num_experts", "n_routed_experts", "num_local_experts")
    moe_layers = _moe_layers(config, n_layers, n_experts)
    intermediate = _first(config, "intermediate_size", "ffn_dim", default=4 * hidden)
    expert_intermediate = _first(config, "moe_intermediate_size", default=intermediate) if n_experts else 0
    n_shared = _first(config, "n_shared_experts") if n_experts else 0
    shared = _first(config, "shared_expert_intermediate_size", "shared_intermediate_size", default=n_shared * expert_intermediate)
    return Geometry(
        architecture=_first(config, "architectures", default=[config.get("model_type", "unknown")])[0],
        n_layers=n_layers,
        hidden=hidden,
        n_heads=n_heads,
        n_kv_heads=_first(config, "num_key_value_heads", default=n_heads),
        head_dim=_first(config, "head_dim", default=hidden // n_heads),
        vocab=config["vocab_size"],
        moe_layers=moe_layers,
        n_experts=n_experts,
        top_k=_first(config, "num_experts_per_tok", "num_experts_per_token", "moe_topk", default=0) if n_experts else 0,
        n_shared_experts=n_shared or (1 if n_experts and shared else 0),
        expert_intermediate=expert_intermediate,
        shared_intermediate=shared if n_experts else 0,
        dense_intermediate=intermediate,
        kv_lora_rank=_first(config, "kv_lora_rank"),
        q_lora_rank=_first(config, "q_lora_rank"),
        qk_rope_head_dim=_first(config, "qk_rope_head_dim"),
        qk_nope_head_dim=_first(config, "qk_nope_head_dim"),
        v_head_dim=_first(config, "v_head_dim"),
        is_glu=config.get("model_type") not in ("opt",),
    )
