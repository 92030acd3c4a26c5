"""A KV policy inside a live model: the model attends to what the policy kept, and to nothing else.

    with Inside(model, KV(model, policy, storage)) as inside:
        decode(model, requests, ..., inside)

A registered attention function (capture/attention.py) calls the family's own eager attention, so soft-caps, sinks and sliding
windows are that family's. After the prompt its column sums choose what stays; after each token its row moves the scores on, by
the kernels that a tape's replay uses. The mask is the loop's own: slots that hold nothing are masked; nothing else needs to be.
"""

import copy
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.masking_utils import eager_mask

from tokentape.capture.attention import AttentionCapture, eager_of
from tokentape.capture.live.caches import KVCache, KVLayer, windows_of
from tokentape.capture.live.inputs import Inputs, attention_modules
from tokentape.capture.live.slots import Pass, Request, Slot
from tokentape.capture.live.storage import Plain
from tokentape.policies.kv import KVPolicy
from tokentape.policies.kv.importance import AERP
from tokentape.policies.kv.recompute import Widths, pays


class KV(AttentionCapture, Slot):
    """A KV policy, in a causal language model. keeps_trail: also remember what every pass retained (tests, divergence).

    Raises ValueError for a bound, which needs a tape, and for families whose attention or cache cannot be replaced.
    """

    def __init__(self, model: PreTrainedModel, policy: KVPolicy, storage: Plain | None = None, keeps_trail: bool = False) -> None:
        super().__init__(model)
        if policy.is_bound:
            raise ValueError(f"{type(policy).__name__} sees the future: it runs over a tape only; use `tokentape decide kv`")
        if policy.reads_pages:
            raise ValueError(
                f"{type(policy).__name__} reads pages of a tape: it does not run inside a model; use `tokentape decide kv`"
            )
        self.policy, self.storage, self.keeps_trail = policy, storage or Plain(), keeps_trail
        self.windows = windows_of(model)
        self.recomputing: dict[int, nn.Module] = {}
        self.recompute_ops = 0.0  # of a token in a layer
        if isinstance(policy, AERP):
            pair = self.stated.kv_elements_per_token_layer // self.n_kv_heads
            widths = Widths(2 * self.stated.hidden, 2 * pair, self.n_kv_heads)
            if pays(widths, policy.accounting):
                self.recomputing = attention_modules(model)
                self.recompute_ops = 2.0 * self.stated.hidden * pair * self.n_kv_heads
        self.current: KVCache | None = None  # the last one
        self._active: KVCache | None = None  # of the pass under way
        self.trail: list[list[np.ndarray]] = []  # by pass and layer: positions (batch, heads, slots)
        self.totals = {"tokens": 0, "kv_bytes": 0.0, "recompute_ops": 0.0}
        self._coming: Pass | None = None
        self._attended: set[int] = set()  # layers in the pass under way
        self._stored: np.ndarray | None = None  # bytes, and tokens computed anew, of the pass that is being decided
        self._of: dict[int, tuple[KVCache, int]] = {}  # a request's cache and its row there

    def _enter(self, stack: ExitStack) -> None:
        super()._enter(stack)
        stack.callback(self._forget)
        for layer, module in self.recomputing.items():
            stack.enter_context(module.register_forward_pre_hook(partial(self._keep, layer), with_kwargs=True))

    def _keep(self, layer: int, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._active is not None:
            self._active.layers[layer].inputs.add(args, kwargs)  # type: ignore[union-attr]

    def _forget(self) -> None:
        self.current = self._active = self._coming = None
        self._of = {}

    @property
    def measured(self) -> dict[str, float]:
        """Columns of table `quality`: bytes a request's cache held after a decoded token, and operations of computing keys and
        values anew for it, all layers; means."""
        return {name: self.totals[name] / max(1, self.totals["tokens"]) for name in ("kv_bytes", "recompute_ops")}

    def new_cache(self, pads: list[int], takes_back: bool = False) -> KVCache:
        """Empty, for a batch; its words lose bits on their own, by the same draws."""
        storage, inputs = copy.copy(self.storage), {layer: Inputs(module) for layer, module in self.recomputing.items()}
        storage.begin()
        of = (self.n_kv_heads, np.array(pads, np.int64), takes_back)
        layers = [KVLayer(i, self.policy, storage, window, *of, inputs.get(i)) for i, window in enumerate(self.windows)]
        self.current = self._active = KVCache(layers)
        return self.current

    def begin(self, requests: Sequence[Request]) -> None:
        """Raises ValueError for a request that is longer than a chunk, where a model attends in chunks (Llama 4)."""
        config = self.model.config.get_text_config()
        longest = max((len(r.prompt_ids) + r.budget - 1 for r in requests), default=0)
        if "chunked_attention" in (getattr(config, "layer_types", None) or ()) and longest > config.attention_chunk_size:
            raise ValueError(
                f"{type(self.model).__name__} attends in chunks of {config.attention_chunk_size} tokens, of which a KV policy "
                f"follows the first: a request of {longest} is too long; give shorter prompts"
            )
        self._forget()
        self.trail = []

    def before(self, coming: Pass) -> None:
        cache = coming.text.cache if coming.text is not None else None
        self._coming, self._attended = coming, set()
        if isinstance(cache, KVCache):
            self.current = self._active = cache
            self._of |= {name: (cache, row) for name, row in zip(coming.request_ids, coming.rows, strict=True)}

    def after(self, done: Pass) -> None:
        self._active = self._stored = None
        if self.keeps_trail and self.current is not None and done.kind in ("prefill", "decode"):
            self.trail.append([layer.positions().copy() for layer in self.current.layers])

    def commit(self, request_id: int, kept: list[int]) -> None:
        """Counts what the request holds, after each of its tokens, and what its pass computed anew, once for all of them."""
        cache, row = self._of[request_id]
        self.totals["tokens"] += len(kept)
        if self._stored is None:  # once per pass
            self._stored = np.stack([cache.stored_bytes(), self.recompute_ops * cache.n_recomputed()])
        self.totals["kv_bytes"] += len(kept) * float(self._stored[0, row])
        self.totals["recompute_ops"] += float(self._stored[1, row])

    def _mask(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own for a prompt; while decoding none, since _attend makes it."""
        is_slots = self._active is not None and self._active.layers[0].planes
        return None if is_slots else eager_mask(*args, **kwargs)

    def _attend(
        self, module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, None]:
        eager, mask = eager_of(module), attention_mask
        layer = self._active.layers[module.layer_idx] if self._active is not None else None  # type: ignore[index]
        if layer is None or not layer.is_initialized:  # a pass without a cache, or of loops over a layer not the last (Dory)
            self._attended |= set() if layer is None else {layer.index}
            return eager(module, query, key, value, mask, **kwargs)[0], None
        is_prompt, is_again = not layer.planes, layer.index in self._attended
        if is_again or (not is_prompt and mask is not None):
            what = "attends several times in a layer" if is_again else "masks keys in a way of its own"
            raise ValueError(f"{type(self.model).__name__} {what}, which no KV policy follows; leave the KV policy out")
        self._attended.add(layer.index)
        if not is_prompt:
            mask = self._slot_mask(layer, query)
        output, weights = eager(module, query, key, value, mask, **kwargs)
        if self.policy.needs_raw:
            weights = _logits(query, key, mask, kwargs.get("scaling"), kwargs.get("softcap"))
        if is_prompt:
            self._prompt(layer, weights)
        elif layer.takes_back:
            layer.pay(self._by_set(layer, weights))
        else:
            layer.end_step(self._by_set(layer, weights)[:, :, -1])
        return output, None

    def _slot_mask(self, layer: KVLayer, query: torch.Tensor) -> torch.Tensor | None:
        """(batch, query heads or 1, queries or 1, slots and tentative tokens): lowest where nothing is, or is seen."""
        hidden = layer.free()
        if layer.takes_back:
            hidden = self._tentative_hidden(layer, query.shape[2])
        elif hidden is not None:
            hidden = hidden[:, :, None]
        if hidden is None:
            return None
        lowest = torch.finfo(query.dtype).min
        mask = torch.zeros(hidden.shape, dtype=query.dtype).masked_fill_(torch.from_numpy(hidden), lowest).to(query.device)
        return mask.repeat_interleave(query.shape[1] // hidden.shape[1], dim=1) if hidden.shape[1] > 1 else mask

    def _tentative_hidden(self, layer: KVLayer, n: int) -> np.ndarray:
        """(1, sets, n, slots and tentative tokens) bool, of the last n tentative tokens."""
        assert self._active is not None
        held = layer.slots.positions[:, : layer.width]
        at, seen = layer.tentative, np.broadcast_to(self._active.visible, (n, layer.n_tentative))
        hidden = np.concatenate([np.repeat((held < 0)[:, None], n, 1), np.repeat(~seen[None], len(held), 0)], axis=2)
        if layer.window:
            keys = np.concatenate([held, np.repeat(at[None], len(held), 0)], axis=1)
            hidden |= at[-n:][None, :, None] - keys[:, None] >= layer.window
        return hidden[None]

    def _by_set(self, layer: KVLayer, weights: torch.Tensor) -> np.ndarray:
        """(batch, heads, queries, slots) -> (batch, sets, queries, slots) f64, a set's heads summed in f32 as a tape has them."""
        mass = self._grouped(weights.float()).detach().cpu().numpy().astype(np.float64)
        return mass if layer.n_sets == self.n_kv_heads else mass.sum(axis=1, keepdims=True)

    def _prompt(self, layer: KVLayer, weights: torch.Tensor) -> None:
        """Adds up what the queries pay that the policy's first scores need, padded ones left out; evicts after the last."""
        coming, n = self._coming, weights.shape[2]
        is_last = coming is None or coming.is_last
        if self.policy.prompt_queries is not None:
            n_prompt = layer.seen if is_last else coming.text.n_prompt  # type: ignore[union-attr]
            n = min(n, max(0, layer.seen - (n_prompt - self.policy.prompt_queries)))
        if n:
            weights = weights[:, :, -n:]
            columns = torch.arange(layer.seen - n, layer.seen)
            is_padded = bool(layer.pads.any())
            self.query_mask = columns >= torch.from_numpy(layer.pads)[:, None] if is_padded else None
            mass = self._grouped(self._summed(weights)).detach().cpu().numpy().astype(np.float64)
            self.query_mask = None
            if layer.mass is not None:
                mass[:, :, : layer.mass.shape[2]] += layer.mass
            layer.mass = mass
        if is_last:
            assert layer.mass is not None
            layer.end_prompt(layer.mass)


def _logits(query: torch.Tensor, key: torch.Tensor, mask: Any, scaling: float | None, cap: float | None) -> torch.Tensor:
    """(batch, heads, queries, keys) f32: q.k as the softmax gets it, 0 where masked."""
    groups = query.shape[1] // key.shape[1]
    raw = torch.matmul(query, key.repeat_interleave(groups, dim=1).transpose(2, 3)).float()
    raw = raw * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    raw = raw if cap is None else cap * torch.tanh(raw / cap)
    return raw if mask is None else raw.masked_fill(mask < torch.finfo(mask.dtype).min / 2, 0.0)
