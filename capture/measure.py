"""What a loaded model says about itself: geometry with the config's numbers checked against the real tensors.

The config is read by warehouse.geometry.from_config; where tensors disagree, the tensors win. A tape's `recorded` expert size is
what an expert occupies as loaded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel

from capture.routing import RoutingCapture, find_routers, layer_of
from warehouse.geometry import Geometry, from_config


@dataclass(frozen=True)
class _Experts:
    """The routed experts of one layer."""

    bytes_each: int
    params_each: int | None  # None: packed by a quantiser


def geometry(model: PreTrainedModel) -> Geometry:
    """Geometry of a loaded model; MoE layers, experts and top-k from its routers, expert sizes from its tensors."""
    config = model.config.to_dict()
    config.setdefault("architectures", None)
    config["architectures"] = config["architectures"] or [type(model).__name__]
    stated = from_config(config)
    if not find_routers(model):
        return stated.model_copy(update={"moe_layers": (), "n_experts": 0, "top_k": 0})
    layers, n_experts, top_k = _probe(model)
    experts = _experts(model, n_experts)
    update: dict[str, object] = {"moe_layers": layers, "n_experts": n_experts, "top_k": top_k}
    if all(layer in experts for layer in layers):
        update["recorded_expert_bytes"] = tuple(experts[layer].bytes_each for layer in layers)
        update["recorded_dense_bytes"] = _dense_bytes(model, layers, experts, n_experts)
        measured = experts[layers[0]].params_each
        # Biases make an expert a little larger than its matrices; only another width is a disagreement.
        width = None if measured is None else measured // (stated.ffn_matrices * stated.hidden)
        if width is not None and width != stated.expert_intermediate:
            update["expert_intermediate"] = width
    return Geometry.model_validate(stated.model_dump() | update)


@torch.inference_mode()
def _probe(model: PreTrainedModel) -> tuple[tuple[int, ...], int, int]:
    """(MoE layers, experts, top-k) as one forward pass over two tokens shows them; asserts the routers' contract."""
    device = model.get_input_embeddings().weight.device
    with RoutingCapture(model) as routing:
        model(input_ids=torch.tensor([[0, 1]], device=device), use_cache=False)
        step = routing.take()
    assert step.scores is not None
    return routing.layers, step.scores.shape[-1], step.ids.shape[-1]


def _experts(model: nn.Module, n_experts: int) -> dict[int, _Experts]:
    """Absolute layer -> sizes, from the module that holds a layer's experts (3-D tensors, one slice per expert)."""
    found = {}
    for name, module in model.named_modules():
        if not type(module).__name__.endswith("Experts"):
            continue
        tensors = [t for t in (*module.parameters(), *module.buffers()) if t.ndim and t.shape[0] == n_experts]
        if not tensors:
            continue
        plain = all(t.is_floating_point() and t.element_size() > 1 for t in tensors)
        matrices = sum(t.numel() for t in tensors if t.ndim == 3) // n_experts
        found[layer_of(name)] = _Experts(_bytes(tensors) // n_experts, matrices if plain else None)
    return found


def _dense_bytes(
    model: PreTrainedModel, layers: tuple[int, ...], experts: dict[int, _Experts], n_experts: int
) -> tuple[int, ...]:
    """Bytes a decode token reads besides routed experts, shared evenly by the MoE layers (the remainder on the last)."""
    table = model.get_input_embeddings().weight
    head = model.get_output_embeddings()
    is_tied = head is not None and head.weight is table
    total = _bytes((*model.parameters(), *model.buffers())) - sum(e.bytes_each * n_experts for e in experts.values())
    total -= 0 if is_tied else _bytes([table])  # a token reads one row of the embedding table, but all of the output head
    each = total // len(layers)
    return (*([each] * (len(layers) - 1)), total - each * (len(layers) - 1))


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)
