"""Models as people read them: rows and lines for the terminal, and the tables of docs/models.md.

python -m tokentape.warehouse.model_tables docs/models.md   rewrites what stands between `<!-- models NAME -->` and `<!-- end -->`
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tokentape.warehouse import model_sizes
from tokentape.warehouse.formats import EXPERT_FORMATS, FLOAT_FORMATS, value_bytes
from tokentape.warehouse.geometry import Geometry
from tokentape.warehouse.models import Model, shipped

HEADINGS = (
    "model", "layers", "MoE layers", "experts", "top-k", "total, B", "published, B", "deviation", "active, B", "of it read, B",
    "without tables, B", "published active, B", "expert, MB (bf16)", "KV, kB/token (bf16)",
)  # fmt: skip


def rows(models: Iterable[Model]) -> list[tuple[str, ...]]:
    """One row per model under HEADINGS, as text."""
    return [tuple("" if value is None else f"{value:{how}}{unit}" for value, how, unit in cells(model)) for model in models]


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
    windows, n_windowed = _windows(g)
    lines = [
        ("architecture", g.architecture),
        ("config", model.source),
        ("layers", f"{g.n_layers}, of them {len(g.moe_layers)} MoE; hidden {g.hidden}, vocabulary {g.vocab:,}"),
        ("attention", _attention(g)),
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
    for name in EXPERT_FORMATS:
        unquantised = name if name in FLOAT_FORMATS else "fp16"
        lines += [(f"all weights, {name}", f"{model_sizes.weight_bytes(g, name, name, unquantised):,} B")]
    lines += [(f"read by every token, {name}", f"{model_sizes.static_bytes(g, name):,} B") for name in ("int8-g32", "bf16")]
    lines += [(f"KV per token, {name}", f"{model_sizes.kv_bytes_per_token(g, name):,} B") for name in ("int8", *FLOAT_FORMATS)]
    return [
        *lines,
        (f"KV of {context_tokens:,} tokens, bf16", f"{model_sizes.kv_bytes(g, context_tokens, 'bf16'):,} B"),
        (f"operations of a decode token at {context_tokens:,}", f"{model_sizes.ops_per_token(g, context_tokens):,}"),
        (f"operations of a prefill of {context_tokens:,}", f"{model_sizes.prefill_ops(g, context_tokens):,}"),
    ]


def _windows(g: Geometry) -> tuple[list[int], int]:
    """Sizes of the windows of layers that attend, and how many have one."""
    found = [window for layer, window in enumerate(g.sliding_windows) if window and layer not in g.state_layers]
    return sorted(set(found)), len(found)


def _attention(g: Geometry) -> str:
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

# ------------------------------------------------------------------------------------------------------ docs/models.md

_BLOCK = re.compile(r"(<!-- models (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def _markdown(headings: Iterable[str], table: Iterable[Iterable[str]]) -> str:
    head = list(headings)
    return "".join(
        "".join(f"| {cell} " if cell else "| " for cell in line) + "|\n" for line in (head, ["---"] * len(head), *table)
    )


def _shape(model: Model) -> tuple[Any, ...]:
    g = model.geometry
    experts = (g.n_experts, g.top_k, g.expert_intermediate, g.shared_intermediate or "") if g.n_experts else ("", "", "", "")
    windows, n_windowed = _windows(g)
    in_layers = f"{windows[0]} in {n_windowed} layers" if windows else ""
    has_dense = g.n_dense > 0
    return (model.name, g.hidden, _attention(g), *experts, g.dense_intermediate if has_dense else "", g.vocab, in_layers)


def _shapes_block() -> str:
    experts = ("experts", "top-k", "expert width", "shared width")
    headings = ("model", "hidden", "attention", *experts, "dense FFN", "vocabulary", "window")
    return _markdown(headings, [[str(cell) for cell in _shape(model)] for model in shipped()])


def _sources_block() -> str:
    lines = [(m.name, m.source, m.published.source + (f". {m.note}" if m.note else "")) for m in shipped() if m.published]
    return _markdown(("model", "config", "published count"), lines)


BLOCKS: dict[str, Callable[[], str]] = {
    "counts": lambda: _markdown(HEADINGS, rows(shipped())),
    "shapes": _shapes_block,
    "sources": _sources_block,
}


def refresh(text: str) -> str:
    """The document with its tables as computed now."""
    return _BLOCK.sub(lambda match: match[1] + BLOCKS[match[2]]() + match[3], text)


if __name__ == "__main__":
    for document in map(Path, sys.argv[1:]):
        document.write_text(refresh(document.read_text(encoding="utf-8")), encoding="utf-8")
