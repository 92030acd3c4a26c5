"""NVIDIA's kvpress compresses once after the prompt; on the same random weights it and our policies must keep the same positions.

kvpress asks for an older transformers than ours, so no extra installs it: `pip install --no-deps kvpress peft accelerate fire
termcolor "cachetools<6"` beside the project runs these tests; without it they skip.
"""

import pytest
import torch
from tiny_families import VOCAB, build

from tokentape.capture.live.attention import KV
from tokentape.capture.live.texts import CACHE
from tokentape.policies.kv.snapkv import SnapKV
from tokentape.policies.kv.streaming import Streaming
from tokentape.policies.kv.tova import TOVA

kvpress = pytest.importorskip("kvpress")
from transformers import DynamicCache  # noqa: E402

N = 40


def positions_kept(model, press, ids):
    """(layer, head) -> positions that the press leaves, found by comparing keys with the whole cache's."""
    full, pressed = DynamicCache(), DynamicCache()
    model(input_ids=ids, use_cache=True, **{CACHE: full})
    place = lambda module, args, kwargs: (args, kwargs | {"cache_position": torch.arange(N)})  # noqa: E731
    handles = [m.register_forward_pre_hook(place, with_kwargs=True) for m in model.modules() if hasattr(m, "layer_idx")]
    try:
        with press(model):
            model(input_ids=ids, use_cache=True, **{CACHE: pressed})
    finally:
        for handle in handles:
            handle.remove()
    kept = {}
    for layer, (whole, left) in enumerate(zip(full.layers, pressed.layers, strict=True)):
        for head in range(left.keys.shape[1]):
            gap = (left.keys[0, head][:, None] - whole.keys[0, head][None]).abs().amax(dim=-1)
            assert gap.amin(dim=1).max() < 1e-5, "a key that the whole cache does not hold"
            kept[layer, head] = sorted(gap.argmin(dim=1).tolist())
    return kept


def ours(model, policy, ids):
    with KV(model, policy) as slot:
        cache = slot.new_cache([0])
        model(input_ids=ids, use_cache=True, **{CACHE: cache})
        by_layer = [layer.positions()[0] for layer in cache.layers]
    return {(layer, h): sorted(p[p >= 0].tolist()) for layer, heads in enumerate(by_layer) for h, p in enumerate(heads)}


@pytest.mark.parametrize("family", ["Llama", "Qwen2"])
@pytest.mark.parametrize("budget", [10, 20, 35])
@pytest.mark.parametrize("kind", ["streaming", "tova", "snapkv"])
def test_the_same_positions_stay_after_the_prompt(family, budget, kind):
    model = build(family)
    ids = torch.randint(3, VOCAB, (1, N), generator=torch.Generator().manual_seed(23))
    ratio = 1 - (budget + 0.5) / N  # kvpress keeps int(N (1 - ratio))
    pairs = {
        "streaming": (kvpress.StreamingLLMPress(ratio, n_sink=4), Streaming(budget, sink=4)),
        "tova": (kvpress.TOVAPress(ratio), TOVA(budget)),
        "snapkv": (kvpress.SnapKVPress(ratio, window_size=8, kernel_size=5), SnapKV(budget, window=8, pool=5)),
    }
    press, policy = pairs[kind]
    with torch.no_grad():
        theirs, mine = positions_kept(model, press, ids), ours(model, policy, ids)
    assert all(len(kept) == budget for kept in mine.values())
    assert mine == theirs
