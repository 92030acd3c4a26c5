"""Geometry: parameters against published counts and transformers' own classes, bytes and operations against the papers."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusing import refuses

from bench.docs.models import refreshed
from bench.docs.models import row as row_of
from tokentape.warehouse import model_sizes
from tokentape.warehouse.config_fields import FAMILIES, canonical
from tokentape.warehouse.formats import EXPERT_FORMATS, slice_bytes, value_bytes
from tokentape.warehouse.geometry import Geometry
from tokentape.warehouse.mixers import mixer_of
from tokentape.warehouse.model_config import from_config
from tokentape.warehouse.model_tables import HEADINGS, details
from tokentape.warehouse.models import FOLDER, like, load, names, shipped

ROOT, HERE = Path(__file__).resolve().parents[2], Path(__file__).resolve().parent
PAPERS = Path(__file__).resolve().parents[3] / "shared" / "papers"
MODELS = {model.name: model for model in shipped()}
SHAPES = {name: model.geometry for name, model in MODELS.items()}
QWEN3 = SHAPES["qwen3-30b-a3b"]
WINDOWED = SHAPES["gpt-oss-20b"]
COUNTS: dict[str, Any] = json.loads((HERE / "published_counts.json").read_text())

# ------------------------------------------------------------------------------------------------------- parameters


@pytest.mark.parametrize("name", names())
def test_totals_are_within_one_percent_of_the_published_counts_and_equal_what_transformers_builds(name: str) -> None:
    """Oracle: the modelling code's own tensors, without memory behind them."""
    model, g = MODELS[name], SHAPES[name]
    assert model.published is not None
    assert abs(model.deviation_frac or 0.0) < 0.01
    assert model.published.source.startswith("https://")
    assert model.source.startswith("https://")
    assert (model.published.active_params is None) == (not g.n_experts)
    bare, read, full = model_sizes.active_params(g, False), model_sizes.decode_params(g), model_sizes.active_params(g, True)
    assert bare < read <= full <= model_sizes.total_params(g)
    assert (full == model_sizes.total_params(g)) == (not g.n_experts)
    assert (read == full) == (g.is_tied and not g.n_positions)
    transformers = pytest.importorskip("transformers")
    entry = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))["config"]
    config = transformers.AutoConfig.for_model(**entry)
    assert built_params(config) == model_sizes.total_params(g)
    assert from_config(config.to_dict()) == g


@pytest.mark.parametrize(("hub_name", "name"), COUNTS["checkpoints of the hub"])
def test_a_checkpoint_of_the_hub_has_the_geometry_that_ships(hub_name: str, name: str) -> None:
    assert like(hub_name) == name


@pytest.mark.parametrize("hub_name", ["meta-llama/Llama-3.2-11B-Vision", "deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "yi-3", ""])
def test_a_checkpoint_of_another_size_is_no_variant(hub_name: str) -> None:
    refuses("no shipped model is like", like, hub_name)


OTHER_CONFIGS: dict[str, Any] = json.loads((HERE / "other_configs.json").read_text())


@pytest.mark.parametrize("family", OTHER_CONFIGS)
def test_other_families_count_every_parameter(family: str) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
    moe = {"moe_intermediate_size": 16, "num_experts_per_tok": 2} if "n_routed_experts" in OTHER_CONFIGS[family] else {}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = getattr(transformers, f"{family}Config")(
        **sizes, **moe, **ids, num_key_value_heads=4 if family == "DeepseekV3" else 2, **OTHER_CONFIGS[family]
    )
    assert model_sizes.total_params(from_config(config.to_dict())) == built_params(config)


BELOW = {"deepseek_v2", "dots1", "gemma4_text", "hunyuan_v1_moe", "lfm2_moe", "longcat_flash", "opt", "step3p5"}  # tested there
CHECKED = sorted(set(FAMILIES["checked"].split()) - BELOW)
FLAGS = [(name, told) for name, of in json.loads((HERE / "other_flags.json").read_text()).items() for told in of]  # seldom set
FLAGS += [(name, {}) for name in CHECKED[::9]]


@pytest.mark.parametrize(("family", "told"), [*FLAGS, *(pytest.param(name, {}, marks=pytest.mark.slow) for name in CHECKED)])
def test_what_is_said_to_be_checked_has_the_parameters_of_its_class(family: str, told: dict[str, Any]) -> None:
    config = pytest.importorskip("transformers").AutoConfig.for_model(family, **told)
    assert model_sizes.total_params(from_config(config.to_dict())) == built_params(config)


@pytest.mark.parametrize("field", FAMILIES["class_defaults"])
def test_a_field_that_a_config_does_not_give_is_as_its_class_has_it(field: str) -> None:
    transformers = pytest.importorskip("transformers")
    names = (field, *FAMILIES["names"].get(field, "").split())
    names += ("mlp_layer_types",) if field == "first_k_dense_replace" else ()  # which its class makes of it
    for family in " ".join(FAMILIES["class_defaults"][field].values()).split():
        config = transformers.AutoConfig.for_model(family, num_experts_per_tok=2).to_dict()
        without = {name: value for name, value in config.items() if name not in names}
        assert from_config(without) == from_config(config), family


@pytest.mark.parametrize("family", ["Apertus", "Falcon", "GPTJ", "Mpt", "Nemotron", "Phi"])
def test_layers_without_a_gate_have_two_matrices_and_one_head_of_keys_where_all_share_it(family: str) -> None:
    """To the biases and positions that no count of these families was checked for."""
    transformers = pytest.importorskip("transformers")
    sizes = {"num_key_value_heads": 8} if family == "Nemotron" else {}
    config = getattr(transformers, f"{family}Config")(vocab_size=999, **sizes)
    geometry = from_config(config.to_dict())
    assert model_sizes.total_params(geometry) == pytest.approx(built_params(config), rel=0.03)
    assert (geometry.n_kv_heads == 1) == (family == "Falcon")


# Kinds of layers as publishers tell of them: before they were listed, and in place of it, with what is written beside.
WINDOWS: dict[str, Any] = json.loads((HERE / "windows.json").read_text())
WITH_STATES: dict[str, Any] = json.loads((HERE / "layers_with_states.json").read_text())


def with_states(family: str):
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "num_key_value_heads": 2}
    return getattr(transformers, f"{family}Config")(**sizes | ids | WITH_STATES[family])


@pytest.mark.parametrize("family", WITH_STATES)
def test_layers_with_a_state_count_every_parameter_and_keep_what_transformers_keeps(family: str) -> None:
    config = with_states(family)
    geometry, mixer = from_config(config.to_dict()), mixer_of(canonical(config.to_dict()))
    assert model_sizes.total_params(geometry) == built_params(config)
    cache = cache_of(config, 60)
    states = [layer for layer in cache if "Linear" in type(layer).__name__]
    states = [layer for layer in states if family == "MiniMax" or layer.conv_states[0] is not None]  # empty ones before 5.22
    if family != "MiniMax":  # which keeps its states outside what the cache tells
        assert len(states) == len(geometry.state_layers) > 0
        kept, inputs = getattr(states[0].recurrent_states[0], "numel", int)(), states[0].conv_states[0]
        newest = inputs.numel() // inputs.shape[-1]  # which engines do not keep
        assert (mixer.state, mixer.last_inputs) == (kept, inputs.numel() - newest)
    of_state = 2 if family in ("NemotronH", "Qwen3_5Text") else 1  # 32 bits each
    tokens = -(-(of_state * mixer.state + mixer.last_inputs) // geometry.kv_elements_per_token_layer)
    assert geometry.state_tokens == tokens
    n = sum(getattr(layer, "keys", None) is not None for layer in cache)
    per_token = geometry.kv_elements_per_token_layer
    assert model_sizes.kv_bytes_per_token(geometry, "int8") == n * per_token
    kept_tokens = n * 10_000 + len(geometry.state_layers) * tokens
    assert model_sizes.kv_bytes(geometry, 10_000, "int8") == kept_tokens * per_token


@pytest.mark.parametrize(("family", "told", "states"), WINDOWS["layers with a state, by every way of telling"])
def test_layers_with_a_state_are_found_by_every_way_of_telling(family: str, told: dict, states: list[int]) -> None:
    assert from_config(with_states(family).to_dict() | told).state_layers == tuple(states)


# Whose layers with a window have heads of their own, that keep an indexer's keys, or that have two attentions.
_SIZES = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 6, "num_attention_heads": 4}
_SIZES |= {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 7, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_group": 1, "topk_group": 1}
_LATENT = {"kv_lora_rank": 16, "q_lora_rank": 12, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6}
_LATENT |= {"num_key_value_heads": 4, "index_head_dim": 8, "index_n_heads": 2, "index_topk": 4}
APART: dict[str, Any] = json.loads((HERE / "layers_apart.json").read_text())


@pytest.mark.parametrize("family", APART)
def test_layers_that_differ_count_every_parameter_and_keep_what_transformers_keeps(family: str) -> None:
    config = getattr(pytest.importorskip("transformers"), f"{family.strip()}Config")(**_SIZES | APART[family])
    geometry, n_tokens, kept = from_config(config.to_dict()), 60, 0
    assert model_sizes.total_params(geometry) == built_params(config)
    for layer in cache_of(config, n_tokens):
        of_token = sum(values.numel() // values.shape[-2] for values in (layer.keys, layer.values))
        index = getattr(layer, "indexer_keys", None)
        of_token += 0 if index is None else index.shape[-1]
        n = layer.keys.shape[-2]
        kept += of_token * (n if n == n_tokens else n + 1)  # a window without the token that is to come
    assert model_sizes.kv_bytes(geometry, n_tokens, "int8") == kept
    assert {n for n in geometry.windows_by_layer if n} <= {7}
    assert Geometry.model_validate_json(geometry.model_dump_json()) == geometry  # as a manifest keeps it


FULL_AND_SLIDING = {"full_attention": 0, "sliding_attention": 7, "chunked_attention": 7}


@pytest.mark.parametrize(("family", "told"), WINDOWS["told in place of layer_types"])
def test_windows_are_where_transformers_has_them_when_layers_are_not_listed(family: str, told: dict) -> None:
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{family}Config")(**_SIZES | {"num_hidden_layers": 8})
    windows = tuple(FULL_AND_SLIDING[kind] for kind in config.layer_types)
    assert 0 < sum(map(bool, windows)) < 8
    assert from_config(config.to_dict() | {"layer_types": None} | told).sliding_windows == windows


# Fields as on the hub, after the publisher's rounded counts of all and of active parameters (1e9): of Kimi K3 2.8T, of Arctic
# 10 + 128 x 3.66, of LongCat the most of 18.6 to 31.3, by how many of the chosen experts compute.
ON_THE_HUB: dict[str, Any] = json.loads((HERE / "models_on_the_hub.json").read_text())


@pytest.mark.parametrize("name", ON_THE_HUB)
def test_published_counts_of_models_whose_layers_differ(name: str) -> None:
    total, active, config = ON_THE_HUB[name]
    g = from_config(config)
    assert model_sizes.total_params(g) / 1e9 == pytest.approx(total, rel=0.018 if name == "kimi-k3" else 0.002)  # half a digit
    counts = (model_sizes.decode_params(g), model_sizes.active_params(g, with_embeddings=False))  # publishers give either
    assert model_sizes.parameters(g).vectors < 0.001 * counts[0]  # which bytes that a decode reads, and operations, leave out
    assert any(count / 1e9 == pytest.approx(active, rel=0.015) for count in counts)


@pytest.mark.parametrize(("config", "message"), json.loads((HERE / "uncounted_configs.json").read_text()))
def test_what_is_not_counted_is_refused_in_one_line_and_never_guessed(config: dict, message: str) -> None:
    g = from_config(LLAMA | {"architectures": ["llama"]} | config)
    for asked in (model_sizes.total_params, lambda g: model_sizes.kv_bytes_per_token(g, "int8")):
        refuses(message, asked, g)


@pytest.mark.parametrize(
    "told", [{"index_topk_freq": 2}, {"index_topk_pattern": "FFSFSF"}, {"index_topk_freq": 4, "index_skip_topk_offset": 3}]
)
def test_indexers_are_shared_as_transformers_reads_it(told: dict) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = _SIZES | _LATENT | _EXPERTS | {"sliding_window": None}
    kinds = transformers.GlmMoeDsaConfig(**sizes | told).indexer_types
    assert from_config({"model_type": "glm_moe_dsa"} | sizes | told).apart == tuple(i for i in range(6) if kinds[i] == "shared")


def built_params(config) -> int:
    """Parameters of the model that transformers builds, routers' correction biases (buffers there) included."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    biases = sum(tensor.numel() for name, tensor in model.named_buffers() if "bias" in name and tensor.ndim == 1)
    return sum(tensor.numel() for tensor in model.parameters()) + biases


def cache_of(config, n_tokens: int) -> list:
    """What transformers keeps of so many tokens, layer by layer."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        return model(torch.full((1, n_tokens), 5), use_cache=True).past_key_values.layers


@pytest.mark.parametrize(("name", "static", "total", "active", "gigabytes"), COUNTS["ELMoE-3D section 3"])
def test_elmoe_parameter_table(name: str, static: float, total: float, active: float, gigabytes: float) -> None:
    g = SHAPES[name]
    assert model_sizes.static_bytes(g, "int8-g32") / 1e9 == pytest.approx(gigabytes, abs=6e-4)
    assert round(g.non_expert_params / 1e9, 4) == static
    assert round(model_sizes.total_params(g) / 1e9, 2) == total
    assert round(model_sizes.decode_params(g) / 1e9, 2) == active


@pytest.mark.parametrize(("name", "count", "tolerance"), COUNTS["of what published active counts are, and how nearly"])
def test_published_active_counts_fit_one_of_the_definitions(name: str, count: str, tolerance: float) -> None:
    g, published = SHAPES[name], MODELS[name].published
    assert published is not None
    ours = model_sizes.active_params(g, with_embeddings=True) if count == "all" else model_sizes.decode_params(g)
    assert ours == pytest.approx(published.active_params, rel=tolerance)


def test_decode_weights_of_dense_models() -> None:
    """Kelle's W: attention, FFN and output head, without the input table."""
    goldens = {"llama-2-7b": 6_607_077_376, "llama-2-13b": 12_851_609_600, "llama-3.2-3b": 3_212_574_720}
    assert {name: SHAPES[name].non_expert_params for name in goldens} == goldens
    opt = SHAPES["opt-6.7b"]
    assert opt.non_expert_params == 32 * (4 * 4096**2 + 2 * 4096 * 16384) + 50272 * 4096


@pytest.mark.parametrize("table", ["model_geometry_dense.csv", "model_geometry_moe.csv"])
def test_shapes_equal_the_tables_of_the_papers(table: str) -> None:
    if not (PAPERS / table).exists():
        pytest.skip(f"{table} is not here")
    fields = {
        "layers": "n_layers", "hidden": "hidden", "q_heads": "n_heads", "kv_heads": "n_kv_heads", "head_dim": "head_dim",
        "ffn": "dense_intermediate", "vocab": "vocab", "routed_experts": "n_experts", "top_k": "top_k",
        "moe_intermediate": "expert_intermediate", "expert_params": "expert_params",
    }  # fmt: skip
    for row in csv.DictReader((PAPERS / table).open(encoding="utf-8")):
        g = SHAPES[row["model"].lower()]
        assert {c: int(row[c]) for c in fields if c in row} == {c: getattr(g, f) for c, f in fields.items() if c in row}
        assert g.is_glu == (row.get("gated_ffn", "1") == "1")
        assert len(g.moe_layers) == int(row.get("moe_layers", 0))
        count, _, width = row.get("shared_experts", "").partition("x")
        assert not width or g.shared_intermediate == int(count) * int(width)


# ------------------------------------------------------------------------------------------------------- bytes


def test_expert_bytes() -> None:
    assert QWEN3.expert_bytes("bf16")[0] == 9_437_184
    assert QWEN3.expert_bytes("int8-g32")[0] == 5_013_504
    all_experts = model_sizes.parameters(QWEN3).experts
    assert round(value_bytes(all_experts, "bf16") / 1e9, 2) == 57.98
    assert round(value_bytes(all_experts, "int8-g32") / 1e9, 2) == 30.80
    assert SHAPES["gpt-oss-20b"].expert_bytes("mxfp4")[0] == 13_219_200
    assert SHAPES["gpt-oss-20b"].expert_bytes("bf16")[0] == 49_766_400
    assert round(SHAPES["glm-4.7-flash"].expert_bytes("int8-g32")[0] / 1e6, 3) == 10.027
    assert [round(SHAPES[m].expert_bytes("fp16")[0] / 1e6, 1) for m in ("mixtral-8x7b", "mixtral-8x22b")] == [352.3, 604.0]


@pytest.mark.parametrize(("name", "gigabytes"), [("deepseek-v2-lite", 1.099), ("qwen1.5-moe-a2.7b", 1.544)])
def test_static_bytes_of_slicemoe(name: str, gigabytes: float) -> None:
    """SliceMoE section 2 lists attention, shared experts, dense layer and output head: it leaves the routers out."""
    p = model_sizes.parameters(SHAPES[name])
    without_routers = p.attention + p.shared_ffn + p.dense_ffn + p.head
    assert value_bytes(without_routers, "int8") / 1e9 == pytest.approx(gigabytes, abs=7e-4)
    assert SHAPES[name].non_expert_bytes("int8-g32") == without_routers + p.routers


@pytest.mark.parametrize(("name", "n_bytes"), [("gpt-oss-20b", 13_761_264_768), ("gpt-oss-120b", 65_248_815_744)])
def test_checkpoint_bytes_to_the_last_byte(name: str, n_bytes: int) -> None:
    """total_size of openai/gpt-oss-*'s model.safetensors.index.json: MXFP4 experts, the rest bfloat16."""
    assert model_sizes.weight_bytes(SHAPES[name], "mxfp4", "bf16", "bf16") == n_bytes


def test_slices_of_slicemoe() -> None:
    weights = SHAPES["deepseek-v2-lite"].expert_params
    assert weights == SHAPES["qwen1.5-moe-a2.7b"].expert_params == 8_650_752
    assert slice_bytes(weights, 8, 4) == (5_136_384, 4_325_376)
    assert slice_bytes(weights, 4, 2) == (2_973_696, 2_162_688)
    assert sum(slice_bytes(weights, 4, 2)) == slice_bytes(weights, 8, 4)[0]


@given(st.integers(1, 10**8), st.integers(2, 16), st.data())
def test_slices_hold_every_bit_once(n_weights: int, bits_high: int, data: st.DataObject) -> None:
    bits_low = data.draw(st.integers(1, bits_high))
    msb, lsb = slice_bytes(n_weights, bits_high, bits_low)
    bits = 8 * (msb + lsb - 3 * -(-n_weights // 32))
    assert n_weights * bits_high <= bits < n_weights * bits_high + 16


def test_windows_cap_the_cache_and_cache_bytes() -> None:
    assert model_sizes.kv_bytes_per_token(QWEN3, "bf16") == 98_304
    assert model_sizes.kv_bytes_per_token(SHAPES["llama-2-7b"], "fp16") == 524_288
    assert model_sizes.kv_layer_bytes_per_token(SHAPES["mixtral-8x7b"], "fp16") == 4096
    elements = {"qwen3-30b-a3b": 48 * 1024, "glm-4.7-flash": 47 * 576, "deepseek-v2-lite": 27 * 576, "gpt-oss-20b": 24 * 1024}
    assert {name: model_sizes.kv_bytes_per_token(SHAPES[name], "int8") for name in elements} == elements
    assert WINDOWED.sliding_windows == (128, 0) * 12
    assert model_sizes.kv_bytes(WINDOWED, 100, "bf16") == 100 * 24 * 2048
    assert model_sizes.kv_bytes(WINDOWED, 1024, "bf16") == (12 * 128 + 12 * 1024) * 2048
    mistral = SHAPES["mistral-7b"]
    assert model_sizes.kv_bytes(mistral, 10_000, "bf16") == model_sizes.kv_bytes(mistral, 4096, "bf16")
    assert not any(SHAPES[name].sliding_windows for name in ("qwen2-7b", "qwen1.5-moe-a2.7b", "qwen3-8b", "mixtral-8x7b"))


@pytest.mark.parametrize(("config", "windows"), WINDOWS["read as the families mean them"])
def test_windows_are_read_as_the_families_mean_them(config: dict, windows: list[int]) -> None:
    shape = {"hidden_size": 64, "intermediate_size": 9, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 100}
    assert from_config(shape | {"num_experts": 0} | config).sliding_windows == tuple(windows)


# ------------------------------------------------------------------------------------------------------- operations


def test_operations_of_a_decode_and_of_latent_attention() -> None:
    llama = SHAPES["llama-2-7b"]
    assert model_sizes.ops_per_token(llama, 1000) == 2 * 6_607_077_376 + 32 * 2 * 2 * 32 * 128 * 1000
    moe = 2 * (QWEN3.non_expert_params + 48 * 8 * QWEN3.expert_params)
    assert model_sizes.ops_per_token(QWEN3, 500) == moe + 48 * 4 * 32 * 128 * 500
    windowed = 4 * 64 * 64 * 12 * (128 + 1000)
    assert model_sizes.ops_per_token(WINDOWED, 1000) == model_sizes.ops_per_token(WINDOWED, 1) + windowed - 4 * 64 * 64 * 24
    # MLA: a decode token meets the 576-wide latent, a prefill expanded keys (192) and values (128), 16 heads each.
    g = SHAPES["deepseek-v2-lite"]
    per_context = 27 * 2 * 16 * (512 + 64 + 512)
    assert model_sizes.ops_per_token(g, 101) - model_sizes.ops_per_token(g, 1) == 100 * per_context
    pairs = 100 * 101 // 2
    head = 102400 * 2048
    body = 2 * 100 * (g.non_expert_params - head + 26 * 6 * g.expert_params)
    assert model_sizes.prefill_ops(g, 100) == body + 2 * head + 27 * 2 * 16 * (192 + 128) * pairs


SHORT = WINDOWED.model_copy(update={"n_layers": 2, "moe_layers": (0, 1), "sliding_windows": (5, 0)})


@pytest.mark.parametrize("n_tokens", range(1, 13))
def test_prefill_is_the_sum_of_its_tokens_but_for_their_heads(n_tokens: int) -> None:
    tokens, heads = range(1, n_tokens + 1), 2 * (n_tokens - 1) * SHORT.vocab * SHORT.hidden
    assert model_sizes.prefill_ops(SHORT, n_tokens) == sum(model_sizes.ops_per_token(SHORT, n) for n in tokens) - heads


@given(st.sampled_from(names()), st.integers(1, 10_000), st.integers(1, 10_000))
def test_longer_contexts_never_cost_less(name: str, one: int, other: int) -> None:
    g, (short, long) = SHAPES[name], sorted((one, other))
    kept = [model_sizes.kv_bytes(g, n_tokens, "int8") for n_tokens in (short, long)]
    assert kept[0] <= kept[1] <= long * len(g.caches) * g.kv_elements_per_token_layer
    assert 0 < model_sizes.ops_per_token(g, short) <= model_sizes.ops_per_token(g, long)


# ------------------------------------------------------------------------------------------------------- reading and refusing


def test_widths_that_a_config_gives_in_parts() -> None:
    config = json.loads((FOLDER / "deepseek-v2-lite.json").read_text(encoding="utf-8"))["config"]
    assert from_config(config | {"head_dim": 64}).head_dim == 192
    config = MOE | {"model_type": "nemotron_h", "moe_intermediate_size": 6, "moe_latent_size": 4}
    assert from_config(config).expert_params == 2 * 4 * 6  # an MLP of two matrices


def test_models_load_by_name_and_by_path(tmp_path: Path) -> None:
    config = json.loads((FOLDER / "olmoe-1b-7b.json").read_text(encoding="utf-8"))["config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load("OLMoE-1B-7B").geometry == load(str(tmp_path / "config.json")).geometry == load(str(tmp_path)).geometry
    assert (load(str(tmp_path)).name, load(str(tmp_path)).published) == (tmp_path.name, None)
    assert load(str(tmp_path)).note == ""
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "another"}))
    assert "counts of model_type 'another' were not checked" in dict(details(load(str(tmp_path))))["note"]
    for quantised, how in (
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, " (awq 4)"),
        ({"quantization_config": {"load_in_4bit": True}}, ""),  # bitsandbytes, whose first named no method
        ({"quantization": {"group_size": 64, "bits": 4}}, " (4)"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config | quantised))
        assert load(str(tmp_path)).note.startswith(f"its checkpoint is quantised{how}: bytes are those of the formats that")
    (tmp_path / "config.json").write_text(json.dumps(config | {"layer_types": ["full_attention", "mamba", "conv"]}))
    g = load(str(tmp_path)).geometry
    assert g.expert_params == SHAPES["olmoe-1b-7b"].expert_params  # for all that asks of experts alone
    for asked in (
        model_sizes.total_params,
        lambda g: model_sizes.kv_bytes(g, 9, "bf16"),
        lambda g: model_sizes.ops_per_token(g, 9),
    ):
        refuses(r"it has layers of a kind that is not known \(conv, full_attention, mamba\); its atten", asked, g)
    assert len(names()) == 41


LLAMA = {"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 9}
LLAMA |= {"intermediate_size": 32}
MOE = LLAMA | {"num_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 16}
BASES = {"": {}, "LLAMA": LLAMA, "MOE": MOE}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "holds no JSON object"),
        ('{"hidden_size": 8}', "num_hidden_layers is missing"),
        (json.dumps(LLAMA | {"sliding_window": 4, "layer_types": ["sliding_attention"]}), "sliding_windows needs one entry per"),
        (json.dumps(LLAMA | {"num_experts": 4, "moe_layer_freq": "x"}), "wrong type"),
    ],
)
def test_bad_configs_are_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    assert str(path) in refuses(message, load, str(path))


@pytest.mark.parametrize(("base", "told", "message"), json.loads((HERE / "refused_configs.json").read_text()))
def test_a_field_that_no_decoder_has_is_named(base: str, told: dict, message: str) -> None:
    """Experts that are told of otherwise are never read as dense."""
    refuses(message, from_config, BASES[base] | told)


def test_a_model_that_sees_or_hears_is_read_by_its_text_part_at_any_depth() -> None:
    assert from_config({"model_type": "llava", "text_config": LLAMA}) == from_config(LLAMA)
    assert from_config({**LLAMA, "text_config": None}) == from_config(LLAMA)
    assert from_config(MOE | {"model_type": "mixtral"}).expert_intermediate == 16
    deep = {"model_type": "qwen3_omni_moe", "thinker_config": {"model_type": "thinker", "text_config": LLAMA}}
    assert from_config(deep) == from_config(LLAMA)
    assert from_config({"model_type": "ocr", "language_config": LLAMA}) == from_config(LLAMA)


# What families call their experts, and which layers have them: model_type and fields -> layers, experts, top-k, width.
CALLED = json.loads((HERE / "experts_by_family.json").read_text())


@pytest.mark.parametrize(("model_type", "fields", "layers", "n_experts", "top_k", "width"), CALLED)
def test_experts_are_read_whatever_a_family_calls_them(
    tmp_path: Path, model_type: str, fields: dict, layers: list, n_experts: int, top_k: int, width: int
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | {"num_hidden_layers": 4, "intermediate_size": 16, "model_type": model_type} | fields))
    model = load(str(path))
    g = model.geometry
    assert (list(g.moe_layers), g.n_experts, g.top_k, g.expert_intermediate) == (layers, n_experts, top_k, width)
    assert g.n_layers == 4
    if g.uncounted:
        refuses("its attention, keys and values are not counted", row_of, model)
        return
    assert row_of(model)  # and shown without a traceback
    assert details(model)


def test_unknown_names_and_bad_requests_are_refused() -> None:
    refuses("give qwen3-30b-a3b, or the path", load, "qwen3-30b")
    refuses("give mixtral-8x7b, or the path", load, "mixtral-8-7b")
    refuses(r"give codellama-34b, deepseek-v2-lite, ", load, "@")
    refuses("0 < bits_low <= bits_high", slice_bytes, 100, 4, 5)
    refuses("count the token itself", model_sizes.ops_per_token, QWEN3, 0)
    unknown = QWEN3.model_copy(update={"hidden": 0})
    refuses("records no widths", model_sizes.total_params, unknown)


# ------------------------------------------------------------------------------------------------------- what is printed


def test_printed_rows_and_lines() -> None:
    shown = dict(zip(HEADINGS, row_of(MODELS["qwen3-30b-a3b"]), strict=True))
    assert shown["total, B"] == "30.532"
    assert shown["deviation"] == "+0.11 %"
    assert (shown["active, B"], shown["of it read, B"], shown["without tables, B"]) == ("3.353", "3.042", "2.731")
    assert (shown["expert, MB (bf16)"], shown["KV, kB/token (bf16)"]) == ("9.44", "98.30")
    lines = dict(details(MODELS["gpt-oss-20b"]))
    assert lines["sliding window"] == "128 tokens in 12 of 24 layers"
    assert lines["parameters: total"] == "20,914,757,184"
    assert all(f"all weights, {name}" in lines for name in EXPERT_FORMATS)
    assert lines["all weights, fp32"] == f"{4 * 20_914_757_184:,} B"


def test_a_config_of_ones_own_prints_without_published_counts(tmp_path: Path) -> None:
    config = json.loads((FOLDER / "llama-2-7b.json").read_text(encoding="utf-8"))["config"]
    (tmp_path / "mine.json").write_text(json.dumps(config))
    model = load(str(tmp_path / "mine.json"))
    shown = dict(zip(HEADINGS, row_of(model), strict=True))
    assert (shown["model"], shown["published, B"], shown["deviation"], shown["total, B"]) == ("mine", "", "", "6.738")
    assert "published" not in dict(details(model))


def test_the_document_is_current() -> None:
    text = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    assert refreshed(text) == text, "run `python -m bench.docs.models docs/models.md`"
    assert all(text.count(f"| {name} |") == 3 for name in names())
