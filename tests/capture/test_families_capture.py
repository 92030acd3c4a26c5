"""Capture changes nothing and records the truth, on every family."""

import numpy as np
import pytest
import torch
import transformers as hf
from every_family import build as build_tiny
from every_family import check_pass
from refusing import raising, refuses
from tiny_families import CONFIGS, DENSE_CONFIGS, MOE_CONFIGS, build, disagreements, prompt
from torch import nn
from transformers import CONFIG_MAPPING

from tokentape.capture import measure
from tokentape.capture.attention import AttentionCapture
from tokentape.capture.blocks import find_blocks, layer_of
from tokentape.capture.families import FAMILIES, family_of, refuse_rerouting, score_rule
from tokentape.capture.live.attention import KV
from tokentape.capture.live.caches import KVLayer
from tokentape.capture.live.loop import Request, Sampling, decode
from tokentape.capture.live.slots import Inside
from tokentape.capture.live.texts import refuse_unless_croppable
from tokentape.capture.models import Loaded, auto_class, refuse_unless_causal
from tokentape.capture.routing import RoutingCapture
from tokentape.capture.shard import AttentionKeep, ShardRecorder
from tokentape.policies.kv.importance import AERP
from tokentape.policies.kv.streaming import Full
from tokentape.policies.scoring import UNKNOWN, topk_from_scores
from tokentape.policies.serving import Chunked

# One of each kind of attention: a family's experts change nothing in it.
ATTENTIONS = ("Qwen3Moe", "DeepseekV2", "DeepseekV3", "GptOss", "GraniteMoe", "Phimoe", *DENSE_CONFIGS)


@pytest.fixture(scope="module")
def models():
    return {name: build(name) for name in CONFIGS}


def run(model, ids, **options):
    with torch.inference_mode():
        return model(input_ids=ids, **options)


def hooks_of(model):
    """Forward hooks on the routers and the attention in force."""
    return [len(m._forward_hooks) for m in model.modules()], model.config._attn_implementation


# model_types whose routers, blocks or rules do something that none of MOE_CONFIGS does.
OTHERS = (
    "afmoe", "axk2", "beam", "dbrx", "deepseek_v4", "ernie4_5_moe", "flint", "gemma4_text", "hy_v3", "inkling_text", "jamba",
    "kolibri1", "laguna", "lfm2_moe", "llama4_text", "minimax_m2", "mistral4", "nemotron_h",
)  # fmt: skip
NEWER = {"mistral_large4": "MistralLarge4Text"}  # than the oldest transformers that is allowed: its name in the table
OTHERS += tuple(name for name in NEWER if name in CONFIG_MAPPING)
NO_ZERO_EXPERTS = {"zero_expert_num": 0}


@pytest.fixture(scope="module")
def others():
    return {name: build_tiny(name) for name in OTHERS} | {"longcat_flash": build_tiny("longcat_flash", **NO_ZERO_EXPERTS)}


def test_every_score_rule_and_contract_of_the_table_is_exercised(models, others):
    seen = [family_of(find_blocks(model)[layer].router) for model in (*models.values(), *others.values())
            for layer in list(find_blocks(model))[:1]]  # fmt: skip
    left_out = ["MuseSpark"]  # seconds to build; tests/capture/test_every_family.py has it
    left_out += [name for model_type, name in NEWER.items() if model_type not in CONFIG_MAPPING]
    assert [name for name, family in FAMILIES.items() if family not in seen and name not in left_out] == []


@pytest.mark.parametrize("name", MOE_CONFIGS)
def test_routing_capture_leaves_logits_bit_equal_and_records_the_routers_choice(models, name):
    before = hooks_of(models[name])
    check_pass(models[name])
    assert hooks_of(models[name]) == before
    layers = (1, 2) if name.startswith(("Deepseek", "Glm")) else (0, 1, 2)  # their first layer is dense
    assert measure.geometry(models[name]).moe_layers == layers
    assert score_rule(models[name], 3)[0] != UNKNOWN


@pytest.mark.parametrize("name", [*OTHERS, "longcat_flash"])
def test_routers_that_speak_otherwise_are_recorded_as_their_experts_are_given(others, name):
    check_pass(others[name])
    assert measure.geometry(others[name]).moe_layers == tuple(find_blocks(others[name]))


def test_weights_are_divided_by_no_less_than_a_config_says():
    model = build_tiny("ernie4_5_moe", moe_norm_min=0.9)
    check_pass(model)
    assert score_rule(model, 3)[1]["norm_min"] == 0.9


def test_experts_of_other_groups_rank_as_their_family_has_it():
    model = build_tiny("axk2", n_group=2, topk_group=1)
    for block in find_blocks(model).values():
        block.router.e_score_correction_bias.fill_(-1.0)  # 0, of the others, is more
    with RoutingCapture(model) as routing:
        run(model, prompt())
        step = routing.take()
    rule, params = score_rule(model, 3)
    for ids, scores, layer in zip(step.ids.numpy(), step.scores.numpy(), routing.blocks, strict=True):
        assert not disagreements(ids, scores, rule, params, layer).any()


def test_text_models_and_layers_that_follow_the_token_id_are_recorded_and_named(others):
    model = build_tiny("aria")
    assert [block.name for block in find_blocks(model).values()] == [f"model.language_model.layers.{i}.mlp" for i in range(4)]
    check_pass(model)
    geometry = measure.geometry(model)
    assert (geometry.moe_layers, geometry.n_experts, geometry.top_k) == ((0, 1, 2, 3), 8, 3)
    rule, params = score_rule(others["deepseek_v4"], 3)
    assert (rule, params["token_layers"]) == ("sqrtsoftplus_bias_groups", [0, 1, 2])
    assert measure.geometry(others["deepseek_v4"]).moe_layers == (0, 1, 2, 3)
    refuses("experts of layer 0 follow from the token id", topk_from_scores, np.zeros((1, 8)), rule, params, 0)


def test_what_has_no_routing_is_refused_by_layer(models):
    refuses("'openai_privacy_filter' generates no text", auto_class, hf.OpenAIPrivacyFilterConfig())
    with pytest.raises(ValueError, match="LongcatFlashTopkRouter of layer 0 chooses among 12 experts, but 8 have weights"):
        measure.geometry(build_tiny("longcat_flash", zero_expert_num=4))
    refuses("dense model", RoutingCapture, models["Llama"])
    model = StrangeModel(three)
    del model.layers[0]["gate"]
    refuses(r"layer 0: ModuleDict .* holds experts but no router beside them", find_blocks, model)
    model = StrangeModel(three)
    model.layers[0] = nn.ModuleDict({"first": model.layers[0], "second": StrangeModel(three).layers[0]})
    refuses("layer 0 has two routers", find_blocks, model)


BIASED = {"jamba": "mamba_proj_bias", "nemotron_h": "use_bias", "granitemoehybrid": "mamba_proj_bias", "lfm2_moe": "conv_bias"}
UNPADDED = ("deepseek_v4", "unlimited_ocr", "mamba", "git", "paligemma", *BIASED)


@pytest.mark.parametrize("name", ["afmoe", "dbrx", "llama4", *UNPADDED])
def test_requests_of_unequal_length_and_caches_that_keep_all_give_what_each_request_gives_alone(name):
    model = build_tiny(name, **{BIASED[name]: True} if name in BIASED else {})
    batch = [Request(i, tuple(range(3, 3 + n)), 4, forced=(5, 9, 7, 8)) for i, n in enumerate((13, 5))]
    options = {"sampling": Sampling(), "stop_ids": frozenset(), "pad_id": 0, "with_logits": True}
    alone = [decode(model, [request], **options)[0].logits for request in batch]
    kept = [] if name in UNPADDED else [KV(model, Full()), KV(model, AERP(None))]
    for slots in ([], *([slot] for slot in kept)):
        with Inside(model, *slots) as inside:
            together = decode(model, batch, inside=inside, **options)
        torch.testing.assert_close([outcome.logits for outcome in together], alone, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "asked", "said"),
    [
        ("jamba", lambda model: Inside(model, schedule=Chunked(4)), "loses track of a prompt in slices"),
        ("doge", lambda model: Inside(model, KV(model, Full())), "masks keys in a way of its own"),
        ("diffllama", lambda model: Inside(model, KV(model, Full())), "attends several times in a layer"),
        ("dory", lambda model: Inside(model, KV(model, Full())), "attends several times in a layer"),
        ("mimo_v2_flash", AttentionCapture, "other KV heads than the rest"),
        ("deepseek_v4", AttentionCapture, "attends to compressed keys"),
        ("data2vec-text", Inside, "hands back no cache of keys and values; give a decoder-only"),
        ("recurrent_gemma", Inside, "hands back no cache"),
        ("cpmant", Inside, "fails on plain text \\(The size of tensor a .*; give a decoder-only language model"),
        ("blip", Inside, "fails on plain text \\(.* argument: 'pixel_values'\\)"),
        ("paligemma", lambda model: refuse_unless_causal(Loaded(None, model, None), "leave"), "see those behind them; leave"),
        ("bert", lambda model: refuse_unless_causal(Loaded(None, model, None), "leave"), "see those behind them; leave"),
        ("mpt", lambda model: refuse_unless_croppable(model, is_tree=True), "as nodes of a tree are not; leave --draft-width"),
        ("gemma4_text", lambda model: KV(model, AERP(None)), "its attention, keys and values are not counted"),
        ("beam", lambda model: Inside(model, KV(model, AERP(None))), "takes more of tokens than rows"),
    ],
)
def test_what_a_family_does_in_its_own_way_is_refused_in_one_line(name, asked, said):
    own = {"doge": {"is_moe": False}, "dory": {"n_input_layers": 1, "n_output_layers": 0, "recurrent_kv_cache_mode": "last_loop"}}
    model = build_tiny(name, **own.get(name, {}))
    with pytest.raises(ValueError, match=said), asked(model) as inside:
        decode(model, [Request(0, (3, 4, 5), 2)], Sampling(), frozenset(), 0, inside)
    assert AttentionCapture(build_tiny("dbrx")).n_kv_heads == 2


def test_only_what_fails_in_the_model_is_the_models(monkeypatch):
    model, of = build_tiny("qwen3_moe"), ([Request(0, (3, 4, 5), 2)], Sampling(), frozenset(), 0)
    monkeypatch.setattr(KVLayer, "_read", raising(TypeError("a policy's")))
    with pytest.raises(TypeError, match="a policy's"), Inside(model, KV(model, Full())) as inside:
        decode(model, *of, inside)
    model.register_forward_pre_hook(raising(RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes")))
    refuses("allocate", decode, model, *of, error=torch.OutOfMemoryError)


@pytest.mark.parametrize("name", ["gemma4_text", "laguna", "llama4_text", "deepseek_v4"])
def test_what_cannot_be_rerouted_says_so(others, name):
    refuses(r"of layer [01] can be recorded, but not rerouted", refuse_rerouting, others[name])


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_capture_equals_eager_and_its_column_sums_those_of_output_attentions(models, name):
    model, ids = models[name], prompt(rows=2)
    former = model.config._attn_implementation
    model.set_attn_implementation("eager")
    eager = run(model, ids, output_attentions=True)
    with AttentionCapture(model) as attention:
        watched = run(model, ids).logits
        masses = attention.take().masses
    assert model.config._attn_implementation == "eager"
    model.set_attn_implementation(former)
    assert (eager.logits - watched).abs().max() <= 1e-6
    assert sorted(masses) == [0, 1, 2]
    for layer, mass in masses.items():
        matrix = eager.attentions[layer]
        expected = matrix.sum(2).view(2, attention.n_kv_heads, -1, ids.shape[1]).sum(2)
        torch.testing.assert_close(mass, expected, rtol=0, atol=2e-5)
    if name != "GptOss":  # its sinks take a share
        total = masses[0].sum().item()
        assert total == pytest.approx(2 * ids.shape[1] * attention.n_heads, rel=1e-5)


def test_attention_that_a_layer_pays_twice_or_where_nobody_sees_it_is_refused():
    twice, unseen = build_tiny("hrm_text"), build_tiny("git")
    with AttentionCapture(twice):
        refuses("HrmTextForCausalLM applies layer 0 several times in a pass", run, twice, prompt())
    with AttentionCapture(unseen) as attention:
        recorder = ShardRecorder(None, attention, AttentionKeep(), 0)
        told = ([Request(0, (3, 4, 5), 0)], Sampling(), frozenset(), 0)
        with pytest.raises(ValueError, match="calls no function that can be watched; leave attention out"):
            decode(unseen, *told, before_pass=recorder.before, on_pass=recorder.record)


def test_models_are_restored_after_an_error_and_second_choices_refused(models):
    model = models["Qwen3Moe"]
    before = hooks_of(model)
    with pytest.raises(KeyError), AttentionCapture(model), RoutingCapture(model):
        raise KeyError("stop")
    assert hooks_of(model) == before
    model = StrangeModel(three)
    with RoutingCapture(model) as routing:
        model(torch.randn(5, 4))
        model(torch.randn(5, 4))
        refuses("2 router calls in a pass over 1 MoE layers", routing.take)


def test_half_precision_scores_are_recorded_exactly():
    model, ids = build("Qwen3Moe").to(torch.bfloat16), prompt()
    with RoutingCapture(model) as routing:
        run(model, ids)
        step = routing.take()
    rule, params = score_rule(model, step.ids.shape[-1])
    for i, layer in enumerate(routing.blocks):
        scores = step.scores[i].float()
        assert torch.equal(scores.to(torch.bfloat16), step.scores[i])
        assert not disagreements(step.ids[i].numpy(), scores.numpy(), rule, params, layer).any()


# ------------------------------------------------------------------------------------------------------ the routers' contract


class StrangeTopKRouter(nn.Module):
    """A router of a family nobody has listed."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def forward(self, hidden):
        return self.answer(hidden)


class StrangeExperts(nn.Module):
    def __init__(self, n_experts):
        super().__init__()
        self.down_proj = nn.Parameter(torch.zeros(n_experts, 2, 2))


class StrangeModel(nn.Module):
    def __init__(self, answer, n_experts=4):
        super().__init__()
        parts = {"gate": StrangeTopKRouter(answer), "experts": StrangeExperts(n_experts)}
        self.layers = nn.ModuleList([nn.ModuleDict(parts)])

    def forward(self, hidden):
        return self.layers[0]["gate"](hidden)


def three(hidden):
    weights, ids = hidden.softmax(-1).topk(2)
    return hidden, weights, ids


@pytest.mark.parametrize("function", [None, nn.Sigmoid(), nn.Softplus()])
def test_an_unlisted_router_is_recorded_and_its_rule_called_unknown(function):
    model = StrangeModel(three)
    for block in find_blocks(model).values():
        block.router.score_fn = function
    with RoutingCapture(model) as routing:
        model(torch.randn(5, 4))
        assert routing.take().ids.shape == (1, 5, 2)
    rule, params = score_rule(model, 2)
    assert rule == UNKNOWN
    refuses("known rules: softmax", topk_from_scores, np.zeros((1, 4)), rule, params)


@pytest.mark.parametrize(
    "answer",
    [
        lambda h: h,
        lambda h: (h, h.topk(2)[1]),
        lambda h: (*reversed(three(h)),),
        lambda h: (h, three(h)[1], three(h)[1]),
        lambda h: (h[None], *three(h)[1:]),
    ],
)
def test_a_router_that_breaks_the_contract_is_refused_by_name(answer):
    model = StrangeModel(answer)
    with RoutingCapture(model), pytest.raises(ValueError, match="StrangeTopKRouter of layer 0"):
        model(torch.randn(5, 4))


def test_a_model_whose_layers_are_not_those_of_its_config_is_refused_by_layer():
    model = build("Qwen3Moe")
    model.config.mlp_only_layers = [1]
    refuses(r"layer 1 has no experts, but model\.layers\.1\.mlp holds some", measure.geometry, model)
    model.config.mlp_only_layers = []
    model.model.layers[2].mlp = nn.Linear(32, 32)
    refuses("layer 2 has experts, but none is found", measure.geometry, model)


@pytest.mark.parametrize("place", [1, 2])
def test_experts_that_get_something_else_than_the_router_says_are_refused_by_layer(place):
    """A family that changes ids or weights between the two must not be recorded by what its router returns."""
    model = build("Qwen3Moe")

    def other(module, args):
        return (*args[:place], 7 - args[place] if place == 1 else 0.5 * args[place], *args[place + 1 :])

    find_blocks(model)[1].experts.register_forward_pre_hook(other)
    refuses("the experts of layer 1 are given other ids or weights", measure.geometry, model)


def test_layer_names_and_disagreements_which_forgive_ties_and_nothing_else():
    assert layer_of("model.layers.12.mlp.gate") == 12
    refuses("names no layer number", layer_of, "model.gate")
    logits = np.array([[3.0, 1.0, 1.0, 0.0]] * 4, dtype=np.float32)
    ids = np.array([[0, 1], [0, 2], [0, 3], [0, 0]])
    found = disagreements(ids, logits, "softmax", {"top_k": 2, "norm_topk_prob": True})
    assert found.tolist() == [False, False, True, True]
