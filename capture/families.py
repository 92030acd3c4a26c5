"""Which score rule each MoE family of transformers uses, and where its router keeps the rule's parameters.

Read off the routers' forward in transformers 5.21 to 5.23; the rules are in policies/scoring.py. A family that is not listed is
recorded all the same, with the rule `unknown`: its scores are raw logits and its weights what the model applied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from policies.scoring import UNKNOWN

ROUTER_SUFFIX = "topkrouter"


@dataclass(frozen=True)
class Family:
    """A score rule, the router attributes that hold its parameters (parameter -> attribute), and parameters that never vary."""

    rule: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    has_bias: bool = False


_NORM = {"norm_topk_prob": "norm_topk_prob"}
_GROUPS = {"n_group": "num_group", "topk_group": "topk_group", "routed_scaling_factor": "routed_scaling_factor"}
_SIGMOID = Family("sigmoid_bias_groups", _NORM | _GROUPS, has_bias=True)

FAMILIES: dict[str, Family] = {
    "Qwen2Moe": Family("softmax", _NORM),
    "Qwen3Moe": Family("softmax", _NORM),
    "Olmoe": Family("softmax", _NORM),
    "Mixtral": Family("softmax", fixed={"norm_topk_prob": True}),
    "DeepseekV2": Family("softmax", _GROUPS | {"topk_method": "topk_method"}, fixed={"norm_topk_prob": False}),
    "DeepseekV3": _SIGMOID,
    "Glm4Moe": _SIGMOID,
    "Glm4MoeLite": _SIGMOID,
    "GptOss": Family("softmax_topk"),
    "GraniteMoe": Family("softmax_topk"),
    "Phimoe": Family("sparsemixer", {"router_jitter_noise": "router_jitter_noise"}),
}

_BY_ROUTER = {name.lower() + ROUTER_SUFFIX: family for name, family in FAMILIES.items()}


def is_router(module: nn.Module) -> bool:
    """True for the modules whose forward returns (logits, weights, ids): every `*TopKRouter` of transformers 5.21+."""
    return type(module).__name__.lower().endswith(ROUTER_SUFFIX)


def score_rule(routers: Mapping[int, nn.Module], top_k: int) -> tuple[str, dict[str, Any]]:
    """Rule and parameters, as the manifest holds them, for a model's routers (absolute layer -> module).

    `bias` maps the layer as text (JSON keys are text) to the E values added to the sigmoid before choosing.
    """
    first = next(iter(routers.values()))
    family = _BY_ROUTER.get(type(first).__name__.lower())
    if family is None:
        return UNKNOWN, {"top_k": top_k, "router_class": type(first).__name__}
    params: dict[str, Any] = {"top_k": top_k, **family.fixed}
    params |= {name: getattr(first, attribute) for name, attribute in family.attributes.items()}
    if family.has_bias:
        params["bias"] = {str(layer): router.e_score_correction_bias.float().tolist() for layer, router in routers.items()}
    return family.rule, params
