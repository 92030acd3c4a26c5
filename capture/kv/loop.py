"""A KV policy inside a live model: the model attends to what the policy kept, and to nothing else.

    with KVLoop(model, policy, storage) as loop:
        in_loop(loop)(model, requests, ...)     # as capture.decode.decode

A registered attention function (capture/attention.py) calls the family's own eager attention, so soft-caps, sinks and sliding
windows are that family's. After the prompt its column sums choose what stays; after each token its row moves the scores on, by
the kernels that a tape's replay uses. The mask is the loop's own: slots that hold nothing are masked; nothing else needs to be.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.masking_utils import eager_mask

from tokentape.capture.attention import AttentionCapture, eager_of
from tokentape.capture.decode import Pass
from tokentape.capture.kv.cache import KVCache, KVLayer, windows_of
from tokentape.capture.kv.storage import Plain
from tokentape.policies.kv import KVPolicy
from tokentape.policies.kv.importance import AERP
from tokentape.policies.kv.recompute import Widths, pays


class KVLoop(AttentionCapture):
    """Context manager around a causal language model. keeps_trail: also remember what every step retained (tests, divergence).

    Raises ValueError for a bound, which needs a tape, and for families whose attention or cache cannot be replaced.
    """

    def __init__(self, model: PreTrainedModel, policy: KVPolicy, storage: Plain | None = None, keeps_trail: bool = False) -> None:
        super().__init__(model)
        if policy.is_bound:
            raise ValueError(f"{type(policy).__name__} sees the future: it runs over a tape only; use `tokentape decide kv`")
        self.policy, self.storage, self.keeps_trail = policy, storage or Plain(), keeps_trail
        self.windows = windows_of(model)
        text = model.config.get_text_config()
        self.x_width = 0
        if isinstance(policy, AERP):
            head_dim = getattr(text, "head_dim", None) or text.hidden_size // self.n_heads
            pair = text.kv_lora_rank + text.qk_rope_head_dim if self.is_latent else 2 * head_dim
            widths = Widths(2 * text.hidden_size, 2 * pair, self.n_kv_heads)
            self.x_width = text.hidden_size if pays(widths, policy.accounting) else 0
        self.cache: KVCache | None = None
        self.trail: list[list[np.ndarray]] = []  # by pass and layer: positions (batch, heads, slots)
        self.totals = {"tokens": 0, "kv_bytes": 0.0}
        self._is_prefill = True
        self._handle: Any = None

    def __enter__(self) -> KVLoop:
        super().__enter__()
        self._handle = self.model.register_forward_pre_hook(self._give_cache, with_kwargs=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._handle.remove()
        self.cache = None
        super().__exit__(kind, error, trace)

    @property
    def mean_bytes(self) -> float:
        """Bytes a request's cache held after a decoded token, all layers; mean."""
        return self.totals["kv_bytes"] / max(1, self.totals["tokens"])

    def begin(self, mask: torch.Tensor | None, n_rows: int = 1) -> None:
        """A new batch comes: an empty cache. mask (batch, columns) bool of real tokens, padded on the left; None: no padding."""
        n_rows = n_rows if mask is None else len(mask)
        pads = np.zeros(n_rows, np.int64) if mask is None else (~mask).sum(dim=1).cpu().numpy()
        self.storage.begin()
        self.cache = KVCache(self.policy, self.storage, self.windows, self.n_kv_heads, pads, self.x_width)
        self._is_prefill, self.trail = True, []

    def record(self, done: Pass) -> None:
        """A pass has run: counts what its members hold."""
        assert self.cache is not None
        self._is_prefill = False
        if done.kind == "decode":
            self.totals["tokens"] += len(done.rows)
            self.totals["kv_bytes"] += float(self.cache.stored_bytes()[done.rows].sum())
        if self.keeps_trail:
            self.trail.append([layer.positions().copy() for layer in self.cache.layers])

    def _give_cache(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.cache is None or not kwargs.get("use_cache") or kwargs.get("past_key_values") is not None:
            return None
        if self.cache.get_seq_length():
            raise ValueError("a KV loop holds one batch at a time; begin the next one first")
        return args, kwargs | {"past_key_values": self.cache}

    def _mask(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own for a prompt; while decoding none, since _attend makes it."""
        return eager_mask(*args, **kwargs) if self._is_prefill or self.cache is None else None

    def _attend(
        self, module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, None]:
        eager = eager_of(module)
        layer = self.cache.layers[module.layer_idx] if self.cache is not None else None  # type: ignore[index]
        if layer is None or not layer.is_initialized:  # a pass without a cache
            return eager(module, query, key, value, mask, **kwargs)[0], None
        if layer.planes:
            mask = self._slot_mask(layer, query)
        output, weights = eager(module, query, key, value, mask, **kwargs)
        if self.policy.needs_raw:
            weights = _logits(query, key, mask, kwargs.get("scaling"))
        if layer.planes:
            layer.end_step(self._by_set(layer, weights[:, :, -1]))
        else:
            layer.end_prompt(self._prompt_mass(layer, weights))
        return output, None

    def _slot_mask(self, layer: KVLayer, query: torch.Tensor) -> torch.Tensor | None:
        """(batch, query heads or 1, 1, slots): lowest where a slot holds nothing."""
        free = layer.free()
        if free is None:
            return None
        lowest = torch.finfo(query.dtype).min
        mask = torch.zeros(free.shape, dtype=query.dtype).masked_fill_(torch.from_numpy(free), lowest).to(query.device)
        if free.shape[1] > 1:
            mask = mask.repeat_interleave(query.shape[1] // free.shape[1], dim=1)
        return mask[:, :, None]

    def _by_set(self, layer: KVLayer, weights: torch.Tensor) -> np.ndarray:
        """(batch, heads, slots) -> (batch, sets, slots) f64, the heads of a set summed in f32 as a tape records them."""
        batch, heads, n = weights.shape
        if heads != self.n_kv_heads:
            weights = weights.float().view(batch, self.n_kv_heads, heads // self.n_kv_heads, n).sum(dim=2)
        mass = weights.detach().float().cpu().numpy().astype(np.float64)
        return mass if layer.n_sets == self.n_kv_heads else mass.sum(axis=1, keepdims=True)

    def _prompt_mass(self, layer: KVLayer, weights: torch.Tensor) -> np.ndarray:
        """(batch, KV heads, columns) f64: over the queries that the policy's first scores need, padded ones left out."""
        n_queries = self.policy.prompt_queries
        if n_queries is not None:
            weights = weights[:, :, -n_queries:]
        columns = torch.arange(layer.seen - weights.shape[2], layer.seen)
        is_padded = bool(layer.pads.any())
        self.query_mask = columns >= torch.from_numpy(layer.pads)[:, None] if is_padded else None
        mass = self._reduce(weights).detach().cpu().numpy().astype(np.float64)
        self.query_mask = None
        return mass


def _logits(query: torch.Tensor, key: torch.Tensor, mask: Any, scaling: float | None) -> torch.Tensor:
    """(batch, heads, queries, keys) f32: q.k as the softmax gets it, 0 where masked."""
    groups = query.shape[1] // key.shape[1]
    raw = torch.matmul(query, key.repeat_interleave(groups, dim=1).transpose(2, 3)).float()
    raw = raw * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    return raw if mask is None else raw.masked_fill(mask < torch.finfo(mask.dtype).min / 2, 0.0)
