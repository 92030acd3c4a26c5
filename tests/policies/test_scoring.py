"""The score rules on cases small enough to work out by hand, and scores of 11 bits, which keep every order under every rule; the
families themselves are in test_families_capture.py.
"""

import numpy as np
import pytest
from refusing import refuses

from tokentape.policies.compact import compacted
from tokentape.policies.scoring import by_weight, ranking, topk_from_scores

SIGMOID = {"top_k": 2, "norm_topk_prob": False, "n_group": 2, "topk_group": 1, "routed_scaling_factor": 2.0}


def scores(*row):
    return np.array([row], dtype=np.float32)


def test_softmax_weights_are_shares_of_all_or_of_the_chosen():
    logits = scores(*np.log([1.0, 2.0, 5.0, 2.0]))
    ids, weights = topk_from_scores(logits, "softmax", {"top_k": 2, "norm_topk_prob": False})
    assert ids.tolist() == [[2, 1]]
    np.testing.assert_allclose(weights, [[0.5, 0.2]], rtol=1e-6)
    _, normed = topk_from_scores(logits, "softmax", {"top_k": 2, "norm_topk_prob": True})
    np.testing.assert_allclose(normed, [[5 / 7, 2 / 7]], rtol=1e-6)
    _, chosen = topk_from_scores(logits, "softmax_topk", {"top_k": 2})
    np.testing.assert_allclose(chosen, normed, rtol=1e-6)


def test_groups_count_their_best_and_a_bias_decides_who_is_chosen_but_not_the_weight():
    logits = scores(2.0, 1.0, 0.0, -1.0)
    params = SIGMOID | {"bias": {"3": [0.0, 0.0, 5.0, 5.0]}}
    ids, weights = topk_from_scores(logits, "sigmoid_bias_groups", params, layer=3)
    assert ids.tolist() == [[2, 3]]  # the other group wins although its sigmoids are lower
    np.testing.assert_allclose(weights, 2 / (1 + np.exp([[0.0, 1.0]])), rtol=1e-6)
    refuses("no bias for layer 4", topk_from_scores, logits, "sigmoid_bias_groups", params, layer=4)
    logits = scores(*np.log([5.0, 1.0, 4.0, 3.0]))
    params = {"top_k": 1, "norm_topk_prob": True, "n_group": 2, "topk_group": 1}
    assert topk_from_scores(logits, "softmax", params)[0].tolist() == [[0]]  # a group's best: 5 > 4
    assert topk_from_scores(logits, "softmax", params | {"group_best": 2})[0].tolist() == [[2]]  # 7 > 6


def test_sparsemixer_weights_need_not_sum_to_one_and_equal_ones_are_ordered_by_id():
    ids, weights = topk_from_scores(scores(1.0, 0.999, -3.0, 0.5), "sparsemixer", {"top_k": 2, "router_jitter_noise": 0.01})
    assert ids.tolist() == [[1, 0]]
    np.testing.assert_allclose(weights, [[1.0, 1 / (1 + np.exp(-0.001))]], rtol=1e-6)
    ids, weights = by_weight(np.array([[7, 2, 5]]), np.array([[0.3, 0.3, 0.4]]))
    assert ids.tolist() == [[5, 2, 7]]
    assert weights.tolist() == [[0.4, 0.3, 0.3]]


def test_bad_scores_and_layers_without_a_ranking_are_refused():
    with pytest.raises(ValueError, match="first in row 1"):
        topk_from_scores(np.array([[0.0, 1.0], [np.nan, 1.0]]), "softmax", {"top_k": 1, "norm_topk_prob": True})
    refuses("top_k 3 must lie", topk_from_scores, scores(0, 1), "softmax", {"top_k": 3})
    with pytest.raises(ValueError, match="experts of layer 1 follow from the token id"):
        topk_from_scores(scores(0, 1), "softmax", {"top_k": 1, "norm_topk_prob": True, "token_layers": [1]}, 1)


def test_a_bias_may_rank_probabilities_or_the_logits_themselves():
    logits = scores(2.0, 1.0, 0.0)
    bias = {"0": [0.0, 0.0, 0.7]}
    ids, weights = topk_from_scores(logits, "softmax", {"top_k": 1, "norm_topk_prob": False, "bias": bias}, 0)
    assert ids.tolist() == [[2]]  # probabilities 0.67, 0.24, 0.09
    np.testing.assert_allclose(weights, [[1 / (1 + np.e + np.e**2)]], rtol=1e-6)
    on_logits = {"top_k": 1, "norm_topk_prob": False, "bias": bias, "bias_on": "logits"}
    ids, weights = topk_from_scores(logits, "sigmoid_bias_groups", on_logits, 0)
    assert ids.tolist() == [[0]]  # 2 still leads 0.7
    np.testing.assert_allclose(weights, [[1 / (1 + np.exp(-2.0))]], rtol=1e-6)


def test_softplus_weights_and_a_factor_per_expert():
    logits = scores(1.0, 0.0, -1.0)
    ids, weights = topk_from_scores(logits, "sqrtsoftplus_bias_groups", {"top_k": 2, "norm_topk_prob": False})
    assert ids.tolist() == [[0, 1]]
    np.testing.assert_allclose(weights, np.sqrt(np.log1p(np.exp([[1.0, 0.0]]))), rtol=1e-6)
    scaled = {"top_k": 2, "norm_topk_prob": True, "expert_scale": {"4": [1.0, 10.0, 1.0]}}
    ids, weights = topk_from_scores(logits, "softmax", scaled, 4)
    assert ids.tolist() == [[1, 0]]  # chosen by probability, then times 10
    np.testing.assert_allclose(weights, [[10 / (1 + np.e), np.e / (1 + np.e)]], rtol=1e-6)
    refuses("no expert_scale for layer 5", topk_from_scores, logits, "softmax", scaled, 5)


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


def test_rows_by_hand():
    row = np.array([[3.3333333, 1.00001, 1.0, 0.7000001, 0.7, 0.25, 0.2000001, -5.5555555]], np.float32)
    found = compacted(row, np.zeros(1), "softmax", {"top_k": 2}, 2)
    # 0.25 is an f16; 0.2000001 stands alone and is rounded; two pairs would tie, and the ends are exact
    assert found.tolist() == [[*row[0, :6].tolist(), float(np.float16(0.2)), row[0, 7].item()]]
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
