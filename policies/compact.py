"""Router scores as numbers of 11 significant bits (those of f16), but exact wherever a decision would tell the difference.

A score stays as it was recorded where its rounded value would change what its token's experts rank as, by logit or by the score
rule, ties included; so do the largest and the smallest of a token, whose spread Cache-Prior goes by. Then both forms are decided
by the shipped routers at their defaults, with half of the experts resident and with the other half, and which of the top k are
critical; a token for which they differ is kept whole. So decisions by order are the same under every setting; those by value (a
threshold, a share, a bonus) are those of the shipped setting, and at others they differ only where two values lie within 2^-11 of
each other. Columns stay f32: the bytes that rounding clears pack to next to nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.kernels import dispatcher_of
from tokentape.policies.scoring import RULES, gates, ranking
from tokentape.policies.sliced import ROUTERS
from tokentape.policies.sliced.precision import Critical
from tokentape.policies.sliced.ranking import CHOOSE_SIGNATURE

Floats = NDArray[np.float32]


def compacted(scores: Floats, layers: NDArray[Any], rule: str | None, params: Mapping[str, Any], top_k: int) -> Floats:
    """`scores` (n, E) of tokens in absolute layers (n,), rounded where that is safe. rule, params: the manifest's; what a rule
    that is not known ranks by are the logits."""
    found = np.empty_like(scores)
    for layer in np.unique(layers):
        rows = np.flatnonzero(layers == layer)
        found[rows] = _of_layer(scores[rows], rule, params, int(layer), top_k)
    return found


def _of_layer(exact: Floats, rule: str | None, params: Mapping[str, Any], layer: int, top_k: int) -> Floats:
    by_rule = rule in RULES and layer not in params.get("token_layers", ())
    rule = rule if rule in RULES else "softmax"

    def ranks(values: Any) -> Any:
        return ranking(values, rule, params if by_rule else {}, layer)

    with np.errstate(over="ignore"):
        short = exact.astype(np.float16).astype(np.float32)
    kept = ~np.isfinite(short) | (exact == exact.max(axis=1, keepdims=True)) | (exact == exact.min(axis=1, keepdims=True))
    while True:
        found = np.where(kept, exact, short)
        told = kept.copy()
        replayed = [np.asarray(ranks(of), np.float32) for of in (exact, found)]
        for pair in (exact, found), replayed, [ranks(of.astype(np.float64)) for of in (exact, found)]:
            told |= _reordered(*pair)
        both = [_decided(of, values, rule, top_k) for of, values in zip((exact, found), replayed, strict=True)]
        wrong = [(a != b).any(axis=1) for a, b in zip(*both, strict=True)]
        told |= np.logical_or.reduce(wrong)[:, None]
        if (told == kept).all():
            return found
        kept = told


def _reordered(exact: NDArray[Any], found: NDArray[Any]) -> NDArray[np.bool_]:
    """Which values, with the next in falling order, are not told apart as they were, or are and were not."""
    order = np.argsort(-exact, axis=1, kind="stable")
    (a, b), of_pair = (np.take_along_axis(of, order, axis=1) for of in (exact, found)), np.zeros(exact.shape, np.bool_)
    of_pair[:, :-1] = np.sign(_steps(a)) != np.sign(_steps(b))
    of_pair[:, 1:] |= of_pair[:, :-1]
    wrong = np.zeros_like(of_pair)
    np.put_along_axis(wrong, order, of_pair, axis=1)
    return wrong


def _steps(values: NDArray[Any]) -> NDArray[Any]:
    """How far each value is above the next; 0 between two that are ruled out."""
    is_out = np.isneginf(values[:, 1:]) & np.isneginf(values[:, :-1])
    return np.asarray(np.subtract(values[:, :-1], values[:, 1:], where=~is_out, out=np.zeros_like(values[:, 1:])))


def _decided(scores: Floats, values: Floats, rule: str, top_k: int) -> Iterator[NDArray[Any]]:
    """What shipped routers choose, (n, k) each, and which of the top k are critical, of a layer's tokens as decodes."""
    weights, n_experts = gates(scores, rule).astype(np.float32), scores.shape[1]
    natural = np.ascontiguousarray(np.argsort(-values, axis=1, kind="stable")[:, :top_k])
    own = np.take_along_axis(weights, natural, axis=1)
    yield own > Critical().tau * own.sum(axis=1, keepdims=True)
    half, phase = np.random.default_rng(0).integers(0, 2, n_experts, np.uint8), np.zeros(len(scores), np.uint8)
    for router in (of() for of in ROUTERS.values() if all(f.default is not MISSING for f in fields(of))):
        choose = dispatcher_of(router.choose, CHOOSE_SIGNATURE)
        for resident in (half, 1 - half):
            ids, work = np.empty_like(natural), np.empty((2, n_experts), np.int64)
            choose(0, values, weights, natural, resident, phase, router.params(1, n_experts), work, ids)
            yield np.sort(ids, axis=1)
