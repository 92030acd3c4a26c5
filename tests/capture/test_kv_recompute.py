"""Keys and values recomputed from a layer's input equal those that the cache was given, bit for bit."""

import pytest
import torch
from tiny_families import CONFIGS, build, prompt
from transformers import DynamicCache

from tokentape.capture.live.inputs import Inputs, attention_modules
from tokentape.capture.live.texts import CACHE


def run(model, pieces):
    """Inputs by layer, and the cache, after every piece."""
    inputs, cache = {layer: Inputs(module) for layer, module in attention_modules(model).items()}, DynamicCache()
    hooks = [
        of.module.register_forward_pre_hook(lambda module, args, kwargs, of=of: of.add(args, kwargs), with_kwargs=True)
        for of in inputs.values()
    ]
    for piece in pieces:
        model(input_ids=piece, use_cache=True, **{CACHE: cache})
        yield inputs, cache
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize("family", list(CONFIGS))
@torch.no_grad()
def test_recomputed_equals_stored_bit_for_bit(family):
    """The prompt in one pass, then tokens one by one, each recomputed in the shape it came in."""
    model, ids, first = build(family), prompt(7), 0
    pieces = (ids[:, :4], ids[:, 4:5], ids[:, 5:6])
    for piece, (inputs, cache) in zip(pieces, run(model, pieces), strict=True):
        at = torch.arange(first, first + piece.shape[1]).expand(len(ids), -1)
        first += piece.shape[1]
        for layer, stored in enumerate(cache.layers):
            keys, values = inputs[layer].keys_values(at)
            assert torch.equal(keys, stored.keys[:, :, -piece.shape[1] :])
            assert torch.equal(values, stored.values[:, :, -piece.shape[1] :])


@pytest.mark.parametrize("family", ["Qwen3Moe", "DeepseekV3", "OPT", "Gemma2"])
@torch.no_grad()
def test_single_tokens_of_a_prompt_stand_at_their_positions(family):
    model, ids, rows = build(family), prompt(9), [1, 4, 8]
    for inputs, cache in run(model, [ids]):
        at = torch.tensor([rows]).expand(len(ids), -1)
        for layer, stored in enumerate(cache.layers):
            keys, values = inputs[layer].keys_values(at)
            assert torch.allclose(keys, stored.keys[:, :, rows], atol=1e-5)
            assert torch.allclose(values, stored.values[:, :, rows], atol=1e-5)
            other, _ = inputs[layer].keys_values(at, inputs[layer].rows[0][:, rows] * 1.5 + 0.1)
            assert not torch.allclose(other, keys, atol=1e-3)
            inputs[layer].keep(2, (2, 6))
            again, _ = inputs[layer].keys_values(at[:, 1:2] * 0 + 3)
            assert torch.allclose(again, stored.keys[:, :, 8:9], atol=1e-5)
