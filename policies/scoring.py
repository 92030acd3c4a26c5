"""From raw router logits to the experts a model chose: the score rules of the MoE families, in numpy.

No torch here: replay, importers, checks and tests recompute a recorded top-k from recorded scores with it. Which family uses
which rule stands in capture/families.toml. Sources: the routers' forward in transformers 5.21 to 5.24
(models/<family>/modeling_<family>.py).

    softmax                   weights = softmax over all experts; optionally only the best groups compete (DeepSeek-V2)
    softmax_topk              weights = softmax over the chosen logits
    sigmoid_bias_groups       choice by sigmoid + bias within the best groups (a group's score: its two best), weights = sigmoid
    sqrtsoftplus_bias_groups  the same with the square root of softplus
    sparsemixer               two experts; each weight a softmax over the logits within 2 * jitter of the best one left

Parameters, each only where a family has it: norm_topk_prob, norm_min (the least sum that divides) and routed_scaling_factor of
the weights, expert_scale a factor per layer and expert; bias per layer and expert, added to what is ranked (bias_on: to logits
instead); n_group, topk_group, how many of a group's values count (topk_method, group_best) and as what the experts of others rank
(group_floor; without it they do not); token_layers, whose experts follow from the token id alone.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

SIGMOID, SQRTSOFTPLUS = "sigmoid_bias_groups", "sqrtsoftplus_bias_groups"
RULES = ("softmax", "softmax_topk", SIGMOID, SQRTSOFTPLUS, "sparsemixer")
UNKNOWN = "unknown"  # the model ran and was recorded; how it turns logits into weights is not in families.toml


def by_weight(ids: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both (n, k) arrays with each row sorted by falling weight; equal weights by rising id."""
    order = np.lexsort((ids, -weights), axis=-1)
    return np.take_along_axis(ids, order, axis=-1), np.take_along_axis(weights, order, axis=-1)


def topk_from_scores(
    scores: np.ndarray, rule: str, params: Mapping[str, Any], layer: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The experts and weights a router derives from `scores`.

    scores: (n, E) raw router logits. params: `score_params` of the manifest. layer: absolute layer, needed where the rule has a
    bias per layer. Returns ids (n, k) u16 and weights (n, k) f32, each row by falling weight. Logits that tie at the k-th place
    leave the choice open; here the lower id wins, an engine may differ.
    Raises ValueError for an unknown rule, NaN scores or a layer without bias.
    """
    if rule not in RULES:
        raise ValueError(f"score rule {rule!r}: scores cannot be turned into a top-k; known rules: {', '.join(RULES)}")
    if np.isnan(scores).any():
        raise ValueError(f"scores hold NaN (first in row {int(np.isnan(scores).any(axis=-1).argmax())}); record them again")
    if not 0 < int(params["top_k"]) <= scores.shape[-1]:
        raise ValueError(f"top_k {params['top_k']} must lie in 1..{scores.shape[-1]} (experts per layer)")
    wide, k = scores.astype(np.float64), int(params["top_k"])
    ids = np.argsort(-ranking(wide, rule, params, layer), axis=-1, kind="stable")[:, :k]
    weights = weights_of(wide, ids, rule, params, layer).astype(np.float32)
    ids, weights = by_weight(ids, weights)
    return ids.astype(np.uint16), weights


def ranking(scores: np.ndarray, rule: str, params: Mapping[str, Any], layer: int | None) -> np.ndarray:
    """(n, E) values whose largest k are the chosen experts; -inf, or `group_floor`, outside the groups that compete."""
    if layer in params.get("token_layers", ()):
        raise ValueError(f"score rule {rule}: the experts of layer {layer} follow from the token id, not from scores")
    is_biased = rule in (SIGMOID, SQRTSOFTPLUS)
    values, best = scores, params.get("group_best", 2 if is_biased else 1)
    # Elsewhere the logits rank as the weights do.
    if (is_biased or "bias" in params or best > 1) and params.get("bias_on") != "logits":
        values = gates(scores, rule)
    if "bias" in params:
        values = values + np.asarray(_of_layer("bias", rule, params, layer), dtype=np.float64)
    if params.get("topk_method", "group_limited_greedy") != "group_limited_greedy" or (params.get("n_group") or 1) == 1:
        return values
    return _best_groups(values, params, best)


def _of_layer(name: str, rule: str, params: Mapping[str, Any], layer: int | None) -> Any:
    found = params[name].get(str(layer))
    if found is None:
        raise ValueError(f"score rule {rule}: no {name} for layer {layer}; layers with one: {', '.join(params[name])}")
    return found


def _best_groups(ranking: np.ndarray, params: Mapping[str, Any], best: int) -> np.ndarray:
    """`ranking` with -inf, or `group_floor`, outside the `topk_group` groups whose `best` largest values sum highest."""
    n, n_experts = ranking.shape
    groups = ranking.reshape(n, params["n_group"], -1)
    group_scores = np.sort(groups, axis=-1)[..., -best:].sum(axis=-1)
    kept = np.argsort(-group_scores, axis=-1, kind="stable")[:, : params["topk_group"]]
    masked = np.full_like(groups, params.get("group_floor", -np.inf))
    np.put_along_axis(masked, kept[..., None], np.take_along_axis(groups, kept[..., None], axis=1), axis=1)
    return masked.reshape(n, n_experts)


def gates(scores: np.ndarray, rule: str) -> np.ndarray:
    """(n, E) weight of every expert before a top-k is taken: sigmoid, square root of softplus, or softmax of the logits."""
    if rule == SQRTSOFTPLUS:
        return np.asarray(np.sqrt(np.logaddexp(0.0, scores)))
    return np.asarray(1.0 / (1.0 + np.exp(-scores))) if rule == SIGMOID else _softmax(scores)


def weights_of(scores: np.ndarray, ids: np.ndarray, rule: str, params: Mapping[str, Any], layer: int | None = None) -> np.ndarray:
    """(n, k) weights the family gives to chosen experts `ids` (n, k), from unmodified `scores` (n, E) f64.

    layer: needed where the rule has a factor per layer and expert.
    """
    if rule == "sparsemixer":
        return _sparsemixer(scores, ids, params["router_jitter_noise"])
    if rule == "softmax_topk":
        return _softmax(np.take_along_axis(scores, ids, axis=-1))
    weights = np.take_along_axis(gates(scores, rule), ids, axis=-1)
    if params["norm_topk_prob"]:
        weights = weights / np.maximum(weights.sum(axis=-1, keepdims=True) + 1e-20, params.get("norm_min", 0.0))
    if "expert_scale" in params:
        weights = weights * np.asarray(_of_layer("expert_scale", rule, params, layer), dtype=np.float64)[ids]
    return np.asarray(weights * params.get("routed_scaling_factor", 1.0))


def _sparsemixer(scores: np.ndarray, ids: np.ndarray, jitter: float) -> np.ndarray:
    """Inference form of SparseMixer-v2 (arXiv 2409.12136) as PhiMoE applies it; the two weights need not sum to 1."""
    left, weights = scores.copy(), np.empty(ids.shape)
    for rank in range(ids.shape[1]):
        best = left.max(axis=-1, keepdims=True)
        near = (best - scores) / np.maximum(np.abs(scores), best) <= 2 * jitter
        weights[:, rank] = np.take_along_axis(_softmax(np.where(near, left, -np.inf)), ids[:, rank : rank + 1], axis=-1)[:, 0]
        np.put_along_axis(left, ids[:, rank : rank + 1], -np.inf, axis=-1)
    return weights


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))
