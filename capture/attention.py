"""Attention capture: the model's own eager attention, watched, for as long as a `with` block lasts.

    with AttentionCapture(model) as attention:
        model(input_ids)
        masses = attention.take().masses    # per layer (batch, kv heads, keys) f32: probability each key received

A registered attention function calls the `eager_attention_forward` of the module's own modelling file, so soft-caps, sliding
windows, sinks and dropout are that family's; it sums the probabilities over queries and over the query heads of a kv head, and
drops the matrix before the next layer runs. Its mask function is registered with it: without one transformers passes no mask
and attention silently stops being causal. On exit the former implementation is back.
"""

import itertools
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from tokentape.capture.hooks import Hooked
from tokentape.capture.measure import stated

_NAMES = itertools.count()


@dataclass(frozen=True)
class Attended:
    """Of a pass, by absolute layer; a sliding layer's keys are its latest.

    masses: (batch, kv heads, keys) f32, what each key received. rows: (batch, kv heads, queries, keys) f32 of single queries.
    heads: (batch, query heads, keys) sums, where there was more than one query. vectors: last queries (batch, query heads, D) and
    new keys (batch, kv heads, n, D), as multiplied.
    """

    masses: dict[int, torch.Tensor] = field(default_factory=dict)
    rows: dict[int, torch.Tensor] = field(default_factory=dict)
    heads: dict[int, torch.Tensor] = field(default_factory=dict)
    vectors: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)


class AttentionCapture(Hooked):
    """Context manager. `query_mask` (batch, queries) bool, set before a pass with padding, leaves its padded queries out.

    MLA caches one latent per token for all heads, so its heads are summed into one (`n_kv_heads` = 1). Where a model `has_sinks`
    they take their share of the softmax first, so a row's masses sum to less than its heads. n_rows, set before a pass: the last
    queries whose own rows are taken. with_heads, with_vectors: what else is.
    """

    def __init__(self, model: PreTrainedModel, with_heads: bool = False, with_vectors: bool = False) -> None:
        self.model, self.with_heads, self.with_vectors = model, with_heads, with_vectors
        self.stated = said = stated(model)
        self.is_latent = said.kv_lora_rank > 0
        if any("compressed" in kind for kind in getattr(model.config.get_text_config(), "layer_types", None) or ()):
            raise ValueError(
                f"{type(model).__name__} attends to compressed keys, each of many positions, and masses are of single ones here; "
                "leave attention, or the KV policy, out"
            )
        if with_vectors and self.is_latent:
            raise ValueError(f"{type(model).__name__} caches one latent for all heads, no keys: leave --key-pages out")
        if said.alike(True).n_kv_heads != said.n_kv_heads and not self.is_latent:
            raise ValueError(
                f"{type(model).__name__}: layers with a window have other KV heads than the rest, and one number is known here; "
                "leave attention, or the KV policy, out"
            )
        self.n_kv_heads = 1 if self.is_latent else said.n_kv_heads
        self.n_heads = said.n_heads
        self.has_sinks = any(name.endswith(".sinks") for name, _ in model.named_parameters())
        self.query_mask: torch.Tensor | None = None
        self._name = f"tokentape_{next(_NAMES)}"
        self.n_rows = 0
        self._seen = Attended()

    def _enter(self, stack: ExitStack) -> None:
        former = self.model.config._attn_implementation
        ALL_ATTENTION_FUNCTIONS.register(self._name, self._attend)
        ALL_MASK_ATTENTION_FUNCTIONS.register(self._name, self._mask)
        stack.callback(self.take)
        stack.enter_context(self.model.register_forward_pre_hook(lambda *call: setattr(self, "_seen", Attended())))
        for functions in (ALL_ATTENTION_FUNCTIONS, ALL_MASK_ATTENTION_FUNCTIONS):
            stack.callback(functions._global_mapping.pop, self._name, None)
        stack.callback(self.model.set_attn_implementation, former)
        self.model.set_attn_implementation(self._name)
        if self.model.config._attn_implementation != self._name:
            raise ValueError(f"{type(self.model).__name__}: its attention cannot be replaced; leave attention out of --tables")

    def _mask(self, *args: Any, **kwargs: Any) -> Any:
        return eager_mask(*args, **kwargs)

    def _attend(
        self, module: nn.Module, query: torch.Tensor, key: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, None]:
        output, weights = eager_of(module)(module, query, key, *args, **kwargs)
        layer: Any = getattr(module, "layer_idx", None)
        if layer is None:  # it attends to layers, not to tokens
            return output, None
        seen, summed = self._seen, self._summed(weights)
        masses = self._grouped(summed)
        if layer in seen.masses and not torch.equal(masses, seen.masses[layer]):  # DiffLlama asks twice for one
            raise ValueError(
                f"{type(self.model).__name__} applies layer {layer} several times in a pass, of which a tape holds one attention "
                "per query; leave attention out of --tables"
            )
        seen.masses[layer] = masses
        if self.with_heads and query.shape[2] > 1:
            seen.heads[layer] = summed
        if self.with_vectors:
            seen.vectors[layer] = (query[:, :, -1], key[:, :, -query.shape[2] :])
        if self.n_rows:
            seen.rows[layer] = self._grouped(weights[:, :, -self.n_rows :].float())
        return output, None

    def _summed(self, weights: torch.Tensor) -> torch.Tensor:
        """(batch, heads, queries, keys) probabilities -> (batch, heads, keys) f32 sums."""
        if self.query_mask is not None:
            kept = self.query_mask.to(weights.device, torch.float32)[:, None, None, :]
            return torch.matmul(kept, weights.float()).squeeze(2)
        return weights[:, :, 0].float() if weights.shape[2] == 1 else weights.sum(dim=2, dtype=torch.float32)

    def _grouped(self, values: torch.Tensor) -> torch.Tensor:
        """(batch, heads, ...) -> (batch, kv heads, ...), a kv head's query heads summed."""
        return values if values.shape[1] == self.n_kv_heads else values.unflatten(1, (self.n_kv_heads, -1)).sum(dim=2)

    def take(self) -> Attended:
        """The last pass; nothing where it was taken before."""
        seen, self._seen = self._seen, Attended()
        return seen


def eager_of(module: nn.Module) -> Any:
    """The eager attention function of an attention module's own file."""
    eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if eager is None:
        raise ValueError(f"{type(module).__name__}: its file has no eager attention; leave attention out of --tables")
    return eager
