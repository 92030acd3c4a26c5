"""One request inside one model: its key-value cache, and forward passes over a chain or a tree of tokens behind it.

The cache keeps every position, sliding windows included, so that any of them can be taken back; what a window hides, the mask
hides. Chains run under the model's own causal mask, trees under one that shows each node its ancestors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel

from tokentape.capture.decode import Sampling, kept
from tokentape.capture.models import device_of
from tokentape.policies.speculation.tree import Probabilities

LAYER_TYPES = {"full_attention", "sliding_attention"}
TREE_ATTENTION = ("eager", "sdpa")


class Text:
    """A cache and how to feed it; `length`: positions it holds. One request, no padding."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model, self.config = model, model.config.get_text_config()
        self.device = device_of(model)
        self.cache = DynamicCache()
        self.length = 0

    def feed(self, tokens: list[int], last_only: bool = False) -> torch.Tensor:
        """(n, V) logits after each token of a chain, or (1, V) after the last."""
        return self._run(tokens, logits_to_keep=1 if last_only else 0)

    def feed_tree(self, tokens: list[int], depths: list[int], visible: np.ndarray) -> torch.Tensor:
        """(n, V) logits after each of n tree nodes.

        depths: (m,) of all the tree's nodes in the cache once these are in, these last; visible: (n, m) bool, which of the m each
        of the n sees. Every earlier position is seen too.
        """
        start = self.length + len(tokens) - len(depths)
        keys = torch.tensor([*range(start), *(start + d for d in depths)], device=self.device)
        queries = keys[-len(tokens) :]
        return self._run(tokens, position_ids=queries[None], attention_mask=self._mask(visible, queries, keys))

    def crop(self, length: int) -> None:
        """Takes back all positions from `length` on."""
        if self.length > length:
            self.cache.crop(length - self.length)
            self.length = length

    def keep(self, length: int, offsets: list[int]) -> None:
        """Of the positions from `length` on, keeps those at the offsets, in their order, and takes back the rest."""
        if offsets == list(range(len(offsets))):
            self.crop(length + len(offsets))
            return
        chosen = torch.tensor([*range(length), *(length + o for o in offsets)])
        for layer in self.cache.layers:
            for name in ("keys", "values"):
                held = getattr(layer, name)
                setattr(layer, name, held.index_select(-2, chosen.to(held.device)))
        self.length = len(chosen)

    def _run(self, tokens: list[int], **options: Any) -> torch.Tensor:
        ids = torch.tensor([tokens], device=self.device)
        out = self.model(input_ids=ids, past_key_values=self.cache, use_cache=True, **options)
        self.length += len(tokens)
        logits: torch.Tensor = out.logits[0]
        return logits

    def _mask(self, visible: np.ndarray, queries: torch.Tensor, keys: torch.Tensor) -> Any:
        """(1, 1, n, length + n) additive mask; one per kind of layer where the model has several."""
        shown = torch.from_numpy(visible).to(self.device)
        seen = torch.cat([shown.new_ones((len(shown), len(keys) - shown.shape[1])), shown], dim=1)
        window = getattr(self.config, "sliding_window", None)
        kinds = set(getattr(self.config, "layer_types", None) or ())
        if window is None or (kinds and "sliding_attention" not in kinds):
            return self._additive(seen)
        near = self._additive(seen & (queries[:, None] - keys[None, :] < window))
        return {"full_attention": self._additive(seen), "sliding_attention": near} if kinds else near

    def _additive(self, allowed: torch.Tensor) -> torch.Tensor:
        dtype = self.model.dtype
        mask = torch.zeros(allowed.shape, dtype=dtype, device=self.device)
        return mask.masked_fill(~allowed, torch.finfo(dtype).min)[None, None]


def refuse_unless_croppable(model: PreTrainedModel, is_tree: bool) -> None:
    """Raises ValueError for a model whose cache cannot be taken back, or whose attention takes no tree mask."""
    name, config = type(model).__name__, model.config.get_text_config()
    others = sorted(set(getattr(config, "layer_types", None) or ()) - LAYER_TYPES)
    if others:
        raise ValueError(f"{name} has {others[0]} layers, whose state cannot be taken back: no speculative decoding with it")
    attention = getattr(config, "_attn_implementation", None)
    if is_tree and attention not in TREE_ATTENTION:
        raise ValueError(f"{name} runs {attention} attention, which takes no tree mask; leave --draft-width at 1")


def distribution(logits: torch.Tensor, sampling: Sampling) -> Probabilities:
    """(n, V) f64 probabilities that tokens are drawn from; at temperature 0 the plain softmax, which greedy choices rank by."""
    if sampling.temperature == 0:
        return logits.double().softmax(-1).cpu().numpy()
    ordered, ids = kept(logits, sampling)
    found = torch.zeros_like(ordered, dtype=torch.float64).scatter_(1, ids, ordered.double())
    return (found / found.sum(-1, keepdim=True)).numpy()
