"""Experts at two precisions inside a live model: high-bit weights and the low-bit ones that are their upper bits.

    with SlicedExperts(model, MAT.parse("MAT42")) as experts:
        experts.copy_of[layer] = flags         # (n, k) bool: which selections of the next pass run at the low width
        model(input_ids)

Only routed experts are quantised (groups of weights along the input).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from tokentape.capture.stacked_experts import StackedExperts, inputs_last, is_inputs_first
from tokentape.policies.matryoshka import MAT, approximate
from tokentape.policies.quantise import GROUP, dequantise, quantise


def on_inputs(experts: nn.Module, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """`change` applied to an expert tensor (E, outputs, inputs) in f32, inputs last; the result as the module keeps it.

    Raises ValueError for a tensor that is not plain floating point.
    """
    weights = inputs_last(experts, name)
    changed = change(weights.float().contiguous())
    return (changed.transpose(-1, -2) if is_inputs_first(experts) else changed).to(weights.dtype)


class SlicedExperts(StackedExperts):
    """pair: high width (copy 0) and low width (copy 1) in bits; scheme: how low weights follow from high ones (docs/quantise.md).

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
