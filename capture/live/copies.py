"""Experts by bits inside a live model: several copies of a layer's experts at once, or low-bit ones in place of all.

Copies: every expert tensor stands n times in the first dimension, and a selection is sent to the copy it asks for: the family's
own forward then computes them all. The model needs n times its experts' memory for as long as the block lasts; on exit it is what
it was.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from tokentape.capture.blocks import find_blocks
from tokentape.capture.hooks import Hooked
from tokentape.policies.matryoshka import MAT, approximate
from tokentape.policies.quantise import GROUP, dequantise, quantise


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
            stack.enter_context(experts.register_forward_pre_hook(partial(self._send, layer), with_kwargs=True))

    @torch.no_grad()
    def _widen(self, stack: ExitStack, layer: int, experts: nn.Module) -> None:
        """Biases are the same in all copies."""
        n_experts = n_experts_of(experts)
        _replace(stack, experts, "num_experts", self.n_copies * n_experts)
        for name, weights in list(experts.named_parameters(recurse=False)):
            if weights.shape[0] == n_experts:
                made = self.stacked(layer, name) if weights.ndim == 3 else torch.cat([weights.detach()] * self.n_copies)
                _replace(stack, experts, name, nn.Parameter(made, requires_grad=False))

    def _send(self, layer: int, experts: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The experts' arguments, every selection's id that of its copy."""
        copy = self.copy_of.pop(layer, None)
        if copy is None:
            return args, kwargs
        n_experts = n_experts_of(experts) // self.n_copies
        if "top_k_index" in kwargs:
            return args, {**kwargs, "top_k_index": kwargs["top_k_index"] + n_experts * copy.to(kwargs["top_k_index"])}
        states, ids, *rest = args
        return (states, ids + n_experts * copy.to(ids), *rest), kwargs


def on_inputs(experts: nn.Module, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """`change` applied to an expert tensor (E, outputs, inputs) in f32, inputs last; the result as the module keeps it.

    Raises ValueError for a tensor that is not plain floating point.
    """
    weights = inputs_last(experts, name)
    changed = change(weights.float().contiguous())
    return (changed.transpose(-1, -2) if is_inputs_first(experts) else changed).to(weights.dtype)


class SlicedExperts(StackedExperts):
    """pair: high width (copy 0) and low width (copy 1) in bits; scheme: how low weights follow from high ones (docs/quantise.md).

        with SlicedExperts(model, MAT.parse("MAT42")) as experts:
            experts.copy_of[layer] = flags         # (n, k) bool: which selections of the next pass run at the low width
            model(input_ids)

    Raises ValueError for experts that are not plain floating-point tensors.
    """

    def __init__(self, model: nn.Module, pair: MAT, scheme: str = "amat", group: int = GROUP) -> None:
        super().__init__(model, n_copies=2)
        self.pair, self.scheme, self.group = pair, scheme, group

    def stacked(self, layer: int, name: str) -> torch.Tensor:
        experts = self.experts[layer]
        high = on_inputs(experts, name, lambda w: dequantise(quantise(w, self.pair.high, self.group)))
        cut = lambda w: approximate(w, self.pair, self.scheme, self.group)  # noqa: E731
        return torch.cat([high, on_inputs(experts, name, cut) if self.pair.dropped else high])


class LowWeights:
    """What a self-drafter reads: low-bit versions of the model's weights, made once; `in_place()` puts it in. pair None: nothing.

    Routed experts always; with `static` also every linear layer outside the routers (attention, shared and dense parts, head), as
    ELMoE-3D reads its static weights as MSB slices. Embeddings and routers stay. Needs the memory of what it lowers once more.
    """

    def __init__(self, model: nn.Module, pair: MAT | None, scheme: str, static: bool) -> None:
        self._swaps: list[tuple[nn.Module, str, Any]] = []
        if pair is None:
            return
        routers = [block.router for block in find_blocks(model).values()]
        for experts in experts_of(model).values() if routers else ():
            self._swaps.append((experts, "num_experts", n_experts_of(experts)))  # fewer than copies, where there are some
            for name, weights in list(experts.named_parameters(recurse=False)):
                if weights.ndim == 3:
                    low = on_inputs(experts, name, lambda w: approximate(w, pair, scheme))
                    self._swaps.append((experts, name, nn.Parameter(low, requires_grad=False)))
        kept = {id(part) for router in routers for part in router.modules()}
        for module in model.modules() if static or not routers else ():
            if isinstance(module, nn.Linear) and id(module) not in kept:
                low = approximate(module.weight.detach().float(), pair, scheme).to(module.weight.dtype)
                self._swaps.append((module, "weight", nn.Parameter(low, requires_grad=False)))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model computes with the low-bit weights inside the block."""
        with ExitStack() as stack:
            for swap in self._swaps:
                _replace(stack, *swap)
            yield


def _replace(stack: ExitStack, module: nn.Module, name: str, value: Any) -> None:
    """Puts a value in place of an attribute, until the stack ends."""
    stack.callback(setattr, module, name, getattr(module, name))
    setattr(module, name, value)
