"""Model geometry: what a tape's manifest says about the model, read from a Hugging Face config.json.

One place for layers, experts, heads, widths and every detail that changes a count. Parameters, bytes and operations that follow
are in warehouse.model_sizes, the models that ship in warehouse.models. Knows nothing of weights.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from tokentape.warehouse.config_fields import canonical, moe_layers, text_config
from tokentape.warehouse.formats import EXPERT_FORMATS, FLOAT_FORMATS
from tokentape.warehouse.mixers import layers_alone, layers_with_state, mixer_of

MOST_WIDE = 2**24  # of any width
MOST = 2**16  # layers, and experts of a layer: the tape numbers both with 16 bits

__all__ = ["EXPERT_FORMATS", "FAMILIES", "FLOAT_FORMATS", "Geometry", "from_config", "text_config"]


class Geometry(BaseModel):
    """Shape of a model. Widths in elements, sizes in bytes; lists run over `moe_layers` in order unless said otherwise.

    head_dim is the width of a query; with multi-head latent attention (MLA) its RoPE part is included. Fields with a default may
    be absent from a manifest.
    """

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
    expert_hidden: int = 0  # what experts read and write where that is not `hidden`
    shared_intermediate: int = 0
    dense_intermediate: int = 0
    kv_lora_rank: int = 0
    q_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    qk_nope_head_dim: int = 0
    v_head_dim: int = 0
    is_glu: bool = True
    is_tied: bool = False  # the output head is the input embedding table
    sliding_windows: tuple[int, ...] = ()  # tokens a layer attends to, itself included; 0: all; one per layer, or () for all
    # Layers with a state in place of keys and values: it is as large as those of `sliding_windows` tokens (a shorter context is
    # counted as its own tokens). Widths of what its input and its output pass, and its other parameters.
    state_layers: tuple[int, ...] = ()
    mixer_in: int = 0
    mixer_out: int = 0
    mixer_others: int = 0
    without_ffn: tuple[int, ...] = ()  # layers of attention, or a state, alone
    without_mixing: tuple[int, ...] = ()  # layers of an FFN alone
    n_positions: int = 0  # rows of a learned position table
    attention_bias: Literal["none", "qkv", "qkvo"] = "none"
    qk_norm: Literal["none", "head", "width"] = "none"  # one weight per element of a head, or of all heads together
    has_sinks: bool = False  # a learned attention sink per head
    has_query_gate: bool = False  # a gate on every head's output, as wide as the query
    has_ffn_bias: bool = False  # in every FFN matrix, experts' included
    has_router_bias: bool = False
    has_shared_gate: bool = False  # a learned scalar gate on the shared experts
    has_norm_bias: bool = False
    norms_per_layer: int = 2
    # Bytes of one routed expert per MoE layer, and of everything else a token reads per MoE layer, where an engine recorded
    # them; empty: they follow from the widths and the expert format.
    recorded_expert_bytes: tuple[int, ...] = ()
    recorded_dense_bytes: tuple[int, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Geometry:
        for name, value in self:
            least = min(value, default=0) if isinstance(value, tuple) else value
            if isinstance(least, int) and least < 0:
                raise ValueError(f"{name} is {least}; it must not be negative")
            if isinstance(value, int) and value > MOST_WIDE:
                raise ValueError(f"{name} is {value}; {MOST_WIDE} is the most")
        if max(self.n_layers, self.n_experts) > MOST:
            raise ValueError(f"{self.n_layers} layers of {self.n_experts} experts: {MOST} are the most of either")
        if any(a >= b for a, b in pairwise(self.moe_layers)):
            raise ValueError(f"moe_layers {self.moe_layers} must rise")
        if self.n_experts and not self.moe_layers:
            raise ValueError(f"moe_layers is empty, but there are {self.n_experts} experts")
        if self.moe_layers and not 0 < self.top_k <= self.n_experts:
            raise ValueError(f"top_k {self.top_k} must lie in 1..n_experts ({self.n_experts})")
        if any(not 0 <= layer < self.n_layers for layer in self.moe_layers):
            raise ValueError(f"moe_layers {self.moe_layers} must lie in 0..{self.n_layers - 1}")
        if self.sliding_windows and len(self.sliding_windows) != self.n_layers:
            raise ValueError(f"sliding_windows needs one entry per layer ({self.n_layers}), or none")
        for name in ("recorded_expert_bytes", "recorded_dense_bytes"):
            if getattr(self, name) and len(getattr(self, name)) != len(self.moe_layers):
                raise ValueError(f"{name} needs one entry per MoE layer ({len(self.moe_layers)})")
        return self

    def completed(self, model: Geometry, name: str) -> Geometry:
        """With the widths and heads of the model that a tape is of; its top-k and recorded sizes stay. Raises ValueError where it
        is another."""
        for field in ("n_layers", "n_experts", "moe_layers"):
            if getattr(model, field) != getattr(self, field):
                found = f"{field} is {getattr(model, field)}, the tape's is {getattr(self, field)}"
                raise ValueError(f"--model {name}: {found}; give the tape's own model")
        kept = {field: getattr(self, field) for field in ("top_k", "recorded_expert_bytes", "recorded_dense_bytes")}
        return Geometry(**{**model.model_dump(), **kept})

    @property
    def ffn_matrices(self) -> int:
        return 3 if self.is_glu else 2

    @property
    def expert_params(self) -> int:
        """Weights of one routed expert."""
        return self.ffn_matrices * (self.expert_hidden or self.hidden) * self.expert_intermediate

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
        return h * self.head_dim * ((2 + self.has_query_gate) * self.n_heads + 2 * self.n_kv_heads)

    def mixing_params(self, layer: int) -> int:
        """Weights of the attention projections of a layer, or of what it has in their place."""
        if layer in self.without_mixing:
            return 0
        return self.hidden * (self.mixer_in + self.mixer_out) if layer in self.state_layers else self.attention_params

    @property
    def all_mixing_params(self) -> int:
        """The same of all layers."""
        return sum(map(self.mixing_params, range(self.n_layers)))

    def kind_of(self, layer: int) -> tuple[int, ...]:
        """What layers that cost alike have in common: experts, window, a state, no FFN, no attention or state."""
        among = (self.state_layers, self.without_ffn, self.without_mixing)
        return (layer in self.moe_layers, self.windows_by_layer[layer], *(layer in layers for layers in among))

    def without_windows(self) -> Geometry:
        """As if every layer that attends did so to all tokens."""
        sizes = (self.state_tokens if layer in self.state_layers else 0 for layer in range(self.n_layers))
        return self.model_copy(update={"sliding_windows": tuple(sizes) if self.state_layers else ()})

    @property
    def attending(self) -> tuple[int, ...]:
        """Layers with keys and values."""
        return tuple(layer for layer in range(self.n_layers) if layer not in self.state_layers + self.without_mixing)

    @property
    def n_dense(self) -> int:
        """Layers with a dense FFN."""
        return self.n_layers - len(self.moe_layers) - len(self.without_ffn)

    @property
    def windows(self) -> tuple[int, ...]:
        """Of layers that attend or keep a state; 0: all tokens."""
        return tuple(window for layer, window in enumerate(self.windows_by_layer) if layer not in self.without_mixing)

    @property
    def windows_by_layer(self) -> tuple[int, ...]:
        """Of every layer; 0: all tokens, or nothing to attend to."""
        return self.sliding_windows or (0,) * self.n_layers

    @property
    def state_tokens(self) -> int:
        """Tokens whose keys and values are as large as the state of a layer that keeps one."""
        return self.sliding_windows[self.state_layers[0]] if self.state_layers else 0

    @property
    def non_expert_params(self) -> int:
        """Weights a decode token reads besides routed experts: attention, shared and dense FFNs, routers, lm_head."""
        n_moe, ffn = len(self.moe_layers), self.ffn_matrices * self.hidden
        feeding = n_moe * (ffn * self.shared_intermediate + self.hidden * self.n_experts)
        feeding += self.n_dense * ffn * self.dense_intermediate
        return self.all_mixing_params + feeding + self.vocab * self.hidden

    def layer_params(self, layer: int) -> int:
        """Weights of one layer besides routed experts: attention, then shared experts and router, or the dense FFN."""
        ffn = self.ffn_matrices * self.hidden
        if layer in self.moe_layers:
            return self.mixing_params(layer) + ffn * self.shared_intermediate + self.hidden * self.n_experts
        return self.mixing_params(layer) + (0 if layer in self.without_ffn else ffn * self.dense_intermediate)

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

    def value_format(self, expert_format: str) -> str:
        """Of all other weights: the experts' own, or that nearest to the sizes which an engine recorded."""
        if expert_format != "recorded":
            return expert_format
        per_value = sum(self.expert_bytes("recorded")) / (len(self.moe_layers) * max(1, self.expert_params))
        return min(EXPERT_FORMATS, key=lambda name: abs(EXPERT_FORMATS[name] - per_value))

    def non_expert_bytes(self, expert_format: str) -> int:
        """Bytes of non-expert weights read per decode token: as recorded, else INT8 (1 byte per weight)."""
        if expert_format == "recorded" and self.recorded_dense_bytes:
            return sum(self.recorded_dense_bytes)
        return self.non_expert_params

    def non_expert_bytes_by_layer(self, expert_format: str) -> tuple[int, ...]:
        """The same layer by layer, and the output head's last; recorded ones count as their MoE layer's, the head among them."""
        if expert_format == "recorded" and self.recorded_dense_bytes:
            of_layer = dict(zip(self.moe_layers, self.recorded_dense_bytes, strict=True))
            return (*(of_layer.get(layer, 0) for layer in range(self.n_layers)), 0)
        return (*(self.layer_params(layer) for layer in range(self.n_layers)), self.vocab * self.hidden)


_OF_LATENTS = ("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
_REQUIRED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
_LEAST = {  # of a field that is given
    **dict.fromkeys((*_REQUIRED, "num_key_value_heads", "head_dim", "intermediate_size"), 1),
    **dict.fromkeys(("num_experts", "n_shared_experts", "first_k_dense_replace", "num_experts_per_tok"), 0),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", *_OF_LATENTS), 0),
    **dict.fromkeys(("sliding_window", "max_window_layers"), 0),
}
_ENCODERS = ("bert", "clip", "electra", "mpnet")  # one of them is within the model_type of an encoder
_WANTED = "give the config of a decoder-only language model"


def _check(config: dict[str, Any]) -> None:
    """Raises ValueError naming the first field that is missing, or that no decoder has like this."""
    model_type, architectures = config["model_type"] or "", config.get("architectures")
    if config.get("is_encoder_decoder") or any(part in model_type for part in _ENCODERS):
        raise ValueError(f"config.json: model_type {model_type!r} has an encoder; {_WANTED}")
    for field in _REQUIRED:
        if config.get(field) is None:
            raise ValueError(f"config.json: {field} is missing; {_WANTED}")
    for field, least in _LEAST.items():
        value = config.get(field)
        if value is not None and (type(value) is not int or value < least):
            raise ValueError(f"config.json: {field} must be a whole number of at least {least}, not {value!r}")
    for field in ("num_hidden_layers", "num_experts"):  # before they are counted through
        if (config.get(field) or 0) > MOST:
            raise ValueError(f"config.json: {field} is {config[field]}; {MOST} are the most")
    is_named = isinstance(architectures, list) and architectures and isinstance(architectures[0], str)
    if architectures is not None and not is_named:
        raise ValueError(f"config.json: architectures must list the name of a class, not {architectures!r}")


def _first(config: dict[str, Any], *names: str, default: Any = 0) -> Any:
    for name in names:
        if config.get(name) is not None:
            return config[name]
    return default


# model_types whose counts were checked against transformers, with what their modelling code fixes and config.json leaves unsaid.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {},
    "mixtral": {},
    "deepseek_v2": {},
    "granitemoe": {},
    "qwen2": {"attention_bias": "qkv"},
    "qwen2_moe": {"attention_bias": "qkv", "has_shared_gate": True},
    "qwen3": {"qk_norm": "head"},
    "qwen3_moe": {"qk_norm": "head"},
    "olmoe": {"qk_norm": "width"},
    "deepseek_v3": {"has_router_bias": True},
    "glm4_moe": {"has_router_bias": True},
    "glm4_moe_lite": {"has_router_bias": True},
    "gpt_oss": {"has_sinks": True, "has_ffn_bias": True, "has_router_bias": True},
    "phimoe": {"has_norm_bias": True},
    "gemma2": {"norms_per_layer": 4, "is_tied": True},
    "qwen3_next": {"qk_norm": "head", "has_shared_gate": True, "has_query_gate": True},
    "qwen3_5_text": {"qk_norm": "head", "has_query_gate": True},
    "qwen3_5_moe_text": {"qk_norm": "head", "has_shared_gate": True, "has_query_gate": True},
    "olmo_hybrid": {"qk_norm": "width"},
    "lfm2": {"qk_norm": "head"},
    "lfm2_moe": {"qk_norm": "head", "has_router_bias": True},
    "nemotron_h": {"is_glu": False, "has_router_bias": True},
    "granitemoehybrid": {},
    "bamba": {},
    "jamba": {},
    "minimax": {},
    "kimi_linear": {"has_router_bias": True},
    "opt": {"attention_bias": "qkvo", "has_ffn_bias": True, "has_norm_bias": True, "is_glu": False, "is_tied": True},
}
# Whose experts are not as wide as their dense layers.
_OWN_EXPERT_WIDTH = ("qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3", "glm4_moe", "glm4_moe_lite")
# Whose dense layers have two matrices, not three.
_NO_GLU = (
    "apertus", "arcee", "bloom", "codegen", "falcon", "fuyu", "gpt2", "gpt_bigcode", "gpt_neox", "gptj", "jais2", "mpt",
    "nanochat", "nemotron", "persimmon", "phi", "starcoder2",
)  # fmt: skip
_SHARED_IN_CODE = ("llama4_text", "hunyuan_v1_moe")  # one shared expert, which no field tells of
_OPT_POSITION_OFFSET = 2  # OPT's position table has two rows more than positions
_ALTERNATING = ("gemma2", "gpt_oss")  # a window in every other layer, from the first
_WINDOW_IF_ASKED = ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe")  # `sliding_window` counts only with `use_sliding_window`


def _sliding_windows(config: dict[str, Any], n_layers: int) -> tuple[int, ...]:
    window, model_type = _first(config, "sliding_window", "attention_chunk_size"), config.get("model_type")
    if not window or not config.get("use_sliding_window", model_type not in _WINDOW_IF_ASKED):
        return ()
    if config.get("layer_types"):
        has_window = [kind in ("sliding_attention", "chunked_attention") for kind in config["layer_types"]]
    elif model_type in _ALTERNATING:
        has_window = [i % 2 == 0 for i in range(n_layers)]
    elif model_type == "llama4_text":  # chunks where positions are rotary; a chunk holds half of itself on the mean
        has_window = [(i + 1) % 4 != 0 for i in range(n_layers)]
    else:
        first = _first(config, "max_window_layers") if model_type in _WINDOW_IF_ASKED else 0
        has_window = [i >= first for i in range(n_layers)]
    return tuple(window if has else 0 for has in has_window) if any(has_window) else ()


def _details(config: dict[str, Any], n_layers: int) -> dict[str, Any]:
    """The fields that change counts a little: biases, norms, ties, windows, learned positions."""
    model_type = config.get("model_type", "")
    known = dict(FAMILIES.get(model_type, {})) | ({"is_glu": False} if model_type in _NO_GLU else {})
    if config.get("attention_bias"):
        known["attention_bias"] = "qkv" if model_type == "glm4_moe" else "qkvo"
    if config.get("use_qk_norm") and model_type != "llama4_text":  # whose norm has no weights
        known["qk_norm"] = "head"
    if config.get("mlp_bias"):
        known["has_ffn_bias"] = True
    if config.get("tie_word_embeddings") is not None:
        known["is_tied"] = config["tie_word_embeddings"]
    if model_type == "opt":
        known["n_positions"] = config.get("max_position_embeddings", 2048) + _OPT_POSITION_OFFSET
    return {**known, "sliding_windows": _sliding_windows(config, n_layers)}


def _with_states(config: dict[str, Any], geometry: Geometry) -> Geometry:
    """With the layers that keep a state, where it is known what theirs are made of, and those of one part alone."""
    layers, mixer, (mixing, feeding) = layers_with_state(config), mixer_of(config), layers_alone(config)
    if feeding:
        geometry = geometry.model_copy(update={"norms_per_layer": 1, "without_ffn": mixing, "without_mixing": feeding})
    if mixer is None or not layers:
        return geometry
    of_state = 2 if config.get("mamba_ssm_cache_dtype") == "float32" else 1  # values of 16 bits
    kept, tokens = of_state * mixer.state + mixer.last_inputs, geometry.kv_elements_per_token_layer
    windows, size = geometry.windows_by_layer, max(1, -(-kept // tokens))
    update = {
        "sliding_windows": tuple(size if i in layers else window for i, window in enumerate(windows)),
        "state_layers": layers,
        "mixer_in": mixer.in_width,
        "mixer_out": mixer.out_width,
        "mixer_others": mixer.others,
    }
    return Geometry(**{**geometry.model_dump(), **update})


def from_config(config: dict[str, Any]) -> Geometry:
    """Geometry from a Hugging Face config.json (as a dict), for the MoE and dense families of docs/capture.md.

    Raises ValueError naming the field that is missing or impossible.
    """
    config = canonical(text_config(config))
    _check(config)
    hidden, n_layers, n_heads = config["hidden_size"], config["num_hidden_layers"], config["num_attention_heads"]
    n_experts = _first(config, "num_experts")
    in_layers = moe_layers(config) if n_experts else ()
    n_experts = n_experts if in_layers else 0
    intermediate = _first(config, "intermediate_size_mlp", "intermediate_size", default=4 * hidden)
    top_k, expert_intermediate = _experts(config, n_experts) if n_experts else (0, 0)
    one_shared = 1 if config["model_type"] in _SHARED_IN_CODE else 0
    n_shared = _first(config, "n_shared_experts", default=one_shared) if n_experts else 0
    shared = _first(config, "shared_expert_intermediate_size", default=n_shared * expert_intermediate)
    geometry = Geometry(
        architecture=_first(config, "architectures", default=[config["model_type"] or "unknown"])[0],
        n_layers=n_layers,
        hidden=hidden,
        n_heads=n_heads,
        n_kv_heads=_first(config, "num_key_value_heads", default=n_heads),
        head_dim=_head_dim(config),
        vocab=config["vocab_size"],
        moe_layers=in_layers,
        n_experts=n_experts,
        top_k=top_k,
        n_shared_experts=n_shared or (1 if n_experts and shared else 0),
        expert_intermediate=expert_intermediate,
        expert_hidden=_first(config, "expert_hidden_size") if n_experts else 0,
        shared_intermediate=shared if n_experts else 0,
        dense_intermediate=intermediate,
        **{name: _first(config, name) for name in _OF_LATENTS},
        **_details(config, n_layers),
    )
    return _with_states(config, geometry)


def _experts(config: dict[str, Any], n_experts: int) -> tuple[int, int]:
    """(top-k, width of an expert). Raises ValueError naming the field that an MoE model must have."""
    top_k = _first(config, "num_experts_per_tok")
    width_field = "moe_intermediate_size" if config["model_type"] in _OWN_EXPERT_WIDTH else "intermediate_size"
    width = _first(config, "moe_intermediate_size", width_field)
    for field, value in (("num_experts_per_tok", top_k), (width_field, width)):
        if not value:
            raise ValueError(f"config.json: {field} is missing; a model of {n_experts} experts has it")
    if top_k > n_experts:
        raise ValueError(f"config.json: num_experts_per_tok must lie in 1..{n_experts}, the number of experts, not {top_k}")
    return top_k, width


def _head_dim(config: dict[str, Any]) -> int:
    """Width of a query; MLA states its two parts."""
    if config.get("kv_lora_rank"):
        return int(_first(config, "qk_nope_head_dim") + _first(config, "qk_rope_head_dim"))
    return int(_first(config, "head_dim", default=config["hidden_size"] // config["num_attention_heads"]))
