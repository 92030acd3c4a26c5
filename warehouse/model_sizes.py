"""What follows from a model's geometry: parameters, bytes at any number format, and operations per token.

Counts are exact for the families of warehouse.geometry: every matrix, norm, bias, sink and learned position. Not counted: layers
that only predict further tokens (num_nextn_predict_layers), vision towers, and operations of norms, softmax and activations.
"""

from dataclasses import dataclass, fields

from tokentape.warehouse.formats import FLOAT_FORMATS, value_bytes
from tokentape.warehouse.geometry import Geometry


@dataclass(frozen=True)
class Parameters:
    """Numbers of parameters by what they are part of; their sum is the model. Vectors are biases, norms, sinks and gates."""

    table: int  # input embedding; where tied, also the output head
    head: int  # output head, 0 where tied
    positions: int
    attention: int
    dense_ffn: int
    shared_ffn: int
    routers: int
    vectors: int
    experts: int  # all routed experts
    expert_vectors: int

    @property
    def total(self) -> int:
        return sum(getattr(self, field.name) for field in fields(self))


def parameters(g: Geometry) -> Parameters:
    """Parameters of the whole model by part. Raises ValueError where a tape records no widths, or not all is counted."""
    if not g.hidden:
        raise ValueError(f"{g.architecture}: this tape records no widths; give the model's config.json")
    g.refuse_uncounted()
    n_moe = len(g.moe_layers)
    table = g.vocab * g.hidden
    return Parameters(
        table=table,
        head=0 if g.is_tied else table,
        positions=g.n_positions * g.hidden,
        attention=sum(map(g.mixing_params, range(g.n_layers))),
        dense_ffn=g.n_dense * g.ffn_matrices * g.hidden * g.dense_intermediate,
        shared_ffn=n_moe * g.shared_params,
        routers=n_moe * g.hidden * (g.n_experts + g.n_idle_experts),
        vectors=_vectors(g),
        experts=n_moe * g.n_experts * g.expert_params,
        expert_vectors=0 if g.has_bare_experts else n_moe * g.n_experts * _ffn_biases(g, g.expert_intermediate),
    )


def _ffn_biases(g: Geometry, width: int) -> int:
    return (g.ffn_matrices - 1) * width + g.hidden if g.has_ffn_bias and width else 0


def _attention_vectors(g: Geometry) -> int:
    """Biases, norms and sinks of one layer's attention."""
    query, key, value = g.n_heads * g.head_dim, g.n_kv_heads * g.head_dim, g.n_kv_heads * g.value_dim
    sinks = g.n_heads if g.has_sinks else 0
    if g.kv_lora_rank:
        biases = g.q_lora_rank + g.kv_lora_rank + g.qk_rope_head_dim + g.hidden if g.attention_bias != "none" else 0
        return g.attentions * (biases + sinks + g.q_lora_rank + g.kv_lora_rank + 2 * g.index_head_dim)  # a norm on each latent
    widths = {"g": query, "q": query, "k": key, "v": value, "o": g.hidden}
    biases = sum(widths[of] for of in g.attention_bias if g.attention_bias != "none")
    return biases + {"none": 0, "head": 2 * g.head_dim, "width": query + key}[g.qk_norm] + sinks


def _vectors(g: Geometry) -> int:
    """Every parameter outside matrices, tables and routed experts."""
    n_moe, norm = len(g.moe_layers), g.hidden * (2 if g.has_norm_bias else 1)
    mixing = sum(_attention_vectors(g.of_layer(layer)) for layer in g.attending) + len(g.state_layers) * g.mixer_others
    of_dense = _ffn_biases(g, g.dense_intermediate)
    of_moe = (g.n_experts + g.n_idle_experts) * g.has_router_bias + (g.hidden if g.has_shared_gate else 0)
    of_moe += _ffn_biases(g, g.shared_intermediate) + _ffn_biases(g, g.expert_hidden)  # the latter of Nemotron-H, two matrices
    others = g.n_dense * of_dense + n_moe * of_moe + g.vocab * g.has_head_bias
    return mixing + g.n_layers * g.norms_per_layer * norm + others + norm


def total_params(g: Geometry) -> int:
    """Parameters of the whole model, tied tables once."""
    return parameters(g).total


def active_params(g: Geometry, with_embeddings: bool) -> int:
    """Parameters of a token's path: everything but the routed experts it does not choose.

    with_embeddings: input table, learned positions and output head included (a tied table once); otherwise none of them.
    Publishers use either, or `decode_params`.
    """
    p = parameters(g)
    embeddings = p.table + p.head + p.positions
    return p.total - _idle(g, p) - (0 if with_embeddings else embeddings)


def decode_params(g: Geometry) -> int:
    """Parameters that one decode token reads: its path with the output head, but of the input table only a row (not counted).

    The active count of OpenAI's gpt-oss model card and of ELMoE-3D section 3.
    """
    p = parameters(g)
    return p.total - _idle(g, p) - p.positions - (0 if g.is_tied else p.table)


def _idle(g: Geometry, p: Parameters) -> int:
    routed = p.experts + p.expert_vectors
    return routed - routed * g.top_k // g.n_experts if g.n_experts else 0


def weight_bytes(g: Geometry, expert_format: str, other_format: str, float_format: str = "fp16") -> int:
    """Bytes of all weights at rest: the routed experts' matrices in expert_format, beside `other_bytes`."""
    return value_bytes(parameters(g).experts, expert_format) + other_bytes(g, other_format, float_format)


def other_bytes(g: Geometry, matrix_format: str, float_format: str) -> int:
    """Bytes of all weights at rest but the routed experts' matrices.

    matrix_format: all other matrices, the output head included. float_format: the input table, positions and vectors, which are
    not quantised, and a tied head with them; where matrices are floats, all are as they.
    """
    p = parameters(g)
    float_format = matrix_format if matrix_format in FLOAT_FORMATS else float_format
    matrices = p.head + p.attention + p.dense_ffn + p.shared_ffn + p.routers
    return value_bytes(matrices, matrix_format) + value_bytes(p.table + p.positions + p.vectors + p.expert_vectors, float_format)


def static_bytes(g: Geometry, other_format: str) -> int:
    """Bytes of the matrices that every decode step reads whatever its routing; vectors are left out (below 0.1 %)."""
    return value_bytes(g.non_expert_params, other_format)


def kv_layer_bytes_per_token(g: Geometry, kv_format: str) -> int:
    """Bytes that one token adds to one layer's cache; for MLA the latent and the RoPE part, once for all heads."""
    return value_bytes(g.kv_elements_per_token_layer, kv_format)


def kv_bytes_per_token(g: Geometry, kv_format: str) -> int:
    """Bytes that one token adds to the caches of all layers that have one, as long as no window is full."""
    return sum(kv_layer_bytes_per_token(g.of_layer(layer), kv_format) for layer in g.attending)


def kv_copies(g: Geometry, n_devices: int) -> float:
    """How often devices that share every layer keep a key: those beyond the KV heads, or the one latent of MLA, keep copies."""
    return max(1.0, n_devices / (1 if g.kv_lora_rank else g.n_kv_heads or 1))


def kv_bytes(g: Geometry, context_tokens: int, kv_format: str, n_devices: int = 1) -> int:
    """Bytes cached for a sequence of `context_tokens`, copies included; a layer with a window keeps no more than the window."""
    kept = ((min(context_tokens, window or context_tokens), of) for window, of in g.caches)
    return round(sum(n * kv_copies(of, n_devices) * kv_layer_bytes_per_token(of, kv_format) for n, of in kept))


def ops_per_token(g: Geometry, context_tokens: int) -> int:
    """Operations (2 per multiply-add) of one decode token that attends to `context_tokens`, itself included.

    MLA works on the cached latent, the up-projections absorbed into query and output. Raises ValueError for an empty context.
    """
    if context_tokens < 1:
        raise ValueError(f"context_tokens must count the token itself, got {context_tokens}")
    seen = ((min(context_tokens, window or context_tokens), of) for window, of in g.caches)
    return _matrix_ops(g, 1) + sum(n * _ops_per_pair(of, bool(of.kv_lora_rank)) for n, of in seen)


def prefill_ops(g: Geometry, n_tokens: int) -> int:
    """Operations (2 per multiply-add) of a causal pass over a prompt, whose last token meets the output head. MLA expands keys
    and values."""
    full = [(min(n_tokens, window or n_tokens), of) for window, of in g.caches]
    return _matrix_ops(g, n_tokens) + sum(_ops_per_pair(of) * (n * (n + 1) // 2 + (n_tokens - n) * n) for n, of in full)


def _matrix_ops(g: Geometry, n_tokens: int) -> int:
    p = parameters(g)
    body = p.attention + p.dense_ffn + p.shared_ffn + p.routers
    chosen = len(g.moe_layers) * g.top_k * g.expert_params
    return 2 * (n_tokens * (body + chosen) + g.vocab * g.hidden)


def _ops_per_pair(g: Geometry, is_absorbed: bool = False) -> int:
    """Operations of one (query, key) pair in one layer, over all heads: the score and the weighted value, or of MLA's latent."""
    widths = 2 * g.kv_lora_rank + g.qk_rope_head_dim if is_absorbed else g.head_dim + g.value_dim
    return 2 * g.attentions * g.n_heads * widths
