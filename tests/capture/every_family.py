"""Every MoE architecture of the installed transformers, tiny and at random weights: recorded right, or refused with the reason?

python tests/capture/every_family.py docs/capture.md      rewrites what stands between `<!-- families -->` and `<!-- end -->`
"""

import json
import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tiny_families import disagreements, randomised
from torch import nn
from transformers import CONFIG_MAPPING
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import model_type_to_module_name

from tokentape.capture import measure, models
from tokentape.capture.blocks import find_blocks
from tokentape.capture.families import outer_scale, score_rule
from tokentape.capture.routing import RoutingCapture
from tokentape.policies.scoring import UNKNOWN, by_weight, topk_from_scores, weights_of
from tokentape.warehouse.model_config import from_config

VOCAB = 97
# Fields by name, wherever they stand in a config and are given.
TINY: dict[str, Any] = {
    name: value for value, names in json.loads((Path(__file__).parent / "tiny_fields.json").read_text()) for name in names
}
_SKIPPED = {"model_type", "id2label", "label2id", "architectures", "rope_parameters", "per_layer_config"}
# What a model_type needs besides, in the part of its config where it stands.
OVERRIDES: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "tiny_overrides.json").read_text())
HOLDS_EXPERTS = re.compile(r"class \w*(Experts|MoE|MoA)\w*\(")


def architectures() -> dict[str, str]:
    """Class name -> model_type, of every generating or classifying model whose code has experts."""
    folder = Path(transformers.__file__).parent / "models"
    holding = {path.parent.name for path in folder.glob("*/modeling_*.py") if HOLDS_EXPERTS.search(path.read_text())}
    found: dict[str, str] = {}
    for task in ("CAUSAL_LM", "MULTIMODAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "TOKEN_CLASSIFICATION"):
        known = {model_type_to_module_name(t) for t in found.values()}
        for model_type, name in getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES").items():
            module = model_type_to_module_name(model_type)
            if module in holding and not (task == "TOKEN_CLASSIFICATION" and module in known):
                found.setdefault(name, model_type)
    return found


def tiny_config(model_type: str, **more: Any) -> Any:
    """The smallest config of a kind that still has experts in some of its layers, with `more` in it."""
    return CONFIG_MAPPING[model_type](**_shrunk(CONFIG_MAPPING[model_type]().to_dict(), model_type) | more)


def _shrunk(config: dict[str, Any], model_type: str) -> dict[str, Any]:
    """Lists go: each config makes its own for its number of layers."""
    over, made = OVERRIDES.get(model_type, {}), {}
    for name, value in config.items():
        if name in _SKIPPED:
            continue
        if isinstance(value, dict) and name.endswith("_config"):
            kind = value.get("model_type", "")
            made[name] = _shrunk(value, kind) | ({"model_type": kind} if kind else {})
            made[name] |= over.get(name, {})
        elif name in TINY and value is not None and not isinstance(value, list | dict):
            made[name] = TINY[name]
    return made | {name: value for name, value in over.items() if name not in made or not name.endswith("_config")}


def build(model_type: str, **more: Any) -> nn.Module:
    """The tiny model, with `more` in its config; a table of experts by token id names k different ones."""
    config = tiny_config(model_type, **more)
    model = randomised(models.auto_class(config).from_config(config))
    generator = torch.Generator().manual_seed(6)
    for block in find_blocks(model).values():
        if hasattr(block.router, "tid2eid"):
            shape = (len(block.router.tid2eid), block.router.num_experts)
            block.router.tid2eid.copy_(torch.rand(shape, generator=generator).argsort(-1)[:, : block.router.top_k])
    return model


@dataclass(frozen=True)
class Seen:
    """What came of an architecture: its rule and parameters, or why it is refused."""

    name: str
    rule: str = ""
    params: tuple[str, ...] = ()
    reason: str = ""


@cache
def examine(name: str) -> Seen:
    """Records a pass of an architecture and checks it against what its experts were given and what the score rule says.

    Raises AssertionError where a layer is recorded wrongly or missing, or the config is read otherwise than the model is; a
    ValueError of ours is a refusal.
    """
    model_type = architectures()[name]
    config = tiny_config(model_type).to_dict()
    try:
        from_config(config)
        model = build(model_type)
        geometry = measure.geometry(model)
    except ValueError as error:
        return Seen(name, reason=one_line(error))
    check_pass(model)
    assert geometry.moe_layers == tuple(find_blocks(model)) != ()
    stated = from_config(model.config.to_dict())
    for name_of in ("moe_layers", "n_experts", "top_k", "expert_intermediate"):
        assert getattr(stated, name_of) == getattr(geometry, name_of), name_of  # the config is read as the tensors are
    rule, params = score_rule(model, geometry.top_k)
    return Seen(name, rule, tuple(sorted(params)))


def one_line(error: Exception) -> str:
    assert "\n" not in str(error), error
    return str(error)


def check_pass(model: nn.Module, n_tokens: int = 12) -> None:
    """One pass: bit-equal logits, every MoE layer, ids and weights as the experts got them, and as the scores explain them."""
    ids = torch.randint(3, VOCAB, (2, n_tokens), generator=torch.Generator().manual_seed(5))
    given: dict[int, list[torch.Tensor]] = {}
    blocks = find_blocks(model)
    with torch.inference_mode():
        plain = model(input_ids=ids, use_cache=False).logits
        handles = [b.experts.register_forward_pre_hook(_keep(given, layer), with_kwargs=True) for layer, b in blocks.items()]
        with RoutingCapture(model) as routing:
            watched = model(input_ids=ids, use_cache=False).logits
            step = routing.take()
        for handle in handles:
            handle.remove()
    assert torch.equal(plain, watched)
    top_k = step.ids.shape[-1]
    assert step.ids.shape == (len(blocks), ids.numel(), top_k)
    rule, params = score_rule(model, top_k)
    for index, (layer, block) in enumerate(blocks.items()):
        chosen, weights, scores = step.ids[index].numpy(), step.weights[index].float().numpy(), step.scores[index].float().numpy()
        _check_given(chosen, weights, given[layer], outer_scale(block))
        assert {len(set(row)) for row in chosen.tolist()} == {top_k}
        if layer in params.get("token_layers", ()):
            explained = weights_of(scores.astype(np.float64), chosen, rule, params, layer)
            np.testing.assert_allclose(weights, explained, rtol=2e-5, atol=1e-7)
        elif rule != UNKNOWN:
            assert not disagreements(chosen, scores, rule, params, layer).any(), (rule, layer)
            ids_again, weights_again = topk_from_scores(scores, rule, params, layer)
            ids_sorted, weights_sorted = by_weight(chosen, weights)
            np.testing.assert_array_equal(ids_sorted, ids_again)
            np.testing.assert_allclose(weights_sorted, weights_again, rtol=2e-5, atol=1e-7)


def _keep(given: dict[int, list[torch.Tensor]], layer: int) -> Any:
    def keep(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given[layer] = [t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor)]

    return keep


def _check_given(ids: np.ndarray, weights: np.ndarray, given: list[torch.Tensor], scale: float) -> None:
    if len(given) == 3:
        _, their_ids, their_weights = (t.numpy() for t in given)
        np.testing.assert_array_equal(ids, their_ids)
        np.testing.assert_allclose(weights, their_weights * scale, rtol=1e-6)
        return
    (rows,) = given  # Llama-4: every expert gets all tokens, each times its weight
    sizes = rows.unflatten(0, (-1, len(ids))).norm(dim=-1).T.numpy()  # (n, E)
    assert ((sizes > 0).sum(axis=1) == ids.shape[1]).all()
    assert (np.take_along_axis(sizes, ids, axis=1) > 0).all()


# ------------------------------------------------------------------------------------------------------------- docs/capture.md

_BLOCK = re.compile(r"(<!-- families -->\n).*?(<!-- end -->)", re.DOTALL)


def table(seen: list[Seen]) -> str:
    """Architectures by what is recorded of them, then those that are refused, as Markdown."""
    recorded: dict[tuple[str, str], list[str]] = {}
    refused: dict[str, list[str]] = {}
    for one in seen:
        if one.reason:
            refused.setdefault(one.reason, []).append(one.name)
        else:
            recorded.setdefault((one.rule, ", ".join(p for p in one.params if p != "top_k")), []).append(one.name)
    lines = ["| architectures | score rule | parameters |", "|---|---|---|"]
    for (rule, params), names in sorted(recorded.items()):
        lines.append(f"| {', '.join(sorted(names))} | {rule} | {params or 'none'} |")
    lines += ["", "| refused | why |", "|---|---|"]
    lines += [f"| {', '.join(sorted(names))} | {reason} |" for reason, names in sorted(refused.items(), key=lambda r: r[1])]
    return "\n".join(lines) + "\n"


def rewritten(text: str) -> str:
    made = table([examine(name) for name in sorted(architectures())])
    return _BLOCK.sub(lambda match: match[1] + made + match[2], text)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(rewritten(path.read_text(encoding="utf-8")), encoding="utf-8")
