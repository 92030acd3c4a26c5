"""Model geometry: what a tape's manifest says about the model.

One place for layers, experts, heads, widths and every detail that changes a count. It is read from a config.json by
warehouse.model_config; parameters, bytes and operations that follow are in warehouse.model_sizes. Knows nothing of weights.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from pydantic import BaseModel, model_validator

from tokentape.warehouse.formats import EXPERT_FORMATS

MOST_WIDE = 2**27  # of any width, and of a state's other parameters
MOST = 2**16  # layers, and experts of a layer: the tape numbers both with 16 bits


class Geometry(BaseModel, frozen=True, extra="forbid"):
    """Shape of a model. Widths in elements, sizes in bytes; lists run over `moe_layers` in order unless said otherwise.

    head_dim is the width of a query; with multi-head latent attention (MLA) its RoPE part is included. Fields with a default may
    be absent from a manifest.
    """

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
    of_windows: tuple[tuple[str, int], ...] = ()  # fields of this class as layers with a window have them in place of the above,
    apart: tuple[int, ...] = ()  # or these layers, where there are some
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
    attention_bias: Literal["none", "qkv", "qkvo", "gqkvo", "o"] = "none"  # g: of a gate as wide as the query
    qk_norm: Literal["none", "head", "width"] = "none"  # one weight per element of a head, or of all heads together
    has_sinks: bool = False  # a learned attention sink per head
    has_query_gate: bool = False  # a gate on every head's output, as wide as the query, of MLA as the output
    has_head_gate: bool = False  # one value per head in its place
    is_value_key: bool = False  # values are what the keys are projected to, and cached beside them
    index_n_heads: int = 0  # of an indexer, that chooses the tokens a latent attention sees by a cached key of its own
    index_head_dim: int = 0
    n_idle_experts: int = 0  # that a router may choose as well, and compute nothing
    has_ffn_bias: bool = False  # in every FFN matrix, routed experts' included
    has_bare_experts: bool = False  # but for those
    has_head_bias: bool = False
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
        return self.ffn_matrices * self.moe_hidden * self.expert_intermediate

    @property
    def moe_hidden(self) -> int:
        """Width of what routed experts read and write."""
        return self.expert_hidden or self.hidden

    @property
    def shared_params(self) -> int:
        """Weights that every token passes in one MoE layer: its shared experts, and the ways into a narrower space and back."""
        return self.hidden * (self.ffn_matrices * self.shared_intermediate + 2 * self.expert_hidden)

    def of_layer(self, layer: int) -> Geometry:
        """With the heads of that layer in every layer, where layers with a window have others."""
        return self.alike(self.is_apart(layer))

    def is_apart(self, layer: int) -> bool:
        """Whether a layer has the heads of those with a window."""
        return layer in self.apart if self.apart else self.windows_by_layer[layer] > 0 and layer not in self.state_layers

    def alike(self, is_apart: bool) -> Geometry:
        """With the heads of layers with a window, or of those without, in every layer."""
        of = dict(self.of_windows) if is_apart else {}
        return self.model_copy(update={**of, "of_windows": (), "apart": ()}) if self.of_windows else self

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
            out = self.n_heads * (self.v_head_dim * (1 + self.has_query_gate) + self.has_head_gate) * h
            return self.attentions * (q + kv + up + out + index)
        per_head = self.head_dim * (1 + self.has_query_gate) + self.has_head_gate + self.value_dim
        return self.attentions * h * (self.n_heads * per_head + self.n_kv_heads * per_key)

    def mixing_params(self, layer: int) -> int:
        """Weights of the attention projections of a layer, or of what it has in their place; 0 where they are not known."""
        if self.uncounted or layer in self.without_mixing:
            return 0
        mixer = self.hidden * (self.mixer_in + self.mixer_out) if layer in self.state_layers else 0
        return mixer + (0 if mixer and not self.tokens_beside else self.of_layer(layer).attention_params)

    def kind_of(self, layer: int) -> tuple[int, ...]:
        """What layers that cost alike have in common: experts, window, a state, no FFN, no attention or state."""
        among = (self.state_layers, self.without_ffn, self.without_mixing, self.apart)
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
        found = [(window, views[self.is_apart(layer)]) for layer, window in enumerate(self.windows_by_layer)]
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
        if layer in self.moe_layers:
            return self.mixing_params(layer) + self.shared_params + self.hidden * (self.n_experts + self.n_idle_experts)
        dense = 0 if layer in self.without_ffn else self.ffn_matrices * self.hidden * self.dense_intermediate
        return self.mixing_params(layer) + dense

    @property
    def kv_elements_per_token_layer(self) -> int:
        """Cached of a token in a layer; MLA: a latent, the RoPE part, an indexer's key. Raises ValueError where layers differ."""
        self.refuse_uncounted()
        if self.of_windows and len({self.alike(has_window).kv_elements_per_token_layer for has_window in (False, True)}) > 1:
            raise ValueError(f"{self.architecture}: its layers cache unlike numbers of values; one is supported here")
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
            remedy = "use --expert-format recorded" if self.recorded_expert_bytes else "import it with --model or --expert-bytes"
            raise ValueError(f"this tape records no expert width; {remedy}")
        return tuple(round(self.expert_params * EXPERT_FORMATS[expert_format]) for _ in self.moe_layers)

    def value_format(self, expert_format: str) -> str:
        """Of all other weights: the experts' own, or that nearest to the sizes which an engine recorded."""
        if expert_format != "recorded":
            return expert_format
        per_value = sum(self.expert_bytes("recorded")) / (len(self.moe_layers) * max(1, self.expert_params))
        return min(EXPERT_FORMATS, key=lambda name: abs(EXPERT_FORMATS[name] - per_value))

    def non_expert_bytes(self, expert_format: str) -> int:
        """Bytes of non-expert weights read per decode token: as recorded, else INT8 (1 byte per weight)."""
        return sum(self.non_expert_bytes_by_layer(expert_format))

    def non_expert_bytes_by_layer(self, expert_format: str) -> tuple[int, ...]:
        """The same layer by layer, and the output head's last; recorded ones count as their MoE layer's, the head among them."""
        if expert_format == "recorded" and self.recorded_dense_bytes:
            of_layer = dict(zip(self.moe_layers, self.recorded_dense_bytes, strict=True))
            return (*(of_layer.get(layer, 0) for layer in range(self.n_layers)), 0)
        return (*(self.layer_params(layer) for layer in range(self.n_layers)), self.vocab * self.hidden)
