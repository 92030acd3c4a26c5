"""Model geometry: what a tape's manifest says about the model, read from a Hugging Face config.json.

One place for layers, experts, heads, widths and every detail that changes a count. Parameters, bytes and operations that follow
are in warehouse.model_sizes, the models that ship in warehouse.models. Knows nothing of weights.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from tokentape.warehouse.config_fields import canonical, heads_apart, moe_layers, text_config
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
    v_head_dim: int = 0  # where it is not that of a key
    of_windows: tuple[tuple[str, int], ...] = ()  # fields of this class as layers with a window have them in place of the above
    attentions: int = 1  # of a layer, one after the other, each with keys and values
    is_glu: bool = True
    is_tied: bool = False  # the output head is the input embedding table
    sliding_windows: tuple[int, ...] = ()  # tokens a layer attends to, itself included; 0: all; one per layer, or () for all
    # Layers with a state in place of keys and values: it is as large as those of `sliding_windows` tokens (a shorter context is
    # counted as its own tokens). Widths of what its input and its output pass, and its other parameters.
    state_layers: tuple[int, ...] = ()
    mixer_in: int = 0
    mixer_out: int = 0
    mixer_others: int = 0
    tokens_beside: int = 0  # as large as the state of `state_layers` which attend as well, to all tokens
    without_ffn: tuple[int, ...] = ()  # layers of attention, or a state, alone
    without_mixing: tuple[int, ...] = ()  # layers of an FFN alone
    n_positions: int = 0  # rows of a learned position table
    attention_bias: Literal["none", "qkv", "qkvo"] = "none"
    qk_norm: Literal["none", "head", "width"] = "none"  # one weight per element of a head, or of all heads together
    has_sinks: bool = False  # a learned attention sink per head
    has_query_gate: bool = False  # a gate on every head's output, as wide as the query
    has_head_gate: bool = False  # one value per head in its place
    is_value_key: bool = False  # values are what the keys are projected to, and cached beside them
    index_n_heads: int = 0  # of an indexer, that chooses the tokens a latent attention sees by a cached key of its own
    index_head_dim: int = 0
    n_idle_experts: int = 0  # that a router may choose as well, and compute nothing
    has_ffn_bias: bool = False  # in every FFN matrix, experts' included
    has_router_bias: bool = False
    has_shared_gate: bool = False  # a learned scalar gate on the shared experts
    has_norm_bias: bool = False
    norms_per_layer: int = 2
    uncounted: str = ""  # what its layers have that no count of weights, keys and values knows: those are refused
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
        if self.of_windows:
            self.model_validate({**self.model_dump(), **dict(self.of_windows), "of_windows": ()})
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

    def refuse_uncounted(self) -> None:
        """Raises ValueError where layers have what no count knows."""
        if self.uncounted:
            raise ValueError(f"{self.architecture}: {self.uncounted}; its attention, keys and values are not counted")

    @property
    def is_counted(self) -> bool:
        """Whether what layers weigh and keep besides routed experts is known."""
        return bool(self.hidden) and not self.uncounted

    @property
    def ffn_matrices(self) -> int:
        return 3 if self.is_glu else 2

    @property
    def expert_params(self) -> int:
        """Weights of one routed expert."""
        return self.ffn_matrices * (self.expert_hidden or self.hidden) * self.expert_intermediate

    def of_layer(self, layer: int) -> Geometry:
        """With the heads of that layer in every layer, where layers with a window have others."""
        return self.alike(self.windows_by_layer[layer] > 0 and layer not in self.state_layers) if self.of_windows else self

    def alike(self, has_window: bool) -> Geometry:
        """With the heads of layers with a window, or of those without, in every layer."""
        of = dict(self.of_windows) if has_window else {}
        return self.model_copy(update={**of, "of_windows": ()}) if self.of_windows else self

    @property
    def value_dim(self) -> int:
        """Width of a head of values."""
        return self.v_head_dim or self.head_dim

    @property
    def attention_params(self) -> int:
        """Weights of one layer's attention projections."""
        h, per_key = self.hidden, self.head_dim + (0 if self.is_value_key else self.value_dim)
        if self.kv_lora_rank:
            qk = self.qk_nope_head_dim + self.qk_rope_head_dim
            q = h * self.q_lora_rank + self.q_lora_rank * self.n_heads * qk if self.q_lora_rank else h * self.n_heads * qk
            kv = h * (self.kv_lora_rank + self.qk_rope_head_dim)
            up = self.kv_lora_rank * self.n_heads * (self.qk_nope_head_dim + self.v_head_dim)
            index = self.index_head_dim * (self.index_n_heads * (self.q_lora_rank or h) + h) + h * self.index_n_heads
            out = self.n_heads * (self.v_head_dim + self.has_head_gate) * h
            return self.attentions * (q + kv + up + out + index)
        per_head = self.head_dim * (1 + self.has_query_gate) + self.has_head_gate + self.value_dim
        return self.attentions * h * (self.n_heads * per_head + self.n_kv_heads * per_key)

    def mixing_params(self, layer: int) -> int:
        """Weights of the attention projections of a layer, or of what it has in their place; 0 where they are not known."""
        if self.uncounted or layer in self.without_mixing:
            return 0
        mixer = self.hidden * (self.mixer_in + self.mixer_out) if layer in self.state_layers else 0
        return mixer + (0 if mixer and not self.tokens_beside else self.of_layer(layer).attention_params)

    @property
    def all_mixing_params(self) -> int:
        """The same of all layers."""
        return sum(map(self.mixing_params, range(self.n_layers)))

    def kind_of(self, layer: int) -> tuple[int, ...]:
        """What layers that cost alike have in common: experts, window, a state, no FFN, no attention or state."""
        among = (self.state_layers, self.without_ffn, self.without_mixing)
        return (layer in self.moe_layers, self.windows_by_layer[layer], *(layer in layers for layers in among))

    def without_windows(self) -> Geometry:
        """As if every layer that attends did so to all tokens, with the heads of those that do."""
        without = () if self.tokens_beside else self.state_layers
        sizes = (self.state_tokens if layer in without else 0 for layer in range(self.n_layers))
        return self.alike(False).model_copy(update={"sliding_windows": tuple(sizes) if self.state_layers else ()})

    @property
    def attending(self) -> tuple[int, ...]:
        """Layers with keys and values."""
        without = self.without_mixing + (() if self.tokens_beside else self.state_layers)
        return tuple(layer for layer in range(self.n_layers) if layer not in without)

    @property
    def n_dense(self) -> int:
        """Layers with a dense FFN."""
        return self.n_layers - len(self.moe_layers) - len(self.without_ffn)

    @property
    def caches(self) -> tuple[tuple[int, Geometry], ...]:
        """(window, 0: all tokens; heads) of everything that keeps keys and values or a state."""
        views = (self.alike(False), self.alike(True))
        found = [(w, views[w > 0 and i not in self.state_layers]) for i, w in enumerate(self.windows_by_layer)]
        found = [cache for layer, cache in enumerate(found) if layer not in self.without_mixing]
        return (*found, *((self.tokens_beside, views[0]),) * (len(self.state_layers) if self.tokens_beside else 0))

    @property
    def windows_by_layer(self) -> tuple[int, ...]:
        """Of every layer; 0: all tokens, or nothing to attend to."""
        return self.sliding_windows or (0,) * self.n_layers

    @property
    def state_tokens(self) -> int:
        """Tokens whose keys and values are as large as the state of a layer that keeps one."""
        return self.tokens_beside or (self.sliding_windows[self.state_layers[0]] if self.state_layers else 0)

    @property
    def non_expert_params(self) -> int:
        """Weights a decode token reads besides routed experts: attention, shared and dense FFNs, routers, lm_head."""
        return sum(map(self.layer_params, range(self.n_layers))) + self.vocab * self.hidden

    def layer_params(self, layer: int) -> int:
        """Weights of one layer besides routed experts: attention, then shared experts and router, or the dense FFN."""
        ffn = self.ffn_matrices * self.hidden
        if layer in self.moe_layers:
            router = self.hidden * (self.n_experts + self.n_idle_experts)
            return self.mixing_params(layer) + ffn * self.shared_intermediate + router
        return self.mixing_params(layer) + (0 if layer in self.without_ffn else ffn * self.dense_intermediate)

    @property
    def kv_elements_per_token_layer(self) -> int:
        """Cached of a token in a layer; MLA: a latent, the RoPE part, an indexer's key. Raises ValueError where layers differ."""
        self.refuse_uncounted()
        if self.of_windows and len({self.alike(has_window).kv_elements_per_token_layer for has_window in (False, True)}) > 1:
            raise ValueError(f"{self.architecture}: layers with a window cache other numbers of values; one is supported here")
        if self.kv_lora_rank:
            return self.attentions * (self.kv_lora_rank + self.qk_rope_head_dim + self.index_head_dim)
        return self.attentions * self.n_kv_heads * (self.head_dim + self.value_dim)

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


_LATENT = ("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "index_n_heads", "index_head_dim")
_OF_HEADS = ("n_heads", "n_kv_heads", "head_dim", *_LATENT, "is_value_key", "has_sinks")  # that may differ with a window
_REQUIRED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
_LEAST = {  # of a field that is given
    **dict.fromkeys((*_REQUIRED, "num_key_value_heads", "head_dim", "intermediate_size"), 1),
    **dict.fromkeys(("num_experts", "n_shared_experts", "first_k_dense_replace", "num_experts_per_tok"), 0),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", *_LATENT), 0),
    **dict.fromkeys(("sliding_window", "max_window_layers"), 0),
}
_ENCODERS = ("bert", "clip", "electra", "mpnet")  # one of them is within the model_type of an encoder
_WANTED = "give the config of a decoder-only language model"
# model_types, and fields that are given, with what is not counted of their layers.
_UNKNOWN = (
    ("it is an encoder", "big_bird data2vec-text ernie roformer xmod xlnet blip_text_model"),
    ("its attention has convolutions", "inkling_text inkling2_text inkling2_loop_text zaya"),
    ("it applies the same layers several times", "zamba zamba2 hrm_text loop_num"),
    ("it has unknown parts", "jetmoe doge dory moshi recurrent_gemma qwen4_exp_text cpmant ctrl evolla muse_glimmer_text"),
    ("layers share keys and values", "num_kv_shared_layers use_cla"),
    ("layers attend to images", "cross_attention_layers cross_layer_interval"),
    ("it compresses keys and values", "deepseek_v4"),
    ("it has more than one input table", "hidden_size_per_layer_input ngram_vocab_size_ratio"),
    ("layers share an indexer", "has_shared_indexers"),
)


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
_FACTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("llama mistral mixtral deepseek_v2 granitemoe granitemoehybrid bamba jamba minimax falcon_h1", {}),
    ("deepseek_v3 deepseek_v32 glm_moe_dsa glm4_moe glm4_moe_lite ernie4_5_moe kimi_linear", {"has_router_bias": True}),
    ("mimo_v2_flash", {"has_router_bias": True}),
    ("bailing_hybrid dots3_note_text", {"has_head_gate": True, "has_router_bias": True}),
    ("step3p5 laguna", {"qk_norm": "head", "has_head_gate": True, "has_router_bias": True}),
    ("gemma3_text gemma4_text gemma4_unified_text", {"norms_per_layer": 4, "is_tied": True, "qk_norm": "head"}),
    ("qwen3 qwen3_moe lfm2 hunyuan_v1_moe", {"qk_norm": "head"}),
    ("lfm2_moe dots1", {"qk_norm": "head", "has_router_bias": True}),
    ("qwen2", {"attention_bias": "qkv"}),
    ("qwen2_moe", {"attention_bias": "qkv", "has_shared_gate": True}),
    ("olmoe olmo_hybrid", {"qk_norm": "width"}),
    ("gpt_oss", {"has_sinks": True, "has_ffn_bias": True, "has_router_bias": True}),
    ("phimoe", {"has_norm_bias": True}),
    ("gemma2", {"norms_per_layer": 4, "is_tied": True}),
    ("qwen3_next qwen3_5_moe_text", {"qk_norm": "head", "has_shared_gate": True, "has_query_gate": True}),
    ("qwen3_5_text", {"qk_norm": "head", "has_query_gate": True}),
    ("longcat_flash", {"attentions": 2, "norms_per_layer": 4, "has_router_bias": True}),
    ("afmoe", {"qk_norm": "head", "has_query_gate": True, "norms_per_layer": 4, "has_router_bias": True}),
    ("nemotron_h", {"is_glu": False, "has_router_bias": True}),
    ("opt", {"attention_bias": "qkvo", "has_ffn_bias": True, "has_norm_bias": True, "is_glu": False, "is_tied": True}),
)
FAMILIES: dict[str, dict[str, Any]] = {name: facts for names, facts in _FACTS for name in names.split()}
# Whose experts are not as wide as their dense layers.
_OWN_EXPERT_WIDTH = ("qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3", "glm4_moe", "glm4_moe_lite")
# Whose dense layers have two matrices, not three.
_NO_GLU = (
    "apertus", "apertus1p5_text", "arcee", "biogpt", "bloom", "codegen", "cosmos3_edge_text", "falcon", "fuyu", "gpt2", "gptj",
    "gpt_bigcode", "gpt_neox", "gpt_neox_japanese", "jais2", "mpt", "nanochat", "nemotron", "openai-gpt", "persimmon", "phi",
    "starcoder2",
)  # fmt: skip
_SHARED_IN_CODE = ("llama4_text", "hunyuan_v1_moe")  # one shared expert, which no field tells of
_OPT_POSITION_OFFSET = 2  # OPT's position table has two rows more than positions
# Of so many layers the last (below 0: the first) has no window. A chunk of Llama 4 holds half of itself on the mean.
_OF_EVERY = ((2, "gemma2 gpt_oss vaultgemma"), (6, "gemma3_text gemma4_text gemma4_unified_text mimo_v2_flash"), (-4, "cwm"),
             (4, "llama4_text cohere2 cohere2_moe exaone4 exaone_moe olmo3 afmoe"))  # fmt: skip
_ONE_TO_ALL = {name: every for every, names in _OF_EVERY for name in names.split()}
_NO_WINDOW = {"gemma4_text": -1, "gemma4_unified_text": -1, "mimo_v2_flash": 0}  # layers that never have one
_WINDOW_IF_ASKED = ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe")  # `sliding_window` counts only with `use_sliding_window`


def _sliding_windows(config: dict[str, Any], n_layers: int) -> tuple[int, ...]:
    window, model_type = _first(config, "sliding_window", "attention_chunk_size"), config.get("model_type") or ""
    if not window or not config.get("use_sliding_window", model_type not in _WINDOW_IF_ASKED):
        return ()
    every = config.get("sliding_window_pattern") or config.get("global_attn_every_n_layers") or _ONE_TO_ALL.get(model_type)
    window = 1 + config["sliding_window_size"] if model_type[:7] == "mimo_v2" and config.get("sliding_window_size") else window
    if config.get("layer_types"):
        has_window = [kind in ("sliding_attention", "chunked_attention") for kind in config["layer_types"][:n_layers]]
    elif isinstance(pattern := config.get("hybrid_layer_pattern") or every, list | str):  # MiMo, EXAONE 4: LLLG
        has_window = [pattern[i % len(pattern)] in (1, "L") for i in range(n_layers)]
    elif every:
        has_window = [(i + (every > 0)) % every != 0 for i in range(n_layers)]
    else:
        first = _first(config, "max_window_layers") if model_type in _WINDOW_IF_ASKED else 0
        has_window = [i >= first for i in range(n_layers)]
    if model_type in _NO_WINDOW:
        has_window[_NO_WINDOW[model_type]] = False
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
    known |= {name: True for name in ("is_value_key", "has_sinks") if config.get(name)}
    if config.get("enable_moe_block"):  # Gemma 4: an FFN beside the experts, each with its norms, and a scale for the router
        known |= {"norms_per_layer": 8, "has_router_bias": True}
    known |= {"has_query_gate": True, "has_head_gate": False} if config.get("gating") == "per-element" else {}
    if model_type == "opt":
        known["n_positions"] = config.get("max_position_embeddings", 2048) + _OPT_POSITION_OFFSET
    return {**known, "sliding_windows": _sliding_windows(config, n_layers)}


def _with_states(config: dict[str, Any], geometry: Geometry) -> Geometry:
    """With the layers that keep a state, where it is known what theirs are made of, and those of one part alone."""
    layers, mixer, (mixing, feeding) = layers_with_state(config), mixer_of(config), layers_alone(config)
    if feeding:
        geometry = geometry.model_copy(update={"norms_per_layer": 1, "without_ffn": mixing, "without_mixing": feeding})
    if not layers:
        return geometry
    if mixer is None:
        told = sorted({str(kind) for kind in config.get("layer_types") or ()}) or ["of linear attention or a state"]
        return geometry.model_copy(update={"uncounted": f"it has layers of a kind that is not known ({', '.join(told)})"})
    of_state = 2 if config.get("mamba_ssm_cache_dtype") == "float32" else 1  # values of 16 bits
    kept, tokens = of_state * mixer.state + mixer.last_inputs, geometry.kv_elements_per_token_layer
    windows, size = geometry.windows_by_layer, max(1, -(-kept // tokens))
    is_beside = config["model_type"] == "falcon_h1"
    update = {
        "sliding_windows": tuple(size if i in layers and not is_beside else window for i, window in enumerate(windows)),
        "tokens_beside": size if is_beside else 0,
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
    n_layers = config["num_hidden_layers"]
    windows = [window > 0 for window in _sliding_windows(config, n_layers) or (0,) * n_layers]
    whole, windowed = heads_apart(config, windows)
    geometry, other = _of(config | (windowed if all(windows) else whole)), _of(config | (windowed if any(windows) else whole))
    differing = tuple((name, getattr(other, name)) for name in _OF_HEADS if getattr(geometry, name) != getattr(other, name))
    of = {config["model_type"], *(name for name, value in config.items() if value)}
    told = next((told for told, names in _UNKNOWN if not of.isdisjoint(names.split())), "")
    geometry = Geometry(**{**geometry.model_dump(), "of_windows": differing, "uncounted": told})
    return geometry if told else _with_states(config, geometry)


def _of(config: dict[str, Any]) -> Geometry:
    """Of a canonical config whose layers all have the heads that it tells of, and keys and values."""
    hidden, n_layers, n_heads = config["hidden_size"], config["num_hidden_layers"], config["num_attention_heads"]
    n_experts = _first(config, "num_experts")
    in_layers = moe_layers(config) if n_experts else ()
    n_experts = n_experts if in_layers else 0
    intermediate = _first(config, "intermediate_size_mlp", "dense_intermediate_size", "intermediate_size", default=4 * hidden)
    top_k, expert_intermediate = _experts(config, n_experts) if n_experts else (0, 0)
    one_shared = 1 if config["model_type"] in _SHARED_IN_CODE else 0
    n_shared = _first(config, "n_shared_experts", default=one_shared) if n_experts else 0
    shared = _first(config, "shared_expert_intermediate_size", default=n_shared * expert_intermediate)
    n_beside = 2 if config["model_type"] == "longcat_flash" else bool(_first(config, "enable_moe_block", "residual_moe"))
    shared = n_beside * intermediate or shared  # Gemma 4 and Grok 2 have one dense FFN beside the experts
    return Geometry(
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
        **{name: _first(config, name) for name in _LATENT},
        n_idle_experts=_first(config, "zero_expert_num") if n_experts else 0,
        **_details(config, n_layers),
    )


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
