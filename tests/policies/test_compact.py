"""Scores of 11 bits: a row by hand, every order kept under every rule, and that rounding alone would lose some."""

import numpy as np
import pytest

from tokentape.policies.compact import compacted
from tokentape.policies.scoring import ranking, topk_from_scores

LAYERS = np.repeat([0, 3], 400)
BIAS = {str(layer): np.random.default_rng(layer).normal(0.0, 0.02, 32).tolist() for layer in (0, 3)}
RULES = {
    "softmax": {"norm_topk_prob": True},
    "softmax_topk": {},
    "sparsemixer": {"router_jitter_noise": 0.01},
    "sigmoid_bias_groups": {"norm_topk_prob": True, "bias": BIAS, "n_group": 4, "topk_group": 2},
    "sqrtsoftplus_bias_groups": {"norm_topk_prob": True, "bias": BIAS},
    "unknown": {},
}


def rounded(scores):
    return scores.astype(np.float16).astype(np.float32)


def drawn(seed=0):
    """(800, 32) f32, of which some tie and some lie a rounding apart."""
    scores = np.random.default_rng(seed).normal(0.0, 2.0, (800, 32)).astype(np.float32)
    scores[::7, 5], scores[::11, 9] = scores[::7, 6], np.nextafter(scores[::11, 8], np.float32(np.inf))
    return scores


def order(values):
    """(n, E, E) whether one is above, level with or below another."""
    with np.errstate(invalid="ignore"):
        return np.sign(np.nan_to_num(values[:, :, None] - values[:, None, :], nan=0.0))


def test_a_row_by_hand():
    row = np.array([[3.3333333, 1.00001, 1.0, 0.7000001, 0.7, 0.25, 0.2000001, -5.5555555]], np.float32)
    found = compacted(row, np.zeros(1), "softmax", {"top_k": 2}, 2)
    # 0.25 is an f16; 0.2000001 stands alone and is rounded; two pairs would tie, and the ends are exact
    assert found.tolist() == [[*row[0, :6].tolist(), float(np.float16(0.2)), row[0, 7].item()]]


def test_what_is_beyond_f16_stays():
    row = np.array([[70_000.0, 66_000.0, 2.0, 1.0, -70_000.0, 1e-9]], np.float32)
    assert compacted(row, np.zeros(1), "unknown", {}, 2)[0, [0, 1, 4]].tolist() == [70_000.0, 66_000.0, -70_000.0]


@pytest.mark.parametrize("rule", RULES)
def test_every_order_is_kept_and_nearly_all_is_rounded(rule):
    exact, params = drawn(), RULES[rule] | {"top_k": 2}
    found = compacted(exact, LAYERS, rule, params, 2)
    assert (order(found) == order(exact)).all()
    assert (np.abs(found - exact) <= np.abs(exact) * 2.0**-11 + 2.0**-25).all()
    assert (np.ptp(found, axis=1) == np.ptp(exact, axis=1)).all()
    assert (found == rounded(exact)).mean() > 0.85
    if rule == "unknown":
        return
    for layer in (0, 3):
        told = [of[layer == LAYERS] for of in (exact, found)]
        ranks = [ranking(of, rule, params, layer).astype(np.float32) for of in told]
        assert (order(ranks[0]) == order(ranks[1])).all()
        ids = [np.sort(topk_from_scores(of, rule, params, layer)[0], axis=1) for of in told]
        assert (ids[0] == ids[1]).all()


def test_rounding_alone_changes_the_top_k():
    exact, params = drawn(), RULES["softmax"] | {"top_k": 8}
    assert (topk_from_scores(exact, "softmax", params)[0] != topk_from_scores(rounded(exact), "softmax", params)[0]).any()


def test_a_token_whose_expert_would_no_longer_be_critical_is_kept_whole():
    """The second of two has a share of .35 of both their gates, to a rounding: SliceMoE's threshold."""
    gap = np.log(0.35 / 0.65)
    rows = np.random.default_rng(1).normal([2.3, 2.3 + gap, -1.1, -2.7, -3.3], 2e-3, (300, 5)).astype(np.float32)
    found = compacted(rows, np.zeros(300), "softmax", {"norm_topk_prob": True, "top_k": 2}, 2)
    is_critical = [1.0 / (1.0 + np.exp(np.float64(of[:, 0] - of[:, 1]))) > 0.35 for of in (rows, rounded(rows), found)]
    assert (is_critical[0] != is_critical[1]).any()
    assert (is_critical[0] == is_critical[2]).all()
    assert 0 < (found == rows).all(axis=1).sum() < 100
