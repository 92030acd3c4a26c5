"""Experts at two precisions inside a live model: high-bit weights and the low-bit ones that are their upper bits.

    with SlicedExperts(model, MAT.parse("MAT42")) as experts:
        experts.is_low[layer] = flags          # (n, k) bool: which selections of the next pass run at the low width
        model(input_ids)

Every layer's expert tensors stand twice in the first dimension, high before low, and a selection at the low width is sent to the
second half: the family's own forward then computes both. Only routed experts are quantised (groups of weights along the input).
The model needs twice its experts' memory for as long as the block lasts; on exit it is what it was.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch import nn

from capture.routing import find_routers
from policies.matryoshka import MAT, approximate
from policies.quantise import GROUP, dequantise, quantise


def experts_of(model: nn.Module) -> dict[int, nn.Module]:
    """Absolute layer -> module with the layer's routed experts as tensors (E, ...). Raises ValueError where there is none."""
    routers = {id(router): layer for layer, router in find_routers(model).items()}
    found = {}
    for module in model.modules():
        layer = next((routers[id(child)] for child in module.children() if id(child) in routers), None)
        experts = getattr(module, "experts", None)
        if layer is not None and isinstance(experts, nn.Module) and hasattr(experts, "num_experts"):
            found[layer] = experts
    missing = sorted(set(routers.values()) - set(found))
    if missing:
        raise ValueError(
            f"{type(model).__name__}: layer {missing[0]} keeps its experts in a way that is not known; policies that change "
            "precision need one module with tensors of all experts"
        )
    return dict(sorted(found.items()))


def on_inputs(experts: nn.Module, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """`change` applied to an expert tensor (E, outputs, inputs) in f32, inputs last; the result as the module keeps it.

    Raises ValueError for a tensor that is not plain floating point.
    """
    weights = getattr(experts, name).detach()
    if not weights.is_floating_point() or weights.dtype.itemsize < 2:
        raise ValueError(f"{type(experts).__name__}.{name} is {weights.dtype}; load the model unquantised to slice its experts")
    along_rows = bool(getattr(experts, "is_transposed", False))  # inputs are then the second axis, not the last
    changed = change((weights.transpose(-1, -2) if along_rows else weights).float().contiguous())
    return (changed.transpose(-1, -2) if along_rows else changed).to(weights.dtype)


class SlicedExperts:
    """Context manager. pair: high and low width in bits; scheme: how low weights follow from high ones (docs/quantise.md).

    `is_low` (layer -> (n, k) bool) is read by the layer's next forward pass; a layer without an entry runs at high precision.
    Raises ValueError for experts that are not plain floating-point tensors.
    """

    def __init__(self, model: nn.Module, pair: MAT, scheme: str = "amat", group: int = GROUP) -> None:
        self.experts, self.pair, self.scheme, self.group = experts_of(model), pair, scheme, group
        self.is_low: dict[int, torch.Tensor] = {}
        self._whole: list[tuple[nn.Module, str, Any]] = []
        self._handles: list[torch.utils.hooks.RemovableHandle] = []

    def __enter__(self) -> SlicedExperts:
        try:
            for layer, experts in self.experts.items():
                self._slice(experts)
                self._handles.append(experts.register_forward_pre_hook(self._hook(layer, experts), with_kwargs=True))
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._restore()

    @torch.no_grad()
    def _slice(self, experts: nn.Module) -> None:
        """Puts the high-bit weights into the tensors' first half and the low-bit ones into the second."""
        n_experts = int(experts.num_experts)  # type: ignore[arg-type]
        self._replace(experts, "num_experts", 2 * n_experts)
        for name, weights in list(experts.named_parameters(recurse=False)):
            if weights.shape[0] != n_experts:
                continue
            halves = [weights.detach(), weights.detach()]
            if weights.ndim == 3:
                high = on_inputs(experts, name, lambda w: dequantise(quantise(w, self.pair.high, self.group)))
                cut = lambda w: approximate(w, self.pair, self.scheme, self.group)  # noqa: E731
                halves = [high, on_inputs(experts, name, cut) if self.pair.dropped else high]
            self._replace(experts, name, nn.Parameter(torch.cat(halves), requires_grad=False))

    def _replace(self, experts: nn.Module, name: str, value: Any) -> None:
        self._whole.append((experts, name, getattr(experts, name)))
        setattr(experts, name, value)

    def _hook(self, layer: int, experts: nn.Module) -> Any:
        def send(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            low = self.is_low.pop(layer, None)
            if low is None:
                return args, kwargs
            n_experts = int(experts.num_experts) // 2  # type: ignore[arg-type]
            if "top_k_index" in kwargs:
                return args, {**kwargs, "top_k_index": kwargs["top_k_index"] + n_experts * low.to(kwargs["top_k_index"])}
            states, ids, *rest = args
            return (states, ids + n_experts * low.to(ids), *rest), kwargs

        return send

    def _restore(self) -> None:
        for handle in self._handles:
            handle.remove()
        for experts, name, value in self._whole:
            setattr(experts, name, value)
        self._handles.clear()
        self._whole.clear()
        self.is_low.clear()
