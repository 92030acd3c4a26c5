"""The weights a self-drafter reads: low-bit versions of the model's own, put in their place for as long as a draft pass runs.

Routed experts always; with `static` also every linear layer outside the routers (attention, shared and dense parts, head), as
ELMoE-3D reads its static weights as MSB slices. Embeddings and routers stay. Needs the memory of a second copy of what it lowers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from tokentape.capture.blocks import find_routers
from tokentape.capture.sliced_experts import on_inputs
from tokentape.capture.stacked_experts import experts_of
from tokentape.policies.matryoshka import MAT, approximate


class LowWeights:
    """Makes the low-bit copies once; `in_place()` swaps them in. pair None: nothing is swapped."""

    def __init__(self, model: nn.Module, pair: MAT | None, scheme: str, static: bool) -> None:
        self._swaps: list[tuple[nn.Module, str, Tensor, nn.Parameter]] = []
        if pair is None:
            return
        routers = find_routers(model)
        for experts in experts_of(model).values() if routers else ():
            for name, weights in list(experts.named_parameters(recurse=False)):
                if weights.ndim == 3:
                    low = on_inputs(experts, name, lambda w: approximate(w, pair, scheme))
                    self._swaps.append((experts, name, weights, nn.Parameter(low, requires_grad=False)))
        kept = {id(part) for router in routers.values() for part in router.modules()}
        for module in model.modules() if static or not routers else ():
            if isinstance(module, nn.Linear) and id(module) not in kept:
                low = approximate(module.weight.detach().float(), pair, scheme).to(module.weight.dtype)
                self._swaps.append((module, "weight", module.weight, nn.Parameter(low, requires_grad=False)))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model computes with the low-bit weights inside the block."""
        try:
            for module, name, _, low in self._swaps:
                setattr(module, name, low)
            yield
        finally:
            for module, name, high, _ in self._swaps:
                setattr(module, name, high)
