"""Layers that keep a state of fixed size in place of keys and values: linear attention, state spaces, short convolutions.

What one such layer is made of, from the fields of its family's config.json; widths as transformers' modelling code builds them.
"""

from dataclasses import dataclass
from typing import Any

_ATTENDING = ("full_attention", "attention", "sliding_attention", "chunked_attention", "indexed_attention", "global", "local")
_OF_LETTER = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}  # hybrid_override_pattern of Nemotron-H


@dataclass(frozen=True)
class Mixer:
    """Widths of the products that its input (hidden, in_width) and output (out_width, hidden) pass, by weights those between them
    too, and its other parameters. Kept of a request: values of the state, and of the last inputs of its convolution."""

    in_width: int
    out_width: int
    others: int
    state: int
    last_inputs: int


def mixer_of(config: dict[str, Any]) -> Mixer | None:
    """Of a canonical config; None where its family's layers are not known."""
    hidden, model_type = config["hidden_size"], config.get("model_type")
    if config.get("linear_num_value_heads"):  # gated delta net: Qwen3-Next, Qwen3.5, Olmo Hybrid
        n, width = config["linear_num_value_heads"], config["linear_value_head_dim"]
        key, value = config["linear_num_key_heads"] * config["linear_key_head_dim"], n * width
        through, kernel = 2 * key + value, config["linear_conv_kernel_dim"]
        others = 2 * n + through * kernel + width
        return Mixer(through + value + 2 * n, value, others, value * config["linear_key_head_dim"], through * (kernel - 1))
    if model_type == "kimi_linear" or config.get("kda_lower_bound") is not None:
        told = config.get("linear_attn_config") or {}
        n, width = (told.get(name) or config[f"linear_{name}"] for name in ("num_heads", "head_dim"))
        kernel, value = told.get("short_conv_kernel_size") or config["linear_conv_kernel_dim"], n * width
        decay = 0 if model_type == "bailing_hybrid" else width  # ranks of its two gates, 0: full
        gate = 0 if told.get("use_full_rank_gate") else decay
        width_in = 3 * value + n + (decay or value) + (gate or value)
        within, rest = divmod((decay + gate) * value, hidden)
        others = rest + 3 * value * kernel + value + n + width
        return Mixer(width_in, value + within, others, value * width, 3 * value * (kernel - 1))
    if config.get("mamba_n_heads"):  # Mamba 2: Bamba, Granite 4, Nemotron-H
        n, state, kernel = config["mamba_n_heads"], config["mamba_d_state"], config["mamba_d_conv"]
        of_head = config.get("mamba_d_head")
        width = n * of_head if isinstance(of_head, int) else config.get("mamba_d_ssm") or config["mamba_expand"] * hidden
        through = width + 2 * config["mamba_n_groups"] * state
        others = 3 * n + through * (kernel + bool(config.get("mamba_conv_bias"))) + width * config.get("mamba_rms_norm", True)
        biased = config.get("use_bias" if model_type == "nemotron_h" else "mamba_proj_bias")
        others += (through + width + n) * bool(biased) + hidden * bool(config.get("projectors_bias", biased))
        return Mixer(through + width + n, width, others, width * state, through * (kernel - 1))
    if config.get("mamba_d_conv"):  # Mamba: Jamba
        state, kernel, width = config["mamba_d_state"], config["mamba_d_conv"], config["mamba_expand"] * hidden
        rank = config["mamba_dt_rank"] if config.get("mamba_dt_rank") not in (None, "auto") else -(-hidden // 16)
        within = config["mamba_expand"] * (2 * rank + 2 * state)  # to steps and states, and from steps
        others = rank + 2 * state + width * (state + kernel + 2 + bool(config.get("mamba_conv_bias")))
        others += (2 * width + hidden) * bool(config.get("mamba_proj_bias"))
        return Mixer(2 * width, width + within, others, width * state, width * (kernel - 1))
    if model_type == "minimax":  # lightning attention
        width = config["num_attention_heads"] * (config.get("head_dim") or hidden // config["num_attention_heads"])
        return Mixer(4 * width, width, width, width * width // config["num_attention_heads"], 0)
    if config.get("conv_L_cache"):  # LFM2
        kernel, biases = config["conv_L_cache"], 5 if config.get("conv_bias") else 0
        return Mixer(3 * hidden, hidden, hidden * (kernel + biases), 0, hidden * (kernel - 1))
    return None


def kinds_alone(config: dict[str, Any]) -> list[str]:
    """What each layer is, of a family where one is attention, a state or an FFN alone; empty of the others."""
    if isinstance(pattern := config.get("hybrid_override_pattern"), str):
        return [_OF_LETTER.get(letter, letter) for letter in pattern]
    kinds = config.get("layers_block_type")
    return kinds if config.get("model_type") == "nemotron_h" and isinstance(kinds, list) else []


def layers_alone(config: dict[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Layers without an FFN, and those of an FFN alone."""
    is_ffn = [kind in ("mlp", "moe") for kind in kinds_alone(config)]
    return tuple(i for i, ffn in enumerate(is_ffn) if not ffn), tuple(i for i, ffn in enumerate(is_ffn) if ffn)


def layers_with_state(config: dict[str, Any]) -> tuple[int, ...]:
    """Layers of a canonical config that do not attend to keys and values."""
    layers, kinds = range(config["num_hidden_layers"]), config.get("layer_types")
    if alone := kinds_alone(config):
        return tuple(i for i, kind in enumerate(alone) if kind in ("mamba", "linear_attention"))
    if config.get("model_type") == "falcon_h1":
        return tuple(layers)
    if isinstance(kinds, list):
        return tuple(i for i, kind in zip(layers, kinds, strict=False) if kind not in _ATTENDING)
    if every := config.get("full_attention_interval") or config.get("layer_group_size"):  # Qwen3-Next, Bailing
        return tuple(i for i in layers if (i + 1) % every)
    if config.get("attn_layer_period"):  # Jamba
        return tuple(i for i in layers if i % config["attn_layer_period"] != (config.get("attn_layer_offset") or 0))
    if isinstance(config.get("attn_type_list"), list):  # MiniMax: 1 attends
        return tuple(i for i, attends in zip(layers, config["attn_type_list"], strict=False) if not attends)
    if isinstance(config.get("linear_attn_config"), dict):  # Kimi counts from 1
        return tuple(i for i in layers if i + 1 not in (config["linear_attn_config"].get("full_attn_layers") or ()))
    attending = config.get("attn_layer_indices", config.get("full_attn_idxs"))
    is_listed = "attn_layer_indices" in config or attending is not None  # Bamba's may be null: none attends
    return tuple(i for i in layers if i not in (attending or ())) if is_listed else ()
