"""A layer's experts several times over inside a live model: full precision, low precision, replicas.

Every expert tensor stands n times in the first dimension, and a selection is sent to the copy it asks for: the family's own
forward then computes them all. The model needs n times its experts' memory for as long as the block lasts; on exit it is what it
was.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from tokentape.capture.blocks import find_blocks
from tokentape.capture.hooks import Hooked


def experts_of(model: nn.Module) -> dict[int, nn.Module]:
    """Absolute layer -> module with the layer's routed experts as tensors (E, ...). Raises ValueError where there is none."""
    found = {layer: block.experts for layer, block in find_blocks(model).items()}
    for layer, experts in found.items():
        if not hasattr(experts, "num_experts"):
            raise ValueError(
                f"{type(model).__name__}: layer {layer} keeps its experts in a way that is not known; policies that change "
                "precision need one module with tensors of all experts"
            )
    return found


def n_experts_of(experts: nn.Module) -> int:
    """Routed experts in a module of `experts_of`; while they are stacked, all copies."""
    return int(experts.num_experts)  # type: ignore[arg-type]  # torch types any attribute Tensor | Module


def inputs_last(experts: nn.Module, name: str) -> torch.Tensor:
    """A view (E, outputs, inputs) of an expert tensor. Raises ValueError for one that is not plain floating point."""
    weights: torch.Tensor = getattr(experts, name).detach()
    if not weights.is_floating_point() or weights.dtype.itemsize < 2:
        raise ValueError(f"{type(experts).__name__}.{name} is {weights.dtype}; load the model unquantised to slice its experts")
    return weights.transpose(-1, -2) if is_inputs_first(experts) else weights


def is_inputs_first(experts: nn.Module) -> bool:
    """Whether the module keeps its matrices as (inputs, outputs), as GPT-OSS does."""
    return bool(getattr(experts, "is_transposed", False))


class StackedExperts(Hooked):
    """Context manager; a subclass says what the copies are.

    `copy_of` (layer -> (n, k) int or bool: which copy each selection gets) is read by the layer's next forward pass; a layer
    without an entry runs on copy 0.
    """

    def __init__(self, model: nn.Module, n_copies: int) -> None:
        self.model, self.n_copies = model, n_copies
        self.experts = experts_of(model)
        self.copy_of: dict[int, torch.Tensor] = {}

    @abstractmethod
    def stacked(self, layer: int, name: str) -> torch.Tensor:
        """The n copies of a matrix stack (E, ...) one after the other, (n E, ...), typed as the module keeps it."""

    def _enter(self, stack: ExitStack) -> None:
        stack.callback(self.copy_of.clear)
        for layer, experts in self.experts.items():
            self._widen(stack, layer, experts)
            stack.enter_context(experts.register_forward_pre_hook(self._hook(layer, experts), with_kwargs=True))

    @torch.no_grad()
    def _widen(self, stack: ExitStack, layer: int, experts: nn.Module) -> None:
        """Biases are the same in all copies."""
        n_experts = n_experts_of(experts)
        self._replace(stack, experts, "num_experts", self.n_copies * n_experts)
        for name, weights in list(experts.named_parameters(recurse=False)):
            if weights.shape[0] == n_experts:
                made = self.stacked(layer, name) if weights.ndim == 3 else torch.cat([weights.detach()] * self.n_copies)
                self._replace(stack, experts, name, nn.Parameter(made, requires_grad=False))

    def _replace(self, stack: ExitStack, experts: nn.Module, name: str, value: Any) -> None:
        stack.callback(setattr, experts, name, getattr(experts, name))
        setattr(experts, name, value)

    def _hook(self, layer: int, experts: nn.Module) -> Any:
        def send(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            copy = self.copy_of.pop(layer, None)
            if copy is None:
                return args, kwargs
            n_experts = n_experts_of(experts) // self.n_copies
            if "top_k_index" in kwargs:
                return args, {**kwargs, "top_k_index": kwargs["top_k_index"] + n_experts * copy.to(kwargs["top_k_index"])}
            states, ids, *rest = args
            return (states, ids + n_experts * copy.to(ids), *rest), kwargs

        return send
