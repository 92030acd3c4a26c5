"""Distinct experts: closed forms against Monte Carlo, their properties, their estimators, and where independence must lose."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokentape.hw.coverage import FORMS, STEEPEST, Heaps, Pigeonhole, PowerLaw, Reuse, Uniform, errors

SOME = {
    "uniform": Uniform(),
    "pigeonhole": Pigeonhole(),
    "power-law": PowerLaw(exponent=0.7),
    "reuse": Reuse(reuse_prob=0.4),
    "heaps": Heaps(growth=0.8),
}
# Experts touched by n decode tokens, Qwen3-30B-A3B (128 experts, top-8): layered prefill paper, Table 1.
TABLE_1_TOKENS = np.array([1, 2, 4, 8, 16, 32, 64, 128, 256])
TABLE_1_FRAC = np.array([6.25, 11.7, 21.3, 29.0, 44.5, 54.7, 69.4, 86.3, 93.4]) / 100


def drawn(rng: np.random.Generator, n_tokens: int, n_experts: int, top_k: int, popularity=None) -> np.ndarray:
    """(n_tokens, top_k) ids, distinct per token."""
    return np.stack([rng.choice(n_experts, top_k, replace=False, p=popularity) for _ in range(n_tokens)])


def sticky(rng: np.random.Generator, n_tokens: int, n_experts: int, top_k: int, keep_prob: float) -> np.ndarray:
    """Routing in which each expert of a token stays with keep_prob and is otherwise drawn afresh."""
    rows = [rng.choice(n_experts, top_k, replace=False)]
    for _ in range(n_tokens - 1):
        kept = rows[-1][rng.random(top_k) < keep_prob]
        others = np.setdiff1d(np.arange(n_experts), kept)
        rows.append(np.concatenate([kept, rng.choice(others, top_k - len(kept), replace=False)]))
    return np.stack(rows)


def curve(ids: np.ndarray, lengths: list[int]) -> np.ndarray:
    """Mean distinct experts of consecutive tokens, over windows that do not overlap."""
    return np.array([np.mean([len(np.unique(ids[i : i + n])) for i in range(0, len(ids) - n + 1, n)]) for n in lengths])


def test_forms_are_named_and_fall_back_to_the_simpler_ones_at_special_values():
    assert {name: type(form) for name, form in SOME.items()} == FORMS
    n = np.array([1, 5, 50])
    uniform = Uniform().distinct(n, 60, 4)
    for same in (PowerLaw(exponent=0.0), Reuse(reuse_prob=0.0), Heaps(growth=1.0)):
        assert np.allclose(same.distinct(n, 60, 4), uniform)
    assert np.allclose(Reuse(reuse_prob=1.0).distinct(n, 60, 4), 4.0)
    assert np.all(PowerLaw(exponent=1.0).distinct(n[1:], 60, 4) < uniform[1:])
    assert np.allclose(PowerLaw(exponent=1.0).distinct(n, 4, 4), 4.0)


@pytest.mark.parametrize("name", FORMS)
@given(
    n_experts=st.integers(2, 256),
    share=st.floats(0.01, 1.0),
    parameter=st.floats(0.0, 1.0),
)
@settings(max_examples=40, deadline=None)
def test_every_form_starts_at_top_k_rises_concavely_and_stays_below_the_pigeonhole(name, n_experts, share, parameter):
    top_k = max(1, int(share * n_experts))
    form = {
        "power-law": lambda: PowerLaw(exponent=2.0 * parameter),
        "reuse": lambda: Reuse(reuse_prob=parameter),
        "heaps": lambda: Heaps(growth=max(parameter, 1e-3)),
    }.get(name, FORMS[name])()
    n = np.arange(0, 65)
    distinct = form.distinct(n, n_experts, top_k)
    steps = np.diff(distinct)
    slack = 1e-9 * n_experts
    assert distinct[0] == 0.0
    assert distinct[1] == pytest.approx(top_k, rel=1e-9)
    assert np.all(steps >= -slack)
    assert np.all(np.diff(steps) <= slack)
    assert np.all(distinct <= Pigeonhole().distinct(n, n_experts, top_k) + slack)
    assert form.distinct(7.5, n_experts, top_k) <= form.distinct(8, n_experts, top_k) + slack


def test_uniform_and_power_law_by_monte_carlo():
    rng = np.random.default_rng(3)
    for n in (1, 4, 16):
        seen = [len(np.unique(drawn(rng, n, 64, 6))) for _ in range(400)]
        assert np.mean(seen) == pytest.approx(float(Uniform().distinct(n, 64, 6)), rel=0.02)
    form = PowerLaw(exponent=0.9)
    popularity = form.popularity(64, 6)
    assert popularity.sum() == pytest.approx(6.0, rel=1e-12)
    assert np.all(np.diff(popularity) < 0)
    rng = np.random.default_rng(4)
    for n in (1, 4, 16, 64):
        seen = (rng.random((2000, n, 64)) < popularity).any(axis=1).sum(axis=1)
        assert seen.mean() == pytest.approx(float(form.distinct(n, 64, 6)), rel=0.02)


@pytest.mark.parametrize("top_k", [1, 6, 255.9])
@pytest.mark.filterwarnings("error")
def test_the_steepest_power_law_agrees_on_the_first_experts_without_overflow(top_k):
    form = PowerLaw(exponent=STEEPEST)
    assert form.popularity(256, top_k).sum() == pytest.approx(top_k)
    assert form.distinct(1000, 256, top_k) <= min(256, 1.6 * top_k + 1)


def test_estimators_return_what_made_the_data():
    rng = np.random.default_rng(5)
    popularity = PowerLaw(exponent=0.8).popularity(64, 6)
    counts = (rng.random((5000, 64)) < popularity).sum(axis=0)
    assert PowerLaw.from_counts(counts, 5000).exponent == pytest.approx(0.8, abs=0.03)
    flat = np.bincount(drawn(rng, 500, 64, 6).ravel(), minlength=64)
    assert PowerLaw.from_counts(flat, 500).exponent < 0.1
    assert Reuse.from_routing(sticky(rng, 3000, 64, 6, 0.5), 64).reuse_prob == pytest.approx(0.5, abs=0.03)
    texts = np.concatenate([np.stack([rng.choice(64, 6, replace=False)] * 2) for _ in range(200)])  # two tokens each, alike
    assert Reuse.from_routing(texts, 64, np.repeat(np.arange(200), 2)).reuse_prob == 1.0
    assert Reuse.from_routing(texts, 64, np.arange(400)).reuse_prob == 0.0, "no token follows another"
    n = np.array([1, 2, 8, 64])
    assert Heaps.from_curve(n, Heaps(growth=0.7).distinct(n, 64, 6), 64, 6).growth == pytest.approx(0.7)


def test_uniform_overshoots_what_routers_and_papers_do_and_estimated_forms_do_not():
    """Where tokens reuse experts."""
    ids = sticky(np.random.default_rng(6), 4096, 64, 6, 0.5)
    lengths = [1, 2, 4, 8, 16, 32]
    recorded = curve(ids, lengths)
    forms = {"uniform": Uniform(), "pigeonhole": Pigeonhole(), "reuse": Reuse.from_routing(ids, 64)}
    assert np.all(Uniform().distinct(lengths, 64, 6)[1:] > 1.1 * recorded[1:])
    wrong = errors(forms, lengths, recorded, 64, 6)
    assert wrong["reuse"] < 0.02 < 0.2 < wrong["uniform"] < wrong["pigeonhole"]
    popularity = 1.0 / np.arange(1, 65)
    ids = drawn(np.random.default_rng(7), 4096, 64, 6, popularity / popularity.sum())
    lengths = [1, 2, 4, 8, 16, 32]
    fitted = PowerLaw.from_counts(np.bincount(ids.ravel(), minlength=64), len(ids))
    wrong = errors({"uniform": Uniform(), "power-law": fitted}, lengths, curve(ids, lengths), 64, 6)
    assert wrong["power-law"] < 0.05 < 0.15 < wrong["uniform"]
    recorded = TABLE_1_FRAC * 128
    heaps = Heaps.from_curve(TABLE_1_TOKENS, recorded, 128, 8)
    assert float(Uniform().distinct(8, 128, 8)) / 128 == pytest.approx(0.40, abs=0.005)
    wrong = errors({"uniform": Uniform(), "pigeonhole": Pigeonhole(), "heaps": heaps}, TABLE_1_TOKENS, recorded, 128, 8)
    assert wrong["heaps"] < 0.1 < 0.2 < wrong["uniform"] < wrong["pigeonhole"]


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: Uniform().distinct(3, 8, 9), "top_k"),
        (lambda: Uniform().distinct(-1, 8, 2), "n_tokens"),
        (lambda: PowerLaw(exponent=-1.0), "exponent"),
        (lambda: PowerLaw(exponent=500.0), "exponent must be between 0 and 16, found 500"),
        (lambda: PowerLaw(exponent=float("nan")), "exponent"),
        (lambda: Reuse(reuse_prob=1.5), "reuse_prob"),
        (lambda: Heaps(growth=0.0), "growth"),
        (lambda: PowerLaw.from_counts([5, 1], 4), "counts"),
        (lambda: Reuse.from_routing(np.zeros((1, 2), np.int64), 8), "expert_ids"),
        (lambda: Heaps.from_curve([1], [2], 8, 2), "curve"),
        (lambda: errors({"uniform": Uniform()}, [1, 2], [2.0], 8, 2), "n_tokens"),
    ],
)
def test_impossible_input_is_named(call, word):
    with pytest.raises(ValueError, match=word):
        call()
