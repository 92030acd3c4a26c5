"""Which score rule each MoE family of transformers uses, how its router says what it chose, and where the rule's parameters are.

families.toml lists them, read off the routers' and blocks' forward in transformers 5.21 to 5.24; the rules are in
policies/scoring.py, and tests/capture/every_family.py recomputes each from a recorded pass. A family that is not listed is
recorded all the same, with the rule `unknown`: its scores are raw logits and its weights what the model applied.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from tokentape.capture.blocks import MoeBlock, find_blocks
from tokentape.policies.scoring import UNKNOWN

# A router's class less the family's name: Qwen3MoeTopKRouter, DeepseekV4HashRouter, HunYuanMoEV1Gate.
_SUFFIX = re.compile(r"((Top[kK]|Hash|TokenChoice)?Router|Gate)$")


@dataclass(frozen=True)
class Family:
    """A score rule, and where a layer keeps what it needs. An attribute is the router's, or with `block.` its block's.

    attributes: parameter -> attribute. bias: of the values that are ranked, per expert; expert_scale: of the weights.
    speaks: `plain` returns (logits, weights, ids, ...), `probabilities` the same with the logits already softmaxed,
    `dense` (a weight for every expert, logits), `logits` these alone (its block makes the rest). outer_scale: by which a block
    multiplies what its experts return.
    """

    rule: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    bias: str = ""
    expert_scale: str = ""
    speaks: Literal["plain", "probabilities", "dense", "logits"] = "plain"
    outer_scale: str = ""

    @property
    def is_plain(self) -> bool:
        """Whether a changed (logits, weights, ids) in place of the router's is all it takes to reroute a token."""
        return self.speaks == "plain" and not self.outer_scale and not self.expert_scale


def _listed() -> dict[str, Family]:
    """The families of families.toml; one that is `like` another differs in what is said of it."""
    found: dict[str, Family] = {}
    for told in tomllib.loads(Path(__file__).with_name("families.toml").read_text(encoding="utf-8"))["families"]:
        names, like = told.pop("names").split(), told.pop("like", None)
        found |= dict.fromkeys(names, replace(found[like], **told) if like else Family(**told))
    return found


FAMILIES = _listed()
_UNLISTED = Family(UNKNOWN)


def family_of(router: nn.Module) -> Family:
    """The family a router's class belongs to; with the rule `unknown` for one that is not listed.

    Two families let their config choose the function of the logits.
    """
    family = FAMILIES.get(_SUFFIX.sub("", type(router).__name__), _UNLISTED)
    if getattr(router, "expert_selection_fn", None) == "sigmoid":
        return replace(family, rule="sigmoid_bias_groups", attributes={"norm_topk_prob": "norm_topk_prob"})
    function = getattr(router, "score_fn", None)
    if function is not None and "Softplus" not in type(function).__name__ and family is not _UNLISTED:
        return replace(family, rule="sigmoid_bias_groups") if isinstance(function, nn.Sigmoid) else _UNLISTED
    return family


def read_choice(block: MoeBlock, output: Any) -> Any:
    """(logits, weights, ids) as the block applied them, from what its router returned; `output` itself where it is no choice."""
    family = family_of(block.router)
    if family.speaks == "logits" and isinstance(output, torch.Tensor):
        weights, ids = block.module.route_tokens_to_experts(output)  # type: ignore[operator]
        return output, weights, ids
    if not isinstance(output, tuple):
        return output
    if family.speaks == "dense" and len(output) == 2:
        dense, logits = output
        ids = logits.topk(block.router.top_k, dim=-1).indices
        return logits, dense.gather(-1, ids), ids
    output = output[:3]
    if len(output) == 3 and family.speaks == "probabilities":
        output = (output[0].clamp_min(torch.finfo(output[0].dtype).tiny).log(), *output[1:])
    if len(output) == 3 and family.outer_scale:
        output = (output[0], output[1] * outer_scale(block), output[2])
    return output


def outer_scale(block: MoeBlock) -> float:
    """By which a block multiplies what its experts return; 1.0 for most."""
    path = family_of(block.router).outer_scale
    return float(_find(block, path)) if path else 1.0


def score_rule(model: nn.Module, top_k: int) -> tuple[str, dict[str, Any]]:
    """Rule and parameters, as the manifest holds them, for the routers of a model.

    `bias` and `expert_scale` map the layer as text (JSON keys are text) to a value per expert; `token_layers` lists the layers
    whose experts follow from the token id alone.
    """
    blocks = find_blocks(model)
    first = next(iter(blocks.values()))
    family = family_of(first.router)
    if family.rule == UNKNOWN:
        return UNKNOWN, {"top_k": top_k, "router_class": type(first.router).__name__}
    params: dict[str, Any] = {"top_k": top_k, **family.fixed}
    params |= {name: _find(first, attribute) for name, attribute in family.attributes.items()}
    if params.get("norm_topk_prob") not in (None, 0, 1):  # DBRX may take another norm than the sum
        return UNKNOWN, {"top_k": top_k, "router_class": type(first.router).__name__}
    if family.outer_scale:
        params["routed_scaling_factor"] = _find(first, family.outer_scale)
    by_token = [layer for layer, block in blocks.items() if hasattr(block.router, "tid2eid")]
    if by_token:
        params["token_layers"] = by_token
    for name, attribute in (("bias", family.bias), ("expert_scale", family.expert_scale)):
        found = {str(layer): _find(block, attribute) for layer, block in blocks.items() if attribute and layer not in by_token}
        if any(values is not None for values in found.values()):
            params[name] = {layer: values.float().flatten().tolist() for layer, values in found.items()}
    return family.rule, params


def refuse_rerouting(model: nn.Module) -> None:
    """Raises ValueError for a model whose routers' answers cannot be replaced by others."""
    for layer, block in find_blocks(model).items():
        router = block.router
        if not family_of(router).is_plain or hasattr(router, "tid2eid"):
            raise ValueError(
                f"{type(model).__name__}: {type(router).__name__} of layer {layer} can be recorded, but not rerouted (its choice "
                "is more than logits, weights and ids); policies run on its tape instead: tokentape replay"
            )


def _find(block: MoeBlock, path: str) -> Any:
    """An attribute of the router, or with `block.` of the block; None where a config has left it out."""
    found: Any = block.module if path.startswith("block.") else block.router
    for name in path.removeprefix("block.").split("."):
        found = getattr(found, name, None)
    return found
