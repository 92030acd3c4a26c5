"""A model's geometry, read from its Hugging Face config.json: by the fields that it gives, and what its family leaves unsaid."""

from typing import Any

from tokentape.warehouse.config_fields import FAMILIES, canonical, heads_apart, moe_layers, said_of, text_config, without_indexer
from tokentape.warehouse.geometry import MOST, MOST_WIDE, Geometry
from tokentape.warehouse.mixers import layers_alone, layers_with_state, mixer_of

__all__ = ["from_config", "text_config"]

_LATENT = ("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "index_n_heads", "index_head_dim")
_OF_HEADS = ("n_heads", "n_kv_heads", "head_dim", *_LATENT, "is_value_key", "has_sinks")  # that may differ with a window
_REQUIRED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
_LEAST = {  # of a field that is given
    **dict.fromkeys((*_REQUIRED, "num_key_value_heads", "head_dim", "intermediate_size"), 1),
    **dict.fromkeys(("num_experts", "n_shared_experts", "first_k_dense_replace", "num_experts_per_tok"), 0),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", *_LATENT), 0),
    **dict.fromkeys(("sliding_window", "max_window_layers"), 0),
}
_DENSE_WIDTH = ("intermediate_size_mlp", "dense_intermediate_size", "prefix_dense_intermediate_size", "intermediate_size")
_ENCODERS = ("bert", "clip", "electra", "mpnet")  # one of them is within the model_type of an encoder
_WANTED = "give the config of a decoder-only language model"


def from_config(config: dict[str, Any]) -> Geometry:
    """Geometry from a Hugging Face config.json (as a dict), for the MoE and dense families of docs/capture.md.

    Raises ValueError naming the field that is missing or impossible.
    """
    config = canonical(text_config(config))
    _check(config)
    has, apart = [window > 0 for window in _windows(config)], without_indexer(config)
    whole, windowed = heads_apart(config, has)
    if apart:
        config["has_shared_indexers"] = any(has)
        has, windowed = [layer in apart for layer in range(len(has))], {"index_head_dim": 0, "index_n_heads": 0}
    geometry, other = _of(config | (windowed if all(has) else whole)), _of(config | (windowed if any(has) else whole))
    differing = tuple((name, getattr(other, name)) for name in _OF_HEADS if getattr(geometry, name) != getattr(other, name))
    of = {config["model_type"], *(name for name, value in config.items() if value)}
    told = next((told for told, names in FAMILIES["unknown"].items() if not of.isdisjoint(names.split())), "")
    if not told and geometry.is_glu and geometry.n_dense and not _first(config, *_DENSE_WIDTH):
        told = "its config gives no intermediate_size"
    geometry = Geometry(**{**geometry.model_dump(), "of_windows": differing, "apart": apart, "uncounted": told})
    return geometry if told else _with_states(config, geometry)


def _check(config: dict[str, Any]) -> None:
    """Raises ValueError naming the first field that is missing, or that no decoder has like this."""
    model_type, architectures = config["model_type"] or "", config.get("architectures")
    if config.get("is_encoder_decoder") or any(part in model_type for part in _ENCODERS):
        raise ValueError(f"config.json: model_type {model_type!r} has an encoder; {_WANTED}")
    for field in (*_REQUIRED, *(("v_head_dim",) if config.get("kv_lora_rank") else ())):
        if config.get(field) is None:
            raise ValueError(f"config.json: {field} is missing; {_WANTED}")
    for field, least in _LEAST.items():
        value = config.get(field)
        if value is not None and (type(value) is not int or value < least):
            raise ValueError(f"config.json: {field} must be a whole number of at least {least}, not {value!r:.40}")
    for field in ("num_hidden_layers", "num_experts"):  # before they are counted through
        if (config.get(field) or 0) > MOST:
            raise ValueError(f"config.json: {field} is {config[field]}; {MOST} are the most")
    is_named = isinstance(architectures, list) and architectures and isinstance(architectures[0], str)
    if architectures is not None and not is_named:
        raise ValueError(f"config.json: architectures must list the name of a class, not {architectures!r}")


def _first(config: dict[str, Any], *names: str, default: Any = 0) -> Any:
    return next((config[name] for name in names if config.get(name) is not None), default)


def _of(config: dict[str, Any]) -> Geometry:
    """Of a canonical config whose layers all have the heads that it tells of, and keys and values."""
    hidden, n_heads = config["hidden_size"], config["num_attention_heads"]
    in_layers = moe_layers(config) if config["num_experts"] else ()
    n_experts = config["num_experts"] if in_layers else 0
    width = _first(config, *_DENSE_WIDTH, default=4 * hidden)
    of_experts = _of_experts(config, n_experts, width) if n_experts else {}
    head_dim = _first(config, "head_dim", default=hidden // n_heads)
    if config.get("kv_lora_rank"):  # MLA states the two parts of a query
        head_dim = _first(config, "qk_nope_head_dim") + _first(config, "qk_rope_head_dim")
    return Geometry(
        architecture=_first(config, "architectures", default=[config["model_type"] or "unknown"])[0],
        n_layers=config["num_hidden_layers"],
        hidden=hidden,
        n_heads=n_heads,
        n_kv_heads=_first(config, "num_key_value_heads", default=n_heads),
        head_dim=head_dim,
        vocab=config["vocab_size"],
        moe_layers=in_layers,
        dense_intermediate=width,
        **{name: _first(config, name) for name in _LATENT},
        **of_experts,
        **_details(config),
    )


def _of_experts(config: dict[str, Any], n_experts: int, dense: int) -> dict[str, Any]:
    """The fields that tell of experts; dense: width of a dense FFN. Raises ValueError naming one that is missing."""
    top_k = _first(config, "num_experts_per_tok")
    width_field = "moe_intermediate_size" if config.get("needs_expert_width") else "intermediate_size"
    width = _first(config, "moe_intermediate_size", width_field)
    for field, value in (("num_experts_per_tok", top_k), (width_field, width)):
        if not value:
            raise ValueError(f"config.json: {field} is missing; a model of {n_experts} experts has it")
    if top_k > n_experts:
        raise ValueError(f"config.json: num_experts_per_tok must lie in 1..{n_experts}, the number of experts, not {top_k}")
    n_shared = _first(config, "n_shared_experts")
    beside = dense * (_first(config, "n_dense_beside") or bool(_first(config, "enable_moe_block", "residual_moe")))
    shared = beside or _first(config, "shared_expert_intermediate_size", default=n_shared * width)
    return {
        "n_experts": n_experts,
        "top_k": top_k,
        "expert_intermediate": width,
        "expert_hidden": _first(config, "expert_hidden_size"),
        "n_shared_experts": n_shared or (1 if shared else 0),
        "shared_intermediate": shared,
        "n_idle_experts": _first(config, "zero_expert_num"),
    }


def _details(config: dict[str, Any]) -> dict[str, Any]:
    """The fields that change counts a little: biases, norms, ties, windows, learned positions."""
    known: dict[str, Any] = {name: True for name in ("is_value_key", "has_sinks") if config.get(name)}
    if config.get("attention_bias"):
        known["attention_bias"] = config.get("biased", "qkvo")
    if config.get("tie_word_embeddings") is not None:
        known["is_tied"] = config["tie_word_embeddings"]
    if config.get("positions_beside") is not None:
        known["n_positions"] = config.get("max_position_embeddings", 2048) + config["positions_beside"]
    elif not config.get("rotary_dim") and config.get("position_embedding_type") != "alibi":  # GPT-2
        known["n_positions"] = _first(config, "n_positions")
    windows = _windows(config)
    return {**known, **said_of(config, "fixed"), "sliding_windows": windows if any(windows) else ()}


def _windows(config: dict[str, Any]) -> tuple[int, ...]:
    """Of every layer, 0: none."""
    n_layers: int = config["num_hidden_layers"]
    window = _first(config, "sliding_window", "attention_chunk_size")
    if not window or not config.get("use_sliding_window", True):
        return (0,) * n_layers
    if (config["model_type"] or "")[:7] == "mimo_v2" and config.get("sliding_window_size"):
        window = 1 + config["sliding_window_size"]
    patterns = ("hybrid_layer_pattern", "sliding_window_pattern", "global_attn_every_n_layers", "one_without_window_of")
    pattern = next((config[name] for name in patterns if config.get(name)), None)
    if config.get("layer_types"):
        has_window = [kind in ("sliding_attention", "chunked_attention") for kind in config["layer_types"][:n_layers]]
    elif isinstance(pattern, list | str):  # MiMo, EXAONE 4: LLLG
        has_window = [pattern[i % len(pattern)] in (1, "L") for i in range(n_layers)]
    elif pattern:
        before = _first(config, "prefix_dense_sliding_window_pattern")  # of Cohere's dense layers; others are counted after them
        first = min(_first(config, "first_k_dense_replace"), n_layers) if before else 0
        has_window = [((i + 1) % before if i < first else (i - first + (pattern > 0)) % pattern) != 0 for i in range(n_layers)]
    else:
        has_window = [i >= _first(config, "max_window_layers") for i in range(n_layers)]
    if config.get("without_window") is not None:
        has_window[config["without_window"]] = False
    return tuple(min(window, MOST_WIDE) if has else 0 for has in has_window)


def _with_states(config: dict[str, Any], geometry: Geometry) -> Geometry:
    """With the layers that keep a state, where it is known what theirs are made of, and those of one part alone."""
    layers, (mixing, feeding) = layers_with_state(config), layers_alone(config)
    try:
        mixer = mixer_of(config)
    except KeyError as error:
        raise ValueError(f"config.json: {error.args[0]} is missing; {_WANTED}") from None
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
