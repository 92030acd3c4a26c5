"""The fields of Hugging Face config.json files under one name each: which part describes the text model, what families call a
field, and which of the layers have experts.

A config that names experts in a way that is not known here is refused: read as dense, its experts would vanish from every count.
"""

import json
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokentape.warehouse.mixers import kinds_alone

FAMILIES: dict[str, Any] = tomllib.loads(Path(__file__).with_name("families.toml").read_text(encoding="utf-8"))
_DEFAULTS = ((name, value, of) for name, by_value in FAMILIES["class_defaults"].items() for value, of in by_value.items())
FAMILIES["left_out"] += [{"of": of, name: json.loads(value)} for name, value, of in _DEFAULTS]
_LIKE = {name: like for like, names in FAMILIES["like"].items() for name in names.split()}
_CHECKED = frozenset(FAMILIES["checked"].split())
_TEXT_PARTS = ("text_config", "thinker_config", "language_config", "llm_config")
# What families call a field that has another name here.
_NAMES: dict[str, list[str]] = {name: others.split() for name, others in FAMILIES["names"].items()}
_WIDTH = ("hidden_size", *_NAMES["hidden_size"])
_OF_HEADS = ("num_attention_heads", "num_key_value_heads", "head_dim", "v_head_dim", "q_lora_rank", "kv_lora_rank",
             "qk_nope_head_dim", "qk_rope_head_dim")  # fmt: skip
_SWITCHES = ("enable_moe_block", "is_moe")  # false: the fields of experts are there, the experts are not
_PER_LAYER = ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts", "moe_layer_start_index",
              "moe_layer_end_index")  # fmt: skip  # Hunyuan and ERNIE list them
_TEXT_AND_VISION = ("ernie4_5_moe_vl", "ernie4_5_vl_moe", "ernie4_5_vl_moe_text")  # lists of two: the experts of text come first
_KINDS = {"sparse": True, "moe": True, "hash_moe": True} | dict.fromkeys(
    ("dense", "mlp", "full_attention", "linear_attention", "attention", "mamba", "conv", "sliding_attention"), False
)  # fmt: skip
_TELLING = {"sparse", "moe", "hash_moe", "dense", "mlp"}  # the others say nothing of a layer's FFN
_QUANTISED = ("quantization_config", "quantization", "compression_config")  # the second MLX's, the third early compressed-tensors
_COUNTED = re.compile(r"experts?(?!.*(tok|coef|loss|size|dim|interval|period|offset|layer|capacity))", re.IGNORECASE)


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a config.json that describes a language model: all of it, or that for text where a model also sees or hears."""
    part = config
    while not any(part.get(name) for name in _WIDTH) or part.get("text_config"):
        name = next((name for name in _TEXT_PARTS if part.get(name)), None)
        if name is None:
            break
        inner = part[name]
        if not isinstance(inner, dict):
            raise ValueError(f"config.json: {name} must be an object, not {inner!r}")
        kept = {key: part.get(key) for key in ("model_type", "architectures")}
        is_tied = part.get("tie_word_embeddings")  # the head is the whole's
        part = {**kept, **{key: value for key, value in inner.items() if value is not None or key not in kept}}
        part |= {} if is_tied is None else {"tie_word_embeddings": is_tied}
    return {"model_type": None, **part}


def said_of(config: dict[str, Any], kind: str) -> dict[str, Any]:
    """What families.toml says of a config, 'left_out' or 'fixed': by its model_type, and by `where`, fields of these values."""
    rows = (row for row in FAMILIES[kind] if "of" not in row or config.get("model_type") in row["of"].split())
    rows = (row for row in rows if all(config.get(name) == value for name, value in row.get("where", {}).items()))
    return {name: value for row in rows for name, value in row.items() if name not in ("of", "where")}


def canonical(config: dict[str, Any]) -> dict[str, Any]:
    """A text config with the names above, and with what its family leaves unsaid. Raises ValueError naming a field."""
    found = dict(config)
    found |= {"model_type": "longcat_flash"} if found.get("zero_expert_num") is not None else {}  # whose own config names none
    found |= {"model_type": "grok"} if found.get("residual_moe") else {}  # whose config names GIT
    found["model_type"] = _LIKE.get(found.get("model_type") or "", found.get("model_type"))
    if isinstance(found.get("ffn_config"), dict):  # DBRX
        found |= {key: value for key, value in found["ffn_config"].items() if "moe" in key or key == "ffn_hidden_size"}
        found |= {"num_key_value_heads": (found.get("attn_config") or {}).get("kv_n_heads")}
    for name, others in _NAMES.items():
        given = next((other for other in (name, *others) if found.get(other) is not None), None)
        if given is not None:
            found[name] = found[given]
    found["has_narrow_tables"] = found.get("word_embed_proj_dim") not in (None, found.get("hidden_size"))  # OPT
    left_out = said_of(found, "left_out").items()
    found |= {name: value for name, value in left_out if config.keys().isdisjoint((name, *_NAMES.get(name, ())))}
    if found.get("num_hidden_layers") is None and isinstance(found.get("mlp_layer_types"), list):
        found["num_hidden_layers"] = len(found["mlp_layer_types"])
    if found.get("multi_query") and not found.get("new_decoder_architecture"):  # Falcon, StarCoder
        found["num_key_value_heads"] = 1
    if found.get("block_auto_adjust_ff_dim") and found.get("intermediate_size"):  # LFM2
        width, whole = int(2 * found["intermediate_size"] / 3), found.get("block_multiple_of") or 1
        found["intermediate_size"] = -(-int((found.get("block_ffn_dim_multiplier") or 1) * width) // whole) * whole
    if found.get("sliding_window_layout"):  # SmallThinker
        found["sliding_window"] = found.get("sliding_window_size")
    if found.get("parallel_attn_mlp_res"):  # Arctic
        found["shared_expert_intermediate_size"] = found.get("hidden_size")
    if found.get("kv_lora_rank"):
        found.pop("head_dim", None)  # MLA states the parts of a head; this is one of them
    for name in _PER_LAYER:
        found[name] = _one(name, found)
    if any(found.get(switch) is False for switch in _SWITCHES):
        found["num_experts"] = 0
    elif found["num_experts"] is None:
        _refuse_unknown(config)
    return found


def doubts(config: dict[str, Any]) -> str:
    """What to know before trusting the counts of a config; empty: nothing."""
    text = text_config(config)
    weights = next((part[name] for name in _QUANTISED for part in (config, text) if part.get(name)), None)
    told = weights if isinstance(weights, dict) else {"quant_method": weights}
    how = " ".join(str(told[name]) for name in ("quant_method", "quant_algo", "format", "bits") if told.get(name))
    how = f" ({how})" if how else ""
    config = canonical(text)
    name = config["model_type"] or ""
    notes = (
        (weights, f"its checkpoint is quantised{how}: bytes are those of the formats that are asked for, bf16 unless said"),
        (name not in _CHECKED, f"counts of model_type {name!r} were not checked: biases, norms or more may be missing"),
        (config.get("index_topk"), f"steps attend to all tokens, not to the {config.get('index_topk')} that its indexer chooses"),
        (config.get("zero_expert_num"), "chosen experts that compute nothing are counted as read"),
        (name in _TEXT_AND_VISION, "experts that only images choose are not counted"),
    )
    return "; ".join(told for holds, told in notes if holds)


def heads_apart(config: dict[str, Any], has_window: Sequence[bool]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields in place of a canonical config's for layers to all tokens, and for those with a window; ValueError for others."""
    n_layers, model_type = len(has_window), config.get("model_type") or ""
    whole, other = dict[str, Any](), dict(config.get("attention_other_setting") or {})
    other["num_key_value_heads"] = other.get("num_attention_groups")  # Step
    windowed = {name: value for name in _OF_HEADS if (value := config.get(f"swa_{name}") or other.get(name))}
    if model_type.startswith("mimo_v2"):
        windowed = {"num_key_value_heads": 2 * config["num_key_value_heads"]} | windowed | {"has_sinks": True}
    if config.get("index_head_dim"):
        windowed |= {"index_head_dim": 0, "index_n_heads": 0}
    if model_type.startswith(("gemma4", "diffusion_gemma")):
        whole["head_dim"] = config.get("global_head_dim") or 512
        if config.get("attention_k_eq_v"):
            n_heads = config.get("num_global_key_value_heads") or config["num_key_value_heads"]
            whole |= {"num_key_value_heads": n_heads, "is_value_key": True}
    by_layer = {int(layer): dict(fields) for layer, fields in (config.get("per_layer_config") or {}).items()}
    by_layer |= {layer: {"num_attention_heads": n} for layer, n in enumerate(config.get("num_attention_heads_per_layer") or ())}
    for fields, is_windowed in ((whole, False), (windowed, True)):
        told = [by_layer.get(layer, {}) for layer in range(n_layers) if has_window[layer] == is_windowed]
        if any(fields_of != told[0] for fields_of in told) or set(*told[:1]) - set(_OF_HEADS):
            raise ValueError("config.json: layers differ by more than the heads of those with a window, which is not supported")
        fields |= told[0] if told else {}
    return whole, windowed


def without_indexer(config: dict[str, Any]) -> tuple[int, ...]:
    """Layers of a canonical config that attend to what the indexer of a layer before them chose."""
    n_layers, kinds = config["num_hidden_layers"], config.get("indexer_types") or config.get("index_topk_pattern")
    if kinds:
        return tuple(i for i, kind in enumerate(kinds[:n_layers]) if kind in ("shared", "S"))
    every, first = config.get("index_topk_freq") or 1, config.get("index_skip_topk_offset", 2)
    return tuple(i for i in range(n_layers) if max(i - first + 1, 0) % every)


def _one(name: str, config: dict[str, Any]) -> Any:
    """A field that may be a list by layer."""
    value = config.get(name)
    if not isinstance(value, list) or not value:
        return value
    if config.get("model_type") not in _TEXT_AND_VISION and any(v != value[0] for v in value):
        raise ValueError(f"config.json: {name} differs by layer ({value}); experts of several shapes are not supported")
    return value[0]


def _refuse_unknown(config: dict[str, Any]) -> None:
    for name, value in config.items():
        counts = value if isinstance(value, list) else [value]
        if _COUNTED.search(name) and any(type(n) is int and n > 1 for n in counts):
            raise ValueError(
                f"config.json: {name} {value!r} tells of experts, but not in a way that is known: it cannot be read as dense"
            )


def moe_layers(config: dict[str, Any]) -> tuple[int, ...]:
    """Layers with experts, of a canonical config with some; empty where it lists its layers and none has any."""
    n_layers = config["num_hidden_layers"]
    kinds = kinds_alone(config) or config.get("mlp_layer_types")
    if isinstance(kinds, list) and not _TELLING.isdisjoint(kinds):
        unknown = next((kind for kind in kinds if kind not in _KINDS), None)
        if unknown is not None:
            raise ValueError(f"config.json: mlp_layer_types names {unknown!r}; known: {', '.join(_KINDS)}")
        return tuple(i for i, kind in enumerate(kinds[:n_layers]) if _KINDS[kind])
    return _by_rule(config, n_layers)


def _by_rule(config: dict[str, Any], n_layers: int) -> tuple[int, ...]:
    freq, listed = config.get("moe_layer_freq"), config.get("moe_layers")
    if isinstance(listed, list):  # Llama-4
        return tuple(sorted(listed))
    if isinstance(enumerated := config.get("moe_layers_enum"), str):  # Step
        return tuple(sorted(layer for layer in map(int, enumerated.split(",")) if layer < n_layers))
    if isinstance(freq, list):
        return tuple(i for i, is_moe in enumerate(freq) if is_moe)
    if config.get("expert_layer_period"):  # Jamba
        period, offset = config["expert_layer_period"], config.get("expert_layer_offset") or 0
        return tuple(i for i in range(n_layers) if i % period == offset)
    if config.get("moe_layer_interval"):  # ERNIE
        first, last = config.get("moe_layer_start_index") or 0, config.get("moe_layer_end_index")
        last = n_layers - 1 if last in (None, -1) else last
        interval = config["moe_layer_interval"]
        return tuple(i for i in range(n_layers) if (i + 1) % interval == 0 and first <= i <= last)
    step = max(1, next((config[k] for k in ("decoder_sparse_step", "interleave_moe_layer_step") if config.get(k)), freq or 1))
    dense_only = set(config.get("mlp_only_layers") or ())
    first_dense = config.get("first_k_dense_replace") or 0
    return tuple(i for i in range(first_dense, n_layers) if i not in dense_only and (i + 1) % step == 0)
