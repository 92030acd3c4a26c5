"""Lossy storage inside a live model: rate 0 is the quantised value, seeds repeat, groups read what their own rate has lost; what
is recomputed from a layer's input is what was given, bit for bit.
"""

import numpy as np
import pytest
import torch
from test_kv_cache import generate, requests
from tiny_families import CONFIGS, build, prompt
from transformers import DynamicCache

from tokentape.capture.live import storage
from tokentape.capture.live.attention import KV
from tokentape.capture.live.caches import KVLayer
from tokentape.capture.live.inputs import Inputs, attention_modules
from tokentape.capture.live.storage import Leaking, Rotated
from tokentape.capture.live.texts import CACHE
from tokentape.policies.kv.importance import AEP
from tokentape.policies.kv.refresh import BitRates
from tokentape.policies.kv.storage import QuaRot

POLICY = AEP(8, sink=1)


@pytest.fixture(scope="module")
def tiny():
    return {name: build(name) for name in ("Qwen3Moe", "DeepseekV3")}


def logits(model, storage, policy=POLICY):
    return generate(model, requests((9, 12), 10, forced=True), KV(model, policy, storage))[1]


@pytest.mark.parametrize("word", ["int16", "int16-twos", "fp16"])
@pytest.mark.parametrize("name", ["Qwen3Moe", "DeepseekV3"])
def test_rate_zero_is_exact_to_the_stored_words(tiny, name, word, monkeypatch):
    """Nothing is lost, drawn once or at every read; both differ from the plain run by rounding alone, where none saturates."""
    monkeypatch.setattr(storage, "HEADROOM", 32.0)
    frozen, resampled = (logits(tiny[name], Leaking(word=word, resample=r)) for r in (False, True))
    assert torch.equal(frozen, resampled)
    plain = logits(tiny[name], None)
    assert not torch.equal(frozen, plain)
    assert (frozen - plain).abs().median() < 5e-2 * plain.abs().median()


@pytest.mark.parametrize("resample", [False, True])
def test_losses_repeat_by_seed_and_grow(tiny, resample):
    model = tiny["Qwen3Moe"]
    clean = logits(model, Leaking())
    at = lambda rate, seed: logits(model, Leaking(BitRates.uniform(rate), resample=resample, seed=seed))  # noqa: E731
    assert torch.equal(at(1e-2, 5), at(1e-2, 5))
    assert not torch.equal(at(1e-2, 5), at(1e-2, 6))
    gaps = [np.mean([float((at(rate, seed) - clean).abs().mean()) for seed in range(2)]) for rate in (1e-3, 1e-2, 1e-1)]
    assert gaps[0] < gaps[1] < gaps[2]


def test_groups_read_their_own_plane():
    """All bits of one group flip half the time, of the other never: only that group's tokens change."""
    x = torch.randn(1, 2, 5, 4, generator=torch.Generator().manual_seed(3))
    is_hst = torch.tensor([[[True, False, True, False, True], [False, False, True, True, True]]])
    clean = Leaking()
    stored = clean.read(clean.write(x, (0, "keys"), True), is_hst, (0, "keys"))
    for rates, lost in ((BitRates(hst_msb=0.5, hst_lsb=0.5), is_hst), (BitRates(lst_msb=0.5, lst_lsb=0.5), ~is_hst)):
        for resample in (False, True):
            leaking = Leaking(rates, resample=resample)
            read = leaking.read(leaking.write(x, (0, "keys"), True), is_hst, (0, "keys"))
            assert torch.equal(read[~lost], stored[~lost])
            assert (read[lost] != stored[lost]).float().mean() > 0.9


def test_equal_groups_share_a_plane_and_lose_what_two_would():
    """Oracle: rates that differ by next to nothing take two planes, and draw the same."""
    rate = 0.1
    one, two = Leaking(BitRates.uniform(rate), seed=7), Leaking(BitRates(rate, rate, rate, rate + 1e-12), seed=7)
    assert (one.needs_groups, two.needs_groups) == (False, True)
    x = torch.randn(1, 2, 50, 4, generator=torch.Generator().manual_seed(3))
    (shared,), both = (storage.write(x, (0, "keys"), True) for storage in (one, two))
    assert all(torch.equal(shared, plane) for plane in both)
    clean = Leaking().write(x, (0, "keys"), True)[0]
    assert not torch.equal(shared, clean)


def test_high_scores_are_those_of_at_least_the_median_of_the_tokens_held():
    """Oracle: numpy's median, ties and free slots included."""
    rng = np.random.default_rng(5)
    layer = KVLayer(0, POLICY, Leaking(), 0, 3, np.zeros(2, np.int64))
    layer.slots.allocate(9)
    layer.width = 7
    held = rng.random((6, 7)) < 0.7
    held[:, 0] = True
    layer.slots.positions[:, :7] = np.where(held, 1, -1)
    layer.slots.rank[:] = rng.integers(0, 4, (6, 9))
    found = layer._groups(torch.device("cpu")).reshape(6, 7).numpy()
    for row, ranks, of in zip(held, layer.slots.rank[:, :7], found, strict=True):
        assert of.tolist() == (row & (ranks >= np.median(ranks[row]))).tolist()


def test_later_values_saturate_at_the_prompts_range_and_unknown_words_are_refused():
    leaking = Leaking()
    leaking.write(torch.tensor([[[[1.0, -2.0]]]]), (0, "keys"), True)
    (high,) = leaking.write(torch.tensor([[[[9.0, -1.0]]]]), (0, "keys"), False)
    assert high.flatten().tolist() == pytest.approx([1.25, -1.0], rel=1e-3)
    with pytest.raises(ValueError, match="int16, int16-twos, fp16"):
        Leaking(word="int8")


def test_four_bits_after_a_rotation_are_near_and_counted(tiny):
    plain = logits(tiny["Qwen3Moe"], None)
    gaps = [float((logits(tiny["Qwen3Moe"], Rotated(QuaRot(bits))) - plain).abs().mean()) for bits in (8, 4, 2)]
    assert gaps[0] < gaps[1] < gaps[2]
    loops = [KV(tiny["Qwen3Moe"], POLICY, storage) for storage in (None, Rotated())]
    for loop in loops:
        generate(tiny["Qwen3Moe"], requests(), loop)
    assert loops[1].measured["kv_bytes"] == loops[0].measured["kv_bytes"] * (4 + 20 / 8) / 16


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
