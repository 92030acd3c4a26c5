"""Rows of hits, similarity, expert use and table losses add up to what they are made from."""

import numpy as np
import pytest
from cxl_ndp_tapes import random_routing

from tokentape.policies.bits import BIT_RULES, assign, table_loss
from tokentape.policies.placement import Capacity, importance
from tokentape.policies.placement.fixed import PrefillGuided
from tokentape.replay.cxl_ndp.bit_losses import bit_loss_rows
from tokentape.replay.cxl_ndp.hits import hit_rows, hits_of, similarity, similarity_rows, use_rows
from tokentape.replay.cxl_ndp.routing import in_batches


def test_hit_and_similarity_rows_name_layers_and_their_mean():
    routing = random_routing(2)
    hits = hits_of(routing, in_batches(6, 1), PrefillGuided(), Capacity(2))
    rows = hit_rows(hits, (4, 9))
    assert [row["layer"] for row in rows] == [None, 4, 9]
    assert [row["gpu_hit_frac"] for row in rows] == pytest.approx([hits.hit_frac, *hits.by_layer()])
    found = similarity(routing)
    rows = similarity_rows(found, (4, 9))
    assert [row["layer"] for row in rows] == [None, 4, 9]
    assert rows[0]["own_cosine"] == pytest.approx(np.nanmean(found.own))
    assert rows[0]["n_requests"] == (routing.n_decode > 0).sum()


@pytest.mark.parametrize("bin_steps", [1, 5, 100])
def test_use_adds_up_to_the_decode(bin_steps):
    routing = random_routing(4, n_steps=13)
    rows = use_rows(routing, np.array([0]), bin_steps)
    counts = np.zeros((routing.n_layers, routing.n_experts))
    for row in rows:
        steps = min(bin_steps, 13 - row["first_step"])
        counts[routing.layers.index(row["layer"]), row["expert"]] += row["use_frac"] * steps * routing.top_k
    assert counts == pytest.approx(routing.decode_counts()[0])
    by_bin = {}
    for row in rows:
        by_bin[row["layer"], row["first_step"]] = by_bin.get((row["layer"], row["first_step"]), 0.0) + row["use_frac"]
    assert list(by_bin.values()) == pytest.approx([1.0] * len(by_bin))
    with pytest.raises(ValueError, match="bin of 0 steps"):
        use_rows(routing, np.array([0]), 0)


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_bit_losses_are_means_over_groups_of_sums_over_layers(across, weighted):
    routing, rng = random_routing(6), np.random.default_rng(0)
    losses = np.sort(rng.random((2, 5, 4)), axis=2)[..., ::-1].copy()
    scores = importance(routing.prefill_counts, routing.prefill_weights)
    hot = Capacity(2).hot(scores)
    share = rng.random(scores.shape) if weighted else None
    rows = {(row["layer"], row["rule"]): row for row in bit_loss_rows(losses, (0, 3), scores, hot, 2.0, across, share)}
    for name, rule in BIT_RULES.items():
        bits = assign(rule, losses, scores, hot, 2.0, across, share)
        told = [losses if share is None else losses * share[g][..., None] for g in range(6)]
        mean = np.mean([table_loss(table, b) for table, b in zip(told, bits, strict=True)])
        assert rows[None, name]["loss"] == pytest.approx(mean)
        assert rows[None, name]["loss"] == pytest.approx(rows[0, name]["loss"] + rows[3, name]["loss"])
        assert rows[None, name]["uniform_loss"] == rows[None, "uniform"]["loss"]
        assert rows[None, name]["optimum_loss"] == rows[None, "optimum"]["loss"] <= rows[None, name]["loss"] + 1e-12
    assert rows[None, "prefix_split"]["loss"] <= rows[None, "uniform"]["loss"] + 1e-12
