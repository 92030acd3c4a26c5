"""Which score rule each MoE family of transformers uses, how its router says what it chose, and where the rule's parameters are.

Read off the routers' and blocks' forward in transformers 5.21 to 5.24; the rules are in policies/scoring.py, and
tests/capture/every_family.py recomputes each from a recorded pass. A family that is not listed is recorded all the same, with the
rule `unknown`: its scores are raw logits and its weights what the model applied.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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


_NORM = {"norm_topk_prob": "norm_topk_prob"}
_NORMED, _RAW = {"norm_topk_prob": True}, {"norm_topk_prob": False}
_SCALE = {"routed_scaling_factor": "routed_scaling_factor"}
_GROUPS = {"n_group": "num_group", "topk_group": "topk_group"}
_SOFTMAX = Family("softmax", _NORM)
_SOFTMAX_NORMED = Family("softmax", fixed=_NORMED)
_SOFTMAX_TOPK = Family("softmax_topk")
_BIAS = "e_score_correction_bias"
_DEEPSEEK_V2 = Family("softmax", _GROUPS | _SCALE | {"topk_method": "topk_method"}, fixed=_RAW)
_SIGMOID = Family("sigmoid_bias_groups", _NORM | _GROUPS | _SCALE, bias=_BIAS)
_SIGMOID_NORMED = Family("sigmoid_bias_groups", fixed=_NORMED, bias=_BIAS)
_SCALED_OUTSIDE = replace(_SIGMOID_NORMED, outer_scale="block.routed_scaling_factor")
_SQRTSOFTPLUS = Family("sqrtsoftplus_bias_groups", _SCALE, fixed=_NORMED, bias=_BIAS)
_GEMMA = Family("softmax", fixed=_NORMED, expert_scale="per_expert_scale", speaks="probabilities")
_ERNIE = Family("softmax", {"norm_min": "norm_min"}, fixed=_NORMED, bias="moe_statics.e_score_correction_bias")

FAMILIES: dict[str, Family] = {
    **dict.fromkeys(("Qwen2Moe", "Qwen3Moe", "Qwen3Next", "Qwen3OmniMoeThinkerText", "Olmoe", "FlexOlmo", "Mellum"), _SOFTMAX),
    **dict.fromkeys(("Qwen4ExpText", "LaraMini"), _SOFTMAX),
    **dict.fromkeys(("Mixtral", "MiniMax", "Qwen3_5Moe", "Qwen3VLMoeText", "HunYuanMoEV1"), _SOFTMAX_NORMED),
    "Jamba": Family("softmax", fixed=_RAW),
    "Dbrx": Family("softmax", {"norm_topk_prob": "block.moe_normalize_expert_weights"}, speaks="logits"),
    **dict.fromkeys(("DeepseekV2", "DeepseekOcr2Text", "UnlimitedOcrText"), _DEEPSEEK_V2),
    "Mistral4": Family("softmax", _NORM | _GROUPS | _SCALE, fixed={"group_best": 2}),
    "MistralLarge4Text": Family("softmax", _GROUPS | _SCALE, fixed={"group_best": 2, **_NORMED}),
    **dict.fromkeys(("Gemma4Text", "DiffusionGemmaText"), _GEMMA),
    **dict.fromkeys(("Ernie4_5_Moe", "Ernie4_5_VLMoeMoe"), _ERNIE),
    "LongcatFlash": Family("softmax", _SCALE, fixed=_RAW, bias=_BIAS),
    **dict.fromkeys(("GptOss", "GraniteMoe", "GraniteMoeSWA", "GraniteMoeHybrid", "GraniteMoeShared", "AriaText"), _SOFTMAX_TOPK),
    "Phimoe": Family("sparsemixer", {"router_jitter_noise": "router_jitter_noise"}),
    **dict.fromkeys(("DeepseekV3", "DeepseekV32", "Glm4Moe", "Glm4MoeLite", "Glm4vMoeText", "GlmMoeDsa"), _SIGMOID),
    **dict.fromkeys(("Dots1", "Dots3NoteText", "SolarOpen", "HYV4", "AXK1", "BailingHybrid", "KimiLinear"), _SIGMOID),
    "AXK2": replace(_SIGMOID, fixed={"group_floor": 0.0}),  # which lies above what a bias has put below 0
    **dict.fromkeys(("MiMoV2Flash", "NemotronH", "ExaoneMoe", "Glm5NextText", "HYV4VL"), _SIGMOID),
    "Beam": replace(_SIGMOID, attributes=_NORM | _GROUPS, outer_scale="block.routed_scaling_factor"),
    "Afmoe": replace(_SIGMOID_NORMED, attributes={"routed_scaling_factor": "route_scale"}, bias="block.expert_bias"),
    "HYV3": replace(
        _SIGMOID_NORMED, attributes={"routed_scaling_factor": "router_scaling_factor"}, bias="block.e_score_correction_bias"
    ),
    "MiniMaxM2": replace(_SIGMOID_NORMED, bias="block.e_score_correction_bias"),
    **dict.fromkeys(("Laguna", "MiniMaxM3VL", "Step3p7"), _SCALED_OUTSIDE),
    "MuseSpark": replace(_SIGMOID_NORMED, attributes=_SCALE),
    "Lfm2Moe": Family("sigmoid_bias_groups", _NORM | _SCALE, bias="block.expert_bias"),
    "Kolibri1": Family("sigmoid_bias_groups", _NORM, fixed={"bias_on": "logits"}, bias=_BIAS),
    "Flint": Family("sigmoid_bias_groups", _NORM),
    "Llama4": Family("sigmoid_bias_groups", fixed=_RAW, speaks="dense"),
    "Cohere2Moe": Family("softmax_topk"),
    **dict.fromkeys(("DeepseekV4", "Inkling2"), _SQRTSOFTPLUS),
}
_UNLISTED = Family(UNKNOWN)


def family_of(router: nn.Module) -> Family:
    """The family a router's class belongs to; with the rule `unknown` for one that is not listed.

    Two families let their config choose the function of the logits.
    """
    family = FAMILIES.get(_SUFFIX.sub("", type(router).__name__), _UNLISTED)
    if getattr(router, "expert_selection_fn", None) == "sigmoid":
        return replace(family, rule="sigmoid_bias_groups", attributes=_NORM)
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
