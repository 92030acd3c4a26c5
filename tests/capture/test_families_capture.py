"""Capture changes nothing and records the truth, on every family."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_families import CONFIGS, MOE_CONFIGS, build, prompt
from torch import nn

from capture.attention import AttentionCapture
from capture.families import FAMILIES, score_rule
from capture.routing import RoutingCapture, find_routers, layer_of
from policies.scoring import UNKNOWN, by_weight, disagreements, topk_from_scores


@pytest.fixture(scope="module")
def models():
    return {name: build(name) for name in CONFIGS}


def run(model, ids, **options):
    with torch.inference_mode():
        return model(input_ids=ids, **options)


def hooks_of(model):
    """Forward hooks on the routers and the attention in force."""
    return [len(m._forward_hooks) for m in model.modules()], model.config._attn_implementation


def test_every_family_of_the_table_is_exercised():
    assert {name.removesuffix("Greedy") for name in MOE_CONFIGS} == set(FAMILIES)


@pytest.mark.parametrize("name", MOE_CONFIGS)
def test_routing_capture_leaves_logits_bit_equal_and_records_the_routers_choice(models, name):
    model, ids = models[name], prompt(rows=2)
    before = hooks_of(model)
    plain = run(model, ids).logits
    with RoutingCapture(model) as routing:
        watched = run(model, ids).logits
        step = routing.take()
    assert torch.equal(plain, watched)
    assert hooks_of(model) == before
    layers = (1, 2) if name.startswith(("Deepseek", "Glm")) else (0, 1, 2)  # their first layer is dense
    assert routing.layers == layers
    assert step.ids.shape == (len(layers), ids.numel(), model.config.num_experts_per_tok)  # rows = tokens x MoE layers
    rule, params = score_rule(routing.routers, step.ids.shape[-1])
    assert rule != UNKNOWN
    for i, layer in enumerate(layers):
        recorded_ids, recorded_weights = by_weight(step.ids[i].numpy(), step.weights[i].float().numpy())
        scores = step.scores[i].float().numpy()
        assert not disagreements(recorded_ids, scores, rule, params, layer).any()
        ids_again, weights_again = topk_from_scores(scores, rule, params, layer)
        np.testing.assert_array_equal(recorded_ids, ids_again)
        np.testing.assert_allclose(recorded_weights, weights_again, rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["Qwen3Moe", "DeepseekV3", "GptOss", "Mixtral"])
def test_recorded_logits_are_those_of_output_router_logits(models, name):
    model, ids = models[name], prompt()
    with RoutingCapture(model) as routing:
        theirs = run(model, ids, output_router_logits=True).router_logits
        ours = routing.take().scores
    assert torch.equal(torch.stack(list(theirs)).view_as(ours), ours)


@pytest.mark.parametrize("name", CONFIGS)
def test_attention_capture_equals_eager_and_its_column_sums_those_of_output_attentions(models, name):
    model, ids = models[name], prompt(rows=2)
    former = model.config._attn_implementation
    model.set_attn_implementation("eager")
    eager = run(model, ids, output_attentions=True)
    with AttentionCapture(model) as attention:
        watched = run(model, ids).logits
        masses = attention.take()
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


@pytest.mark.parametrize("name", CONFIGS)
def test_attention_stays_causal_under_capture(models, name):
    model, ids = models[name], prompt()
    other = ids.clone()
    other[0, -1] = (other[0, -1] + 1) % 90 + 3
    with AttentionCapture(model):
        first, second = run(model, ids).logits, run(model, other).logits
    torch.testing.assert_close(first[:, :-1], second[:, :-1], rtol=0, atol=1e-5)
    assert (first[:, -1] - second[:, -1]).abs().max() > 1e-4


def test_models_are_restored_after_an_error_inside_the_block(models):
    model = models["Qwen3Moe"]
    before = hooks_of(model)
    with pytest.raises(KeyError), AttentionCapture(model), RoutingCapture(model):
        raise KeyError("stop")
    assert hooks_of(model) == before


def test_padded_queries_put_no_mass_into_the_column_sums(models):
    model, ids = models["Llama"], prompt(12)
    with AttentionCapture(model) as attention:
        run(model, ids)
        alone = attention.take()
        padded = torch.cat([torch.zeros(1, 5, dtype=torch.long), ids], dim=1)
        mask = torch.arange(17)[None] >= 5
        attention.query_mask = mask
        run(model, padded, attention_mask=mask.long(), position_ids=(mask.long().cumsum(-1) - 1).clamp(min=0))
        together = attention.take()
    for layer, mass in alone.items():
        torch.testing.assert_close(together[layer][..., 5:], mass, rtol=0, atol=2e-5)


def test_half_precision_scores_are_recorded_exactly():
    model, ids = build("Qwen3Moe").to(torch.bfloat16), prompt()
    with RoutingCapture(model) as routing:
        run(model, ids)
        step = routing.take()
    rule, params = score_rule(routing.routers, step.ids.shape[-1])
    for i, layer in enumerate(routing.layers):
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


class StrangeModel(nn.Module):
    def __init__(self, answer):
        super().__init__()
        self.layers = nn.ModuleList([nn.ModuleDict({"gate": StrangeTopKRouter(answer)})])

    def forward(self, hidden):
        return self.layers[0]["gate"](hidden)


def three(hidden):
    weights, ids = hidden.softmax(-1).topk(2)
    return hidden, weights, ids


def test_an_unlisted_router_is_recorded_and_its_rule_called_unknown():
    model = StrangeModel(three)
    with RoutingCapture(model) as routing:
        model(torch.randn(5, 4))
        assert routing.take().ids.shape == (1, 5, 2)
    rule, params = score_rule(find_routers(model), 2)
    assert rule == UNKNOWN
    with pytest.raises(ValueError, match="known rules: softmax"):
        topk_from_scores(np.zeros((1, 4)), rule, params)


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


def test_take_must_follow_each_pass():
    model = StrangeModel(three)
    with RoutingCapture(model) as routing:
        model(torch.randn(5, 4))
        model(torch.randn(5, 4))
        with pytest.raises(ValueError, match="take\\(\\) after each pass"):
            routing.take()


def test_a_dense_model_has_no_routing(models):
    with pytest.raises(ValueError, match="dense model"):
        RoutingCapture(models["Llama"])


def test_layer_names():
    assert layer_of("model.layers.12.mlp.gate") == 12
    with pytest.raises(ValueError, match="names no layer number"):
        layer_of("model.gate")
