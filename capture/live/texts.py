"""Requests inside one model: their key-value cache, and forward passes over tokens, a chain or a tree of them behind it.

A cache whose tokens can be taken back keeps every position, sliding windows included; what a window hides, the mask hides. Chains
run under the model's own causal mask, trees under one that shows each node its ancestors.
"""

from dataclasses import fields
from typing import Any, Protocol

import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from tokentape.capture.live.caches import KVCache
from tokentape.capture.live.sampling import nll_of
from tokentape.capture.live.slots import Pass
from tokentape.capture.models import device_of, ran

NLL_CHUNK_ELEMENTS = 1 << 24  # float32 logits held at once while scoring a long prompt: 64 MiB
LAYER_TYPES = {"full_attention", "sliding_attention"}
TREE_ATTENTION = ("eager", "sdpa")
# In transformers itself padding before a text moves what these layers make of it, and of a sliced prompt these families lose the
# state, or take the first slice for all.
UNPADDED = {"compressed_sparse_attention", "heavily_compressed_attention", "reference_sliding_attention"}
WHOLE_PROMPTS = ("jamba", "unlimited_ocr", "paligemma")
# Families that count padding (Mamba takes a decoded token for as many as the mask has), or nodes of a tree one after the other.
COUNT_PADDING = ("falcon_mamba", "git", "mamba", "paligemma")
COUNT_NODES = ("bloom", "mpt", "paligemma")
# What models call their cache, as an argument and in what they return: transformers renamed it in 5.24, all families at once.
CACHE = "cache" if "cache" in {field.name for field in fields(CausalLMOutputWithPast)} else "past_key_values"


class Watch(Protocol):
    """Told of every pass before and after it."""

    def before(self, coming: Pass) -> None: ...

    def after(self, done: Pass) -> None: ...


class Text:
    """A cache and how to feed it; `length`: columns it holds. Rows of one request each, padded on the left, or one request.

    cache: None: the model's own. n_prompt: columns of the prompt. A chain or a tree behind it is of one request.
    """

    def __init__(self, model: PreTrainedModel, watch: Watch, cache: Any = None, n_prompt: int = 0) -> None:
        self.model, self.config, self.watch = model, model.config.get_text_config(), watch
        self.device = device_of(model)
        self.cache, self.n_prompt = cache, n_prompt
        self.length = 0

    def run(self, ids: torch.Tensor, coming: Pass, **options: Any) -> torch.Tensor:
        """(rows, columns or fewer, V) logits of ids (rows, columns). Raises ValueError for a model that keeps nothing of them."""
        self.watch.before(coming)
        out = ran(self.model, ids, use_cache=True, **{CACHE: self.cache}, **options)
        self.cache, logits = getattr(out, CACHE, None), out.logits
        if self.cache is None:
            name = type(self.model).__name__
            raise ValueError(f"{name} hands back no cache of keys and values; give a decoder-only language model")
        self.length += ids.shape[1]
        self.watch.after(coming)
        return logits  # type: ignore[no-any-return]  # transformers types no output

    def run_scored(self, ids: torch.Tensor, coming: Pass, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits (rows, columns or fewer, V), the last column's last, and (rows, columns - 1) nll of each id given those before.

        Of a large vocabulary the head runs over few columns at a time, each family's own with its caps and scales: the body then
        returns what it returned before.
        """
        body, most = self.model.get_decoder(), NLL_CHUNK_ELEMENTS // (len(ids) * self.config.vocab_size)
        if body is self.model or ids.shape[1] <= max(1, most):
            logits = self.run(ids, coming, logits_to_keep=0, **options)
            return logits, nll_of(logits[:, :-1], ids[:, 1:])
        held: list[Any] = []
        with body.register_forward_hook(lambda module, args, output: held.append(output)):
            last = self.run(ids, coming, logits_to_keep=1, **options)
        states, own, parts = held[0].last_hidden_state, vars(body).get("forward"), [torch.zeros(len(ids), 0, device=ids.device)]
        try:
            for start in range(0, ids.shape[1] - 1, max(1, most)):
                stop = min(start + max(1, most), ids.shape[1] - 1)
                part = type(held[0])(**held[0] | {"last_hidden_state": states[:, start:stop]})
                body.forward = lambda *args, part=part, **kwargs: part
                logits = self.model(input_ids=ids[:, start:stop], use_cache=False).logits
                parts.append(nll_of(logits, ids[:, start + 1 : stop + 1]))
        finally:
            vars(body).pop("forward")
            if own is not None:  # as accelerate puts one there
                body.forward = own
        return last, torch.cat(parts, dim=1)

    def feed(self, tokens: list[int], coming: Pass, last_only: bool = False) -> torch.Tensor:
        """(n, V) logits after each token of a chain, or (1, V) after the last."""
        if isinstance(self.cache, KVCache):
            n, held = len(tokens), self.cache.n_tentative
            self.cache.expect(range(self.length, self.length + n), np.tri(n, held + n, held, bool))
        logits = self.run(torch.tensor([tokens], device=self.device), coming, logits_to_keep=1 if last_only else 0)[0]
        return logits[-1:] if last_only else logits  # some models return all

    def feed_tree(self, tokens: list[int], coming: Pass, depths: list[int], visible: np.ndarray) -> torch.Tensor:
        """(n, V) logits after each of n tree nodes.

        depths: (m,) of all the tree's nodes in the cache once these are in, these last; visible: (n, m) bool, which of the m each
        of the n sees. Every earlier position is seen too.
        """
        start = self.length + len(tokens) - len(depths)
        keys = torch.tensor([*range(start), *(start + d for d in depths)], device=self.device)
        queries, options = keys[-len(tokens) :], {}
        if isinstance(self.cache, KVCache):
            self.cache.expect(queries.tolist(), visible)
        else:
            options["attention_mask"] = self._mask(visible, queries, keys)
        return self.run(torch.tensor([tokens], device=self.device), coming, position_ids=queries[None], **options)[0]

    def crop(self, length: int) -> None:
        """Takes back all positions from `length` on."""
        if self.length > length:
            self.cache.crop(length - self.length)
            self.length = length

    def keep(self, length: int, offsets: list[int]) -> None:
        """Of the positions from `length` on, keeps those at the offsets, in their order, and takes back the rest."""
        if isinstance(self.cache, KVCache):
            self.cache.commit(offsets)
            self.length = length + len(offsets)
            return
        if offsets == list(range(len(offsets))):
            self.crop(length + len(offsets))
            return
        chosen = torch.tensor([*range(length), *(length + o for o in offsets)])
        for layer in self.cache.layers:
            for name in ("keys", "values"):
                held = getattr(layer, name)
                setattr(layer, name, held.index_select(-2, chosen.to(held.device)))
        self.length = len(chosen)

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


def takes_padding(model: PreTrainedModel) -> bool:
    """Whether requests of unequal length may go through the model together.

    Convolutions and states take what a biased projection makes of padding, which is masked before it alone.
    """
    is_biased = any(getattr(getattr(module, "in_proj", None), "bias", None) is not None for module in model.modules())
    kinds = set(getattr(model.config.get_text_config(), "layer_types", None) or ())
    return not (is_biased or UNPADDED & kinds or model.config.model_type in COUNT_PADDING)


def refuse_unless_croppable(model: PreTrainedModel, is_tree: bool) -> None:
    """Raises ValueError for a model whose cache cannot be taken back, or whose attention takes no tree mask."""
    name, config = type(model).__name__, model.config.get_text_config()
    others = sorted(set(getattr(config, "layer_types", None) or ()) - LAYER_TYPES)
    if others:
        raise ValueError(f"{name} has {others[0]} layers, whose state cannot be taken back: no speculative decoding with it")
    attention = getattr(config, "_attn_implementation", None)
    if is_tree and attention not in TREE_ATTENTION:
        raise ValueError(f"{name} runs {attention} attention, which takes no tree mask; leave --draft-width at 1")
    if is_tree and (model.config.model_type in COUNT_NODES or getattr(config, "alibi", False)):
        raise ValueError(f"{name} counts tokens one after the other, as nodes of a tree are not; leave --draft-width at 1")
