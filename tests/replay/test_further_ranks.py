"""Ranks beyond a tape's: what is kept, what is refused, and how near caches come to the router that had them all."""

import numpy as np
import pytest

from tokentape.replay.further_ranks import widened

N_EXPERTS, LAYERS, TOKENS = 48, 4, 240


@pytest.fixture(scope="module")
def ranked():
    """(tokens, layers, 8) by falling score of a router whose scores drift and whose experts are not alike."""
    rng = np.random.default_rng(3)
    score, own = np.zeros((TOKENS, LAYERS, N_EXPERTS)), rng.normal(0.0, 0.6, (LAYERS, N_EXPERTS))
    drift = np.zeros((LAYERS, N_EXPERTS))
    for token in range(TOKENS):
        drift = 0.8 * drift + 0.6 * rng.standard_normal(drift.shape)
        score[token] = own + drift
    return np.argsort(-score, axis=2)[:, :, :8].astype(np.int16)


def hits(ids, places):
    """Share of lookups that find their expert among the last `places` distinct ones of their layer."""
    found = 0
    for layer in range(ids.shape[1]):
        held: list[int] = []
        for expert in ids[:, layer].ravel().tolist():
            found += expert in held[-places:]
            held = [other for other in held if other != expert] + [expert]
    return found / ids.size


@pytest.mark.parametrize("k", [4, 6])
def test_caches_see_nearly_the_router_that_had_all_ranks(ranked, k):
    """Against the same ranks in proportion: experts that are larger by as much as they are more."""
    made = np.mean([hits(widened(ranked[:, :, :k], N_EXPERTS, 8, seed), 20) for seed in range(3)])
    told, larger = hits(ranked, 20), hits(ranked[:, :, :k], round(20 * k / 8))
    assert abs(made - told) < 0.25 * abs(larger - told)


def test_known_ranks_stay_and_the_further_ones_are_others(ranked):
    ids = ranked[:, :, :6].copy()
    ids[5, 2] = -1  # a layer that did not run
    made = widened(ids, N_EXPERTS, 8)
    assert made.dtype == ids.dtype
    assert (made[:, :, :6] == ids).all()
    assert (made[5, 2] == -1).all()
    assert all(len(set(choices.tolist())) == 8 for token in np.delete(made, 5, axis=0) for choices in token)
    assert (widened(ids, N_EXPERTS, 8) == made).all()
    assert (widened(ids, N_EXPERTS, 8, seed=1) != made).any()
    assert (widened(ids, N_EXPERTS, 3) == ids[:, :, :3]).all()


def test_repeats_are_as_frequent_as_those_of_the_last_known_ranks(ranked):
    def repeated(ids):
        return (ids[1:, :, :, None] == ids[:-1, :, None, :]).any(axis=3).mean()

    made = widened(ranked[:, :, :6], N_EXPERTS, 8)
    assert repeated(made[:, :, 6:]) == pytest.approx(repeated(ranked[:, :, 4:6]), abs=0.04)


def test_what_cannot_be_widened_is_refused(ranked):
    with pytest.raises(ValueError, match="49 experts per token, and the tape holds 8: the model has 48"):
        widened(ranked, N_EXPERTS, 49)
    with pytest.raises(ValueError, match="the tape holds 1: further ranks follow from two or more"):
        widened(ranked[:, :, :1], N_EXPERTS, 2)
