"""ELMoE-3D's rounds by events: an LRU as a list has it, passes priced one by one, a tape counted by hand."""

import numpy as np
import polars as pl
import pytest
from elmoe3d_paper import PRINTED, QWEN, SETUP, TABLE, cell
from tapes import long_prompt, make_trace
from test_elmoe3d_closed_forms import list_lru

from tokentape.hw import profile as profiles
from tokentape.replay.elmoe3d.events import EVENTS, Texts, lru_hits, of_text, played, texts_of
from tokentape.replay.elmoe3d.points import points_of
from tokentape.replay.elmoe3d.rows import evaluated
from tokentape.replay.elmoe3d.tape import implied

PROFILE = profiles.load("elmoe3d")


def drawn(n_requests=4, length=40, spread=1.5, n_layers=48, n_experts=128, top_k=8, seed=0):
    """Texts of Qwen's shape, experts of unequal popularity."""
    rng = np.random.default_rng(seed)
    popular = spread * rng.standard_normal((n_layers, n_experts))
    scores = popular + rng.gumbel(size=(n_requests, length, n_layers, n_experts))
    chosen = np.argsort(-scores, axis=3)[..., :top_k]
    tokens = np.zeros(scores.shape, np.uint16)
    np.put_along_axis(tokens, chosen, 1, axis=3)
    return Texts(tokens[:, :8].sum(axis=1, dtype=np.uint16), tuple(tokens[:, 8:]))


def test_an_lru_against_a_list():
    rng = np.random.default_rng(3)
    steps = rng.random((60, 2, 12)) < 0.3
    for slots in (0, 1, 4, 12):
        hits = lru_hits(steps, slots)
        assert not (hits & ~steps).any()
        for layer in range(2):
            events = [np.flatnonzero(of).tolist() for of in steps[:, layer]]
            assert (int(hits[:, layer].sum()), int(steps[:, layer].sum())) == list_lru(events, slots)


def test_texts_hold_what_the_tape_routed():
    trace = make_trace(n_requests=3, n_decode=10)
    texts = texts_of(trace)
    total = sum(int(of.sum()) for of in texts.tokens) + int(texts.prompts.sum())
    assert total == trace.ids.size
    assert [len(of) for of in texts.tokens] == [10] * 3
    assert [len(of) for of in texts.side_by_side(2)] == [10]  # the third request fills no batch
    assert (texts_of(long_prompt(3 * 66_000)[0]).prompts == 66_000).all(), "more than 16 bits hold"
    shorter = Texts(texts.prompts, (texts.tokens[0][:6], *texts.tokens[1:]))
    assert [len(of) for of in shorter.side_by_side(3)] == [6]  # as long as all go on


def test_rounds_of_a_text_by_hand():
    """Accepting 1.5 of 2 drafted: rounds begin at 0, 2, 5, ...; each verifies three tokens of both requests."""
    texts = drawn(2, 20, n_layers=1, n_experts=8, top_k=1)
    rounds = of_text(texts, 2, 2, 1.5)
    starts = [0, 2, 5, 7]
    both = texts.tokens[0].astype(int) + texts.tokens[1]
    assert len(rounds.batch) == len(starts)
    for at, verified, drafts in zip(starts, rounds.verify, rounds.drafts, strict=True):
        assert np.array_equal(verified, both[at : at + 3].sum(axis=0))
        assert np.array_equal(drafts, both[at : at + 2])
    assert rounds.tokens.tolist() == [5.0] * 4
    with pytest.raises(ValueError, match="decode more than 12 tokens; give a longer one"):
        of_text(texts, 2, 12, 1.0)


@pytest.mark.parametrize("scheme", ["EAGLE3", "Elastic-SD", "Quant-SD", "SLM-SD"])
@pytest.mark.parametrize("batch", [1, 4])
def test_no_more_hits_than_is_resident_and_bytes_sum(scheme, batch):
    point = points_of(cell(QWEN, scheme, 8, batch), PRINTED, series="table-3")
    found = played(point, SETUP, PROFILE, drawn(), 4).row(0, named=True)
    assert found["hit_model"] == EVENTS
    law = evaluated(point, SETUP).row(0, named=True)
    expert = SETUP.models[QWEN][0].expert_bytes("int8-g32")[0] * 48  # of every layer
    static = law["ar_hb_bytes"] + law["ar_ext_bytes"] - law["ar_experts"] * expert
    for name in ("ar", "verify"):
        read = found[f"{name}_hb_bytes"] + found[f"{name}_ext_bytes"]
        assert read == pytest.approx(static + found[f"{name}_experts"] * expert)
        assert found[f"{name}_hb_bytes"] - static <= found["resident_bytes"] * (1 + 1e-9) + 1.0
    assert (found["pool_write_frac"] is None) == (scheme != "Elastic-SD")


def test_texts_that_agree_with_a_law_cost_what_the_law_says():
    """Everything resident: events and closed form read the same bytes, as far as the same experts are touched."""
    big = TABLE.filter(pl.col("scheme") == "Elastic-SD", pl.col("hb_gb") == 8, pl.col("model") == QWEN, pl.col("batch") == 1)
    found = played(points_of(big, PRINTED), SETUP, PROFILE, drawn(), 4).row(0, named=True)
    law = evaluated(points_of(big, PRINTED), SETUP).row(0, named=True)
    assert found["ar_experts"] == law["ar_experts"] == 8.0
    assert found["xpu_step_s"] == pytest.approx(law["xpu_step_s"])
    assert found["draft_experts"] == 8.0  # one token, a pool of more: the restricted choice is as wide as the free one


def test_where_events_must_lose():
    """Requests that agree on nothing: a cache of whole experts is worth no more than its share, and the law's hits are out of
    reach."""
    point = points_of(cell(QWEN, "EAGLE3", 8, 4), PRINTED)
    found, law = (
        played(point, SETUP, PROFILE, drawn(spread=0.0), 4).row(0, named=True),
        evaluated(point, SETUP).row(0, named=True),
    )
    assert found["ar_hit_frac"] == pytest.approx(found["resident_frac"], abs=0.03)
    assert law["ar_hit_frac"] > 3.0 * found["ar_hit_frac"]


def test_what_a_cell_without_a_cache_implies():
    """Exponents come back from speed-ups that a law made, rounded to two decimals, within their ends."""
    frame = evaluated(points_of(TABLE.filter(pl.col("scheme") == "Quant-SD", pl.col("model") == QWEN), PRINTED), SETUP)
    frame = frame.with_columns(published_ar=pl.col("phi_ar").round(2))
    found = implied(frame, SETUP, PROFILE)
    assert found["batch"].to_list() == [4, 8, 16]
    truth = PRINTED.laws[QWEN].exponent
    for low, high in found.select("exponent_min", "exponent_max").rows():
        assert low - 1e-3 <= truth <= high + 1e-3
