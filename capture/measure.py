"""What a loaded model says about itself: geometry with the config's numbers checked against the real tensors.

The config is read by warehouse.model_config. Where tensors disagree about an expert's size, the tensors win; where the
model's MoE layers are not those of the config, or a router says something else than its experts are given, it is refused: a
tape must not lack a layer. A tape's `recorded` expert size is what an expert occupies as loaded.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from transformers import PreTrainedModel

from tokentape.capture.blocks import MoeBlock, find_blocks
from tokentape.capture.families import outer_scale
from tokentape.capture.models import input_table
from tokentape.capture.routing import RoutingCapture
from tokentape.warehouse.geometry import Geometry
from tokentape.warehouse.model_config import from_config

_PROBE_TOKENS = 16


def geometry(model: PreTrainedModel) -> Geometry:
    """Geometry of a loaded model; experts and top-k from its routers, expert sizes from its tensors.

    Raises ValueError naming the layer that is not recorded as the config or the layer's own experts have it.
    """
    said, blocks = stated(model), find_blocks(model)
    for layer in sorted(set(said.moe_layers) ^ set(blocks)):
        differs = f"has no experts, but {blocks[layer].name} holds some" if layer in blocks else "has experts, but none is found"
        how = "how this model is built is not known: nothing is recorded"
        raise ValueError(f"{type(model).__name__}: by its config layer {layer} {differs}; {how}")
    if not blocks:
        return said
    n_experts, top_k = _probe(model, blocks)
    update: dict[str, object] = {"n_experts": n_experts, "top_k": top_k}
    sizes = [size for block in blocks.values() if (size := _expert_size(block, n_experts)) is not None]
    if len(sizes) == len(blocks):
        expert_bytes = tuple(n_bytes for n_bytes, _ in sizes)
        update["recorded_expert_bytes"] = expert_bytes
        update["recorded_dense_bytes"] = _dense_bytes(model, expert_bytes, n_experts)
        measured = sizes[0][1]
        # Biases make an expert a little larger than its matrices; only another width is a disagreement.
        width = None if measured is None else measured // (said.ffn_matrices * said.moe_hidden)
        if width is not None and width != said.expert_intermediate:
            update["expert_intermediate"] = width
    return Geometry.model_validate(said.model_dump() | update)


def stated(model: PreTrainedModel) -> Geometry:
    """As the config alone has it. Raises ValueError naming a field."""
    config = model.config.to_dict()
    return from_config(config | {"architectures": config.get("architectures") or [type(model).__name__]})


@torch.inference_mode()
def _probe(model: PreTrainedModel, blocks: Mapping[int, MoeBlock]) -> tuple[int, int]:
    """(experts, top-k) as one forward pass shows them. Raises ValueError where a layer's experts get something else."""
    table = input_table(model)
    given: dict[int, tuple[Any, ...]] = {}
    with RoutingCapture(model) as routing, ExitStack() as stack:
        for layer, block in blocks.items():
            note = lambda module, args, kwargs, layer=layer: given.update({layer: (*args, *kwargs.values())})  # noqa: E731
            stack.enter_context(block.experts.register_forward_pre_hook(note, with_kwargs=True))
        model(input_ids=torch.arange(min(_PROBE_TOKENS, len(table)), device=table.device)[None], use_cache=False)
        step = routing.take()
    assert step.scores is not None
    for index, (layer, block) in enumerate(blocks.items()):
        if not _is_given(step.ids[index], step.weights[index], given.get(layer, ()), outer_scale(block)):
            raise ValueError(
                f"{type(model).__name__}: the experts of layer {layer} are given other ids or weights than its "
                f"{type(block.router).__name__} returns; how this model routes is not known: nothing is recorded"
            )
    return step.scores.shape[-1], step.ids.shape[-1]


def _is_given(ids: torch.Tensor, weights: torch.Tensor, given: tuple[Any, ...], scale: float) -> bool:
    """Whether experts that were called with `given` got these ids and weights (n, k)."""
    tensors = [t.cpu() for t in given if isinstance(t, torch.Tensor)]
    chosen = [t for t in tensors if t.shape == ids.shape]
    if not chosen:  # the tokens themselves, once per expert, times its weight: 0 where it was not chosen
        rows = tensors[0].unflatten(0, (-1, len(ids))) if len(tensors) == 1 and len(tensors[0]) % len(ids) == 0 else None
        is_used = None if rows is None else (rows != 0).any(dim=-1).T
        return is_used is not None and torch.equal(is_used, torch.zeros_like(is_used).scatter(1, ids.long(), True))
    has_ids = any(torch.equal(t.long(), ids.long()) for t in chosen if not t.is_floating_point())
    return has_ids and any(torch.allclose(t * scale, weights, equal_nan=True) for t in chosen if t.is_floating_point())


def _expert_size(block: MoeBlock, n_experts: int) -> tuple[int, int | None] | None:
    """(bytes, parameters) of one expert, from the tensors that hold a layer's (one slice per expert); None where they are kept
    otherwise, and parameters where a quantiser has packed them."""
    tensors = [t for t in (*block.experts.parameters(), *block.experts.buffers()) if t.ndim and t.shape[0] == n_experts]
    if not tensors:
        return None
    plain = all(t.is_floating_point() and t.element_size() > 1 for t in tensors)
    matrices = sum(t.numel() for t in tensors if t.ndim == 3) // n_experts
    return _bytes(tensors) // n_experts, matrices if plain else None


def _dense_bytes(model: PreTrainedModel, expert_bytes: Sequence[int], n_experts: int) -> tuple[int, ...]:
    """Bytes a decode token reads besides routed experts, shared evenly by the MoE layers (the remainder on the last)."""
    table = input_table(model)
    head = model.get_output_embeddings()
    is_tied = head is not None and head.weight is table
    total = _bytes((*model.parameters(), *model.buffers())) - n_experts * sum(expert_bytes)
    total -= 0 if is_tied else _bytes([table])  # a token reads one row of the embedding table, but all of the output head
    each, n_others = total // len(expert_bytes), len(expert_bytes) - 1
    return (*[each] * n_others, total - each * n_others)


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)
