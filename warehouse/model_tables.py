"""Models as people read them: cells and lines for the terminal and for pages."""

from collections.abc import Callable

from tokentape.warehouse import model_sizes
from tokentape.warehouse.formats import EXPERT_FORMATS, FLOAT_FORMATS, value_bytes
from tokentape.warehouse.geometry import Geometry
from tokentape.warehouse.models import Model

HEADINGS = (
    "model", "layers", "MoE layers", "experts", "top-k", "total, B", "published, B", "deviation", "active, B", "of it read, B",
    "without tables, B", "published active, B", "expert, MB (bf16)", "KV, kB/token (bf16)",
)  # fmt: skip


def cells(model: Model) -> list[tuple[str | float | None, str, str]]:
    """(value, format, unit) of a model by HEADINGS; none where there is nothing. B is 1e9 parameters, MB and kB are decimal."""
    g, published = model.geometry, model.published
    deviation, has_experts = model.deviation_frac, bool(g.n_experts)
    active = (model_sizes.active_params(g, True), model_sizes.decode_params(g), model_sizes.active_params(g, False))
    shape = (model.name, g.n_layers, len(g.moe_layers), g.n_experts if has_experts else None, g.top_k if has_experts else None)
    billions = (model_sizes.total_params(g), published and published.total_params, *active, published and published.active_params)
    total, stated, *others = [(n / 1e9 if n else None, ",.3f", "") for n in billions]
    expert_mb = value_bytes(g.expert_params, "bf16") / 1e6 if has_experts else None
    return [
        *((value, "", "") for value in shape),
        *(total, stated, (None if deviation is None else 100 * deviation, "+.2f", " %"), *others),
        *((expert_mb, ",.2f", ""), (model_sizes.kv_bytes_per_token(g, "bf16") / 1e3, ",.2f", "")),
    ]


def details(model: Model, context_tokens: int = 1024) -> list[tuple[str, str]]:
    """(label, value) lines about one model: its shape, parameters by part, bytes by format, cache and operations."""
    g, p, published = model.geometry, model_sizes.parameters(model.geometry), model.published
    windows, n_windowed = windows_of(g)
    lines = [
        ("architecture", g.architecture),
        ("config", model.source),
        ("layers", f"{g.n_layers}, of them {len(g.moe_layers)} MoE; hidden {g.hidden}, vocabulary {g.vocab:,}"),
        ("attention", attention_of(g)),
    ]
    if windows:
        lines += [("sliding window", f"{', '.join(map(str, windows))} tokens in {n_windowed} of {g.n_layers} layers")]
    if g.state_layers:
        told = f"in {len(g.state_layers)} of {g.n_layers} layers, as large as the keys and values of {g.state_tokens} tokens"
        lines += [("state in their place", told)]
    if g.n_experts:
        shared = f", shared width {g.shared_intermediate}" if g.shared_intermediate else ""
        lines += [("experts", f"{g.n_experts} per MoE layer, top-{g.top_k}, width {g.expert_intermediate}{shared}")]
    lines += [(f"parameters: {name.replace('_', ' ')}", f"{n:,}") for name, n in vars(p).items() if n]
    lines += [("parameters: total", f"{p.total:,}")]
    if published:
        lines += [("published", f"{published.total_params:,} ({100 * (model.deviation_frac or 0):+.2f} %): {published.source}")]
    lines += [("note", model.note)] if model.note else []
    lines += [(f"active, {name}", f"{count(g):,}") for name, count in ACTIVE.items()]
    lines += [(f"one expert, {name}", f"{g.expert_bytes(name)[0]:,} B") for name in EXPERT_FORMATS if g.n_experts]
    lines += [(f"all weights, {name}", f"{model_sizes.weight_bytes(g, name, name):,} B") for name in EXPERT_FORMATS]
    lines += [(f"read by every token, {name}", f"{model_sizes.static_bytes(g, name):,} B") for name in ("int8-g32", "bf16")]
    lines += [(f"KV per token, {name}", f"{model_sizes.kv_bytes_per_token(g, name):,} B") for name in ("int8", *FLOAT_FORMATS)]
    return [
        *lines,
        (f"KV of {context_tokens:,} tokens, bf16", f"{model_sizes.kv_bytes(g, context_tokens, 'bf16'):,} B"),
        (f"operations of a decode token at {context_tokens:,}", f"{model_sizes.ops_per_token(g, context_tokens):,}"),
        (f"operations of a prefill of {context_tokens:,}", f"{model_sizes.prefill_ops(g, context_tokens):,}"),
    ]


def windows_of(g: Geometry) -> tuple[list[int], int]:
    """Sizes of the windows of layers that attend, and how many have one."""
    found = [window for layer, window in enumerate(g.sliding_windows) if window and layer not in g.state_layers]
    return sorted(set(found)), len(found)


def attention_of(g: Geometry) -> str:
    """In words."""
    if g.kv_lora_rank:
        q = f"q latent {g.q_lora_rank}, " if g.q_lora_rank else ""
        dims = f"nope {g.qk_nope_head_dim}, rope {g.qk_rope_head_dim}, v {g.v_head_dim}"
        return f"MLA, {g.n_heads} heads, {q}kv latent {g.kv_lora_rank}, {dims}"
    return f"{g.n_heads} heads, {g.n_kv_heads} KV heads, head width {g.head_dim}"


ACTIVE: dict[str, Callable[[Geometry], int]] = {
    "with input table and output head": lambda g: model_sizes.active_params(g, with_embeddings=True),
    "as a decode token reads (head, no input table)": model_sizes.decode_params,
    "without input table and output head": lambda g: model_sizes.active_params(g, with_embeddings=False),
}
