"""Keys and values recomputed from a layer's input equal those that the cache was given, bit for bit."""

import pytest
import torch
from layer_inputs import LayerInputs
from tiny_families import CONFIGS, build, prompt
from transformers import DynamicCache

from tokentape.capture.live.texts import CACHE


@pytest.mark.parametrize("family", list(CONFIGS))
@torch.no_grad()
def test_recomputed_equals_stored_bit_for_bit(family):
    """The prompt in one pass, then tokens one by one, each recomputed in the shape it came in."""
    model, ids, cache = build(family), prompt(7), DynamicCache()
    with LayerInputs(model) as inputs:
        for piece in (ids[:, :4], ids[:, 4:5], ids[:, 5:6]):
            model(input_ids=piece, use_cache=True, **{CACHE: cache})
            n = piece.shape[1]
            for layer, stored in enumerate(cache.layers):
                keys, values = inputs.recomputed(layer)
                assert torch.equal(keys, stored.keys[:, :, -n:])
                assert torch.equal(values, stored.values[:, :, -n:])
    assert not any(m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize("family", ["Qwen3Moe", "DeepseekV3", "OPT", "Gemma2"])
@torch.no_grad()
def test_single_tokens_of_a_prompt_stand_at_their_positions(family):
    model, ids, cache = build(family), prompt(9), DynamicCache()
    with LayerInputs(model) as inputs:
        model(input_ids=ids, use_cache=True, **{CACHE: cache})
        rows = [1, 4, 8]
        for layer, stored in enumerate(cache.layers):
            keys, values = inputs.recomputed(layer, rows)
            assert torch.allclose(keys, stored.keys[:, :, rows], atol=1e-5)
            assert torch.allclose(values, stored.values[:, :, rows], atol=1e-5)
            whole = inputs.of[layer][1].get("hidden_states", inputs.of[layer][0][0] if inputs.of[layer][0] else None)
            other, _ = inputs.recomputed(layer, rows, replaced=whole[:, rows] * 1.5 + 0.1)
            assert not torch.allclose(other, keys, atol=1e-3)
