"""Routing capture: forward hooks on a model's routers, for as long as a `with` block lasts.

    with RoutingCapture(model) as routing:
        model(input_ids)
        step = routing.take()        # what every MoE layer chose in that forward pass

A hook only keeps references to tensors the router has just made; `take` joins the layers and copies them to the host once. The
model computes what it would have computed. A policy's hook registered earlier is seen through: what is recorded was applied.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from tokentape.capture.blocks import MoeBlock, find_blocks
from tokentape.capture.families import read_choice
from tokentape.capture.hooks import Hooked


@dataclass(frozen=True)
class RoutingStep:
    """One forward pass, on the host: scores (L, n, E) or None, weights (L, n, k), ids (L, n, k); tokens as the pass held them."""

    scores: torch.Tensor | None
    weights: torch.Tensor
    ids: torch.Tensor


class RoutingCapture(Hooked):
    """Context manager; `blocks` maps absolute layers to MoE blocks. Raises ValueError on a model without any, or with one that it
    could not record.

    is_first: sees what the routers say themselves, also where a policy's hook changes it.
    """

    def __init__(self, model: nn.Module, with_scores: bool = True, is_first: bool = False) -> None:
        self.blocks = find_blocks(model)
        if not self.blocks:
            name = type(model).__name__
            raise ValueError(f"{name} is a dense model without expert routers; use --tables requests,tokens,attention")
        self.with_scores, self.is_first = with_scores, is_first
        self._checked: set[int] = set()
        self._seen: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def _enter(self, stack: ExitStack) -> None:
        stack.callback(self._seen.clear)
        for layer, block in self.blocks.items():
            stack.enter_context(block.router.register_forward_hook(partial(self._keep, layer, block), prepend=self.is_first))

    def _keep(self, layer: int, block: MoeBlock, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        choice = read_choice(block, output)
        if layer not in self._checked:
            _check_contract(block, layer, choice)
            self._checked.add(layer)
        self._seen.append(choice)

    def take(self, keep: torch.Tensor | None = None) -> RoutingStep:
        """The pass since the last call, copied to the host. keep: (n,) bool, the tokens that are not padding; None: all."""
        seen, self._seen = self._seen, []
        if len(seen) != len(self.blocks):
            raise ValueError(
                f"{len(seen)} router calls in a pass over {len(self.blocks)} MoE layers: the model applies layers several times; "
                "a tape holds one choice of experts per layer and token, so this is not recorded"
            )
        return RoutingStep(
            scores=_join([s[0] for s in seen], keep) if self.with_scores else None,
            weights=_join([s[1] for s in seen], keep),
            ids=_join([s[2] for s in seen], keep),
        )


def _join(tensors: list[torch.Tensor], keep: torch.Tensor | None) -> torch.Tensor:
    """(L, n, width) on the host. Layers on other devices are moved to the first one's, so that the host is waited for once."""
    device = tensors[0].device
    joined = torch.stack(tensors) if all(t.device == device for t in tensors) else torch.stack([t.to(device) for t in tensors])
    if keep is not None:
        joined = joined[:, keep.to(device)]
    return joined.cpu()


def _check_contract(block: MoeBlock, layer: int, output: Any) -> None:
    """Raises ValueError unless a router said (logits [n,E], weights [n,k], integer ids [n,k]) of experts that have weights."""
    where = f"{type(block.router).__name__} of layer {layer}"
    if not (isinstance(output, tuple) and len(output) == 3 and all(isinstance(t, torch.Tensor) for t in output)):
        raise ValueError(f"{where}: expected (logits, weights, ids), got {type(output).__name__}; use transformers 5.21 or newer")
    logits, weights, ids = output
    shapes = tuple(tuple(t.shape) for t in output)
    fits = logits.ndim == 2 and weights.shape == ids.shape and ids.ndim == 2 and len(ids) == len(logits)
    if not fits or ids.shape[1] > logits.shape[1] or ids.is_floating_point() or not logits.is_floating_point():
        expected = "logits [n,E], weights [n,k], integer ids [n,k]"
        raise ValueError(f"{where}: expected {expected}, got {shapes}; use transformers 5.21 or newer")
    if 0 < block.n_weighted < logits.shape[1]:  # more of them are replicas (capture/live/copies.py)
        raise ValueError(
            f"{where} chooses among {logits.shape[1]} experts, but {block.n_weighted} have weights (the others compute nothing); "
            "a tape counts every chosen expert as one that is read, so this is not recorded"
        )
