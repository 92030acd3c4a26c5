"""Experts at two precisions: what stands in each half, that a selection gets its width, and that nothing stays behind."""

import pytest
import torch
from tiny_families import MOE_CONFIGS, build, prompt, state_of, with_experts
from torch import nn

from tokentape.capture.blocks import find_blocks
from tokentape.capture.live.copies import SlicedExperts, experts_of
from tokentape.policies.matryoshka import MAT, approximate
from tokentape.policies.quantise import dequantise, quantise

MAT42 = MAT(4, 2)


def logits(model, ids):
    with torch.inference_mode():
        return model(input_ids=ids).logits


def inputs_last(module, weights):
    return weights.transpose(-1, -2) if getattr(module, "is_transposed", False) else weights


@pytest.mark.parametrize("name", MOE_CONFIGS)
@pytest.mark.parametrize(("pair", "scheme", "group"), [(MAT42, "amat", 32), (MAT(8, 4), "base_asym", 32), (MAT(6, 3), "amat", 8)])
def test_halves_are_the_high_and_the_low_weights_grouped_along_the_input(tiny, name, pair, scheme, group):
    model = tiny[name]
    whole = {layer: dict(module.named_parameters(recurse=False)) for layer, module in experts_of(model).items()}
    with SlicedExperts(model, pair, scheme, group):
        for layer, module in experts_of(model).items():
            for key, halves in module.named_parameters(recurse=False):
                high, low = halves.chunk(2)
                if halves.ndim < 3:  # biases stay as they are
                    assert torch.equal(high, whole[layer][key])
                    assert torch.equal(low, whole[layer][key])
                    continue
                w = inputs_last(module, whole[layer][key]).detach()
                assert torch.equal(inputs_last(module, high), dequantise(quantise(w, pair.high, group)))
                assert torch.equal(inputs_last(module, low), approximate(w, pair, scheme, group))


@pytest.mark.parametrize("name", MOE_CONFIGS)
def test_every_selection_is_computed_at_the_width_it_asks_for(tiny, name):
    """Against a loop over tokens and selections, each with one expert's weights."""
    model = tiny[name]
    layer, module = next(iter(experts_of(model).items()))
    n_experts, k = module.num_experts, find_blocks(model)[layer].top_k
    rng = torch.Generator().manual_seed(3)
    width = inputs_last(module, module.gate_up_proj).shape[-1]
    states = torch.randn(7, width, generator=rng)
    ids = torch.stack([torch.randperm(n_experts, generator=rng)[:k] for _ in states])
    weights = torch.rand(7, k, generator=rng)
    flags = torch.rand(7, k, generator=rng) < 0.5
    assert 0 < flags.sum() < flags.numel()
    changes = (lambda w: dequantise(quantise(w, 4)), lambda w: approximate(w, MAT42))
    by_width = [experts_of(with_experts(name, change))[layer] for change in changes]
    expected = torch.zeros(7, width)
    with torch.no_grad():
        for t in range(7):
            for j in range(k):
                one = by_width[int(flags[t, j])]
                expected[t] += one(states[t : t + 1], ids[t : t + 1, j : j + 1], weights[t : t + 1, j : j + 1])[0]
        with SlicedExperts(model, MAT42) as experts:
            experts.copy_of[layer] = flags
            mixed = module(states, ids, weights)
            assert not experts.copy_of  # used up: the next pass runs at high precision
            high = module(states, ids, weights)
        assert torch.allclose(mixed, expected, rtol=1e-4, atol=1e-5)
        assert torch.allclose(high, by_width[0](states, ids, weights), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MOE_CONFIGS)
def test_flags_reach_the_experts_through_the_whole_model(tiny, name):
    model, ids = tiny[name], prompt(6, rows=2)
    n_tokens, layers = ids.numel(), list(experts_of(model))
    k = find_blocks(model)[layers[0]].top_k
    with SlicedExperts(model, MAT42) as experts:
        high = logits(model, ids)
        experts.copy_of = dict.fromkeys(layers, torch.zeros(n_tokens, k, dtype=torch.bool))
        assert torch.equal(high, logits(model, ids))
        experts.copy_of = dict.fromkeys(layers, torch.ones(n_tokens, k, dtype=torch.bool))
        low = logits(model, ids)
    copy = with_experts(name, lambda w: approximate(w, MAT42))
    assert torch.allclose(low, logits(copy, ids), rtol=1e-4, atol=1e-4)
    assert (low - high).abs().max() > 1e-3


def test_equal_widths_have_equal_halves_and_half_precision_stays(tiny):
    model, ids = tiny["Qwen3Moe"], prompt(6)
    with SlicedExperts(model, MAT(4, 4)) as experts:
        for module in experts_of(model).values():
            assert all(torch.equal(*p.chunk(2)) for p in module.parameters(recurse=False))
        high = logits(model, ids)
        experts.copy_of = dict.fromkeys(experts_of(model), torch.ones(6, 3, dtype=torch.bool))
        assert torch.equal(high, logits(model, ids))
    model = build("Qwen3Moe").to(torch.bfloat16)
    with SlicedExperts(model, MAT(8, 4)):
        module = experts_of(model)[0]
        assert module.gate_up_proj.dtype == torch.bfloat16
        assert torch.isfinite(logits(model, prompt(5)).float()).all()


def raise_with_flags_left(experts):
    experts.copy_of[2] = torch.ones(5, 3, dtype=torch.bool)
    raise KeyError("stop")


@pytest.mark.parametrize("name", MOE_CONFIGS)
def test_the_model_is_what_it_was(tiny, name):
    model, ids = tiny[name], prompt(5)
    before, plain = state_of(model), logits(model, ids)
    experts = SlicedExperts(model, MAT42)
    with pytest.raises(KeyError), experts:
        raise_with_flags_left(experts)
    assert state_of(model) == before
    assert not experts.copy_of
    with experts:  # may be entered again
        assert state_of(model) != before
    assert state_of(model) == before
    assert torch.equal(plain, logits(model, ids))


def test_a_layer_that_cannot_be_sliced_leaves_no_trace():
    model = build("Qwen3Moe")
    last = experts_of(model)[2]
    last.down_proj = nn.Parameter(last.down_proj.to(torch.int8), requires_grad=False)  # after gate_up_proj has been replaced
    before = state_of(model)
    with (
        pytest.raises(ValueError, match=r"Qwen3MoeExperts\.down_proj is torch\.int8; load the model unquantised"),
        SlicedExperts(model, MAT42),
    ):
        pass
    assert state_of(model) == before
