"""Recomputation of keys and values from the layer input that AERP stores in their place, for any family.

    with LayerInputs(model) as inputs:
        model(input_ids, ...)                  # inputs.of[layer]: what its attention was given
    keys, values = inputs.recomputed(layer, [3, 7])

The attention module itself runs again on the stored rows, with a cache that takes what it is handed and stops it: projection,
norms and rotation at the original positions are the family's own. Rows that enter as they did at first give the same bits.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from tokentape.capture.hooks import Hooked
from tokentape.capture.live.texts import CACHE


class _Handed(Exception):
    """Keys and values reached the cache; the rest of attention is not needed."""


class _Taker:
    """A cache that only takes."""

    def __init__(self) -> None:
        self.taken: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(self, keys: torch.Tensor, values: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        self.taken = keys, values
        raise _Handed


class LayerInputs(Hooked):
    """Context manager: the attention inputs of the latest pass, by layer, all of them kept."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.modules = {m.layer_idx: m for m in model.modules() if _is_attention(m)}
        if not self.modules:
            raise ValueError(f"{type(model).__name__}: no attention modules that know their layer; nothing can be recomputed")
        self.of: dict[int, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def _enter(self, stack: ExitStack) -> None:
        for layer, module in self.modules.items():
            stack.enter_context(module.register_forward_pre_hook(self._keep(layer), with_kwargs=True))

    def _keep(self, layer: int) -> Any:
        def keep(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.of[layer] = args, dict(kwargs)

        return keep

    def recomputed(self, layer: int, rows: Sequence[int] | None = None, replaced: torch.Tensor | None = None) -> Any:
        """(keys, values) of the rows of the pass (None: all), as the cache got them. replaced: layer inputs to use instead."""
        args, kwargs = self.of[layer]
        n = (kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]).shape[1]
        at = slice(None) if rows is None else torch.as_tensor(rows)

        def cut(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(cut(part) for part in value)
            is_by_row = isinstance(value, torch.Tensor) and value.ndim >= 2 and value.shape[1] == n
            return value[:, at] if is_by_row else value

        given = {name: cut(value) for name, value in kwargs.items() if name != "attention_mask"}
        given |= {CACHE: _Taker(), "attention_mask": None}
        rest = [cut(value) for value in args]
        if replaced is not None and "hidden_states" in given:
            given["hidden_states"] = replaced
        elif replaced is not None:
            rest[0] = replaced
        try:
            self.modules[layer].forward(*rest, **given)
        except _Handed:
            return given[CACHE].taken
        raise ValueError(f"layer {layer}: its attention handed no keys and values to the cache")


def _is_attention(module: nn.Module) -> bool:
    return type(module).__name__.endswith("Attention") and isinstance(getattr(module, "layer_idx", None), int)
