"""Bit-width rules against all assignments there are, what each must keep to, and where importance must not matter."""

import time

import numpy as np
import pytest
from bits_oracle import STAND_IN, best_prefix_split, least_loss, stand_in
from hypothesis import given, settings
from hypothesis import strategies as st

from tokentape.policies.bits import BIT_RULES, assign, budget_bits, table_loss
from tokentape.policies.placement import hot_set

PREFIX, UNIFORM, OPTIMUM = BIT_RULES["prefix_split"], BIT_RULES["uniform"], BIT_RULES["optimum"]
MEANS = np.arange(1.0, 4.5, 0.5)


def random_table(rng, monotone):
    n = int(rng.integers(1, 7))
    losses = rng.lognormal(0.0, 1.0, (n, 4)) * (1.0 if rng.random() < 0.5 else rng.random((n, 1)))
    return np.sort(losses, axis=1)[:, ::-1] if monotone else losses


def test_prefix_split_equals_brute_force_and_spends_its_budget():
    """Done-when 8.1: 6,000 tables, half of them with losses that may rise with the bits, every fourth full of ties."""
    rng = np.random.default_rng(0)
    for case in range(6_000):
        losses = random_table(rng, monotone=case % 2 == 0)
        if case % 4 == 3:
            losses = np.round(losses, 0)
        mean_bits = float(rng.choice(MEANS))
        budget = budget_bits(len(losses), mean_bits)
        bits = PREFIX(losses, mean_bits)
        assert bits.tolist() == list(best_prefix_split(losses, budget)), (case, losses, mean_bits)
        assert bits.sum() == len(losses) + budget


def test_the_optimum_is_the_least_loss_of_all_assignments():
    rng = np.random.default_rng(1)
    for case in range(400):
        losses, mean_bits = random_table(rng, monotone=case % 2 == 0), float(rng.choice(MEANS))
        budget = budget_bits(len(losses), mean_bits)
        bits = OPTIMUM(losses, mean_bits)
        assert bits.sum() - len(losses) <= budget
        assert table_loss(losses, bits) == pytest.approx(least_loss(losses, budget), rel=1e-12)


def gain_kept(tables, rng):
    """(mean, share at the optimum) of the selector's gain over 1 bit each, as a share of the best assignment's."""
    kept = []
    for losses in tables:
        mean_bits = float(rng.choice(MEANS))
        ones = table_loss(losses, np.ones(len(losses), np.int8))
        gain, most = (ones - table_loss(losses, rule(losses, mean_bits)) for rule in (PREFIX, OPTIMUM))
        assert gain <= most + 1e-12
        kept.append(gain / most if most > 1e-15 else 1.0)
    return np.mean(kept), np.mean(np.array(kept) > 1 - 1e-9)


def test_the_selector_keeps_99_percent_of_what_any_assignment_gains():
    """Done-when 8.1: losses that follow importance with a noise of 20 % per expert, n 1 to 6, mean bits 1 to 4 by halves."""
    rng = np.random.default_rng(2)
    mean, optimal = gain_kept([stand_in(rng, int(rng.integers(1, 7))) for _ in range(5_000)], rng)
    assert mean >= 0.99
    assert optimal >= 0.8


def test_a_wrong_ranking_costs_the_selector_more():
    """One that says nothing of the losses, and one upside down."""
    rng = np.random.default_rng(4)
    mean, _ = gain_kept([np.sort(rng.random((5, 4)), axis=1)[:, ::-1] for _ in range(500)], rng)
    assert mean < 0.97
    rng = np.random.default_rng(7)
    tables = [stand_in(rng, 6) for _ in range(200)]
    worse = [table_loss(t, BIT_RULES["reversed"](t, 2.0)) - table_loss(t, PREFIX(t, 2.0)) for t in tables]
    assert np.mean(np.array(worse) >= 0) > 0.9
    assert np.mean(worse) > 0


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 40), st.floats(1.0, 4.0), st.integers(0, 2**32 - 1))
def test_every_rule_keeps_to_the_budget_and_to_one_to_four_bits(n, mean_bits, seed):
    losses = np.random.default_rng(seed).normal(size=(n, 4))
    budget = budget_bits(n, mean_bits)
    for name, rule in BIT_RULES.items():
        bits = rule(losses, mean_bits)
        assert bits.shape == (n,)
        assert ((bits >= 1) & (bits <= 4)).all()
        assert bits.sum() - n <= budget
        if name in ("prefix_split", "uniform", "reversed"):
            assert bits.sum() - n == budget
        if name in ("prefix_split", "uniform"):
            assert (np.diff(bits) <= 0).all()
        if name == "reversed":
            assert (np.diff(bits) >= 0).all()


@pytest.mark.parametrize("rule", BIT_RULES.values(), ids=BIT_RULES)
def test_the_ends_of_the_budget(rule):
    losses = np.sort(np.random.default_rng(4).random((5, 4)), axis=1)[:, ::-1]
    assert (rule(losses, 1.0) == 1).all()
    assert (rule(losses, 4.0) == 4).all()
    assert rule(np.zeros((0, 4)), 2.0).size == 0
    assert budget_bits(5, 2.3) == 6  # 6.5 rounded down
    assert budget_bits(10, 1.3) == 3  # 2.9999999999999996 in floats


def test_greedy_raises_the_more_important_of_equals_by_the_least_and_none_for_nothing():
    greedy, alike = BIT_RULES["greedy"], np.tile([3.0, 2.0, 1.0, 0.0], (3, 1))
    assert [greedy(alike, 1 + n / 3).tolist() for n in (1, 4)] == [[2, 1, 1], [4, 2, 1]]
    assert greedy(np.ones((3, 4)), 4.0).tolist() == [1, 1, 1]


def with_one(table, place, value):
    table[place] = value
    return table


@pytest.mark.parametrize(
    ("call", "words"),
    [
        *((lambda bits=bits: PREFIX(np.ones((3, 4)), bits), r"must lie in 1\.\.4") for bits in (0.9, 4.1, float("nan"))),
        (lambda: PREFIX(with_one(np.ones((3, 4)), (1, 2), np.nan), 2.0), r"loss of expert \[1\] at 3 bits is nan"),
        (lambda: PREFIX(np.ones((3, 3)), 2.0), "4 columns"),
        (lambda: assign(PREFIX, np.ones((5, 4)), np.ones((3, 5)), np.zeros((3, 5), bool), 2.0), r"must be \(G, L, E\)"),
        (lambda: assign(PREFIX, np.ones((3, 5, 4)), np.ones((2, 3, 5)), np.zeros((1, 3, 5), bool), 2.0), r"must be \(G, L, E\)"),
        (lambda: assign(PREFIX, np.ones((3, 6, 4)), np.ones((2, 3, 5)), np.zeros((2, 3, 5), bool), 2.0), r"must be \(G, L, E\)"),
        (lambda: assign(PREFIX, layers()[0][:2], *layers()[1:], 2.0), r"\(L, E, 4\)"),
        (
            lambda: assign(PREFIX, with_one(layers()[0], (1, 2, 3), np.inf), *layers()[1:], 2.0),
            r"\[1, 2\] at 4 bits is inf",
        ),
    ],
)
def test_tables_and_budgets_that_do_not_fit_are_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize(("n", "at_2_bits", "at_3_bits"), [(4, 0.61, 1.0), (6, 0.575, 1.0)])
def test_the_stand_in_table_gains_at_two_bits_and_little_at_three(n, at_2_bits, at_3_bits):
    """Specification 4.4: medians of selector over uniform, of the n cold experts of eight."""
    rng = np.random.default_rng(5)
    tables = [stand_in(rng, n) for _ in range(2_000)]
    for mean_bits, wanted in ((2, at_2_bits), (3, at_3_bits)):
        ratios = [table_loss(t, PREFIX(t, mean_bits)) / table_loss(t, UNIFORM(t, mean_bits)) for t in tables]
        assert np.median(ratios) == pytest.approx(wanted, abs=0.015)


def test_part_of_that_gain_is_the_tables_shape():
    """Equal experts, and still 3, 3, 1, 1 beats 2 bits each: the errors are not convex in the bits."""
    losses = np.tile(STAND_IN, (4, 1))
    bits = OPTIMUM(losses, 2.0)
    assert sorted(bits.tolist()) == [1, 1, 3, 3]
    assert table_loss(losses, bits) / table_loss(losses, UNIFORM(losses, 2.0)) == pytest.approx(0.82, abs=0.005)
    assert PREFIX(losses, 2.0).tolist() == [3, 3, 1, 1]


@pytest.mark.parametrize("mean_bits", [1, 2, 3, 4])
@pytest.mark.parametrize("rule", ["prefix_split", "optimum", "greedy", "reversed"])
def test_equal_experts_with_strictly_convex_losses_get_equal_bits(rule, mean_bits):
    losses = np.tile([1.0, 0.4, 0.15, 0.1], (7, 1))
    assert (BIT_RULES[rule](losses, mean_bits) == mean_bits).all()


def test_greedy_is_exact_where_every_table_is_convex():
    rng = np.random.default_rng(6)
    for _ in range(200):
        n = int(rng.integers(1, 9))
        losses = -np.cumsum(np.c_[np.zeros(n), np.sort(rng.random((n, 3)), axis=1)[:, ::-1]], axis=1) + 3.0
        mean_bits = float(rng.choice(MEANS))
        assert table_loss(losses, BIT_RULES["greedy"](losses, mean_bits)) == pytest.approx(
            table_loss(losses, OPTIMUM(losses, mean_bits)), rel=1e-12
        )


def test_128_experts_take_less_than_a_fifth_of_a_millisecond():
    losses = np.random.default_rng(8).random((128, 4))
    for mean_bits in (2.0, 2.5, 3.0):
        PREFIX(losses, mean_bits)
        seconds = []
        for _ in range(50):
            start = time.perf_counter()
            PREFIX(losses, mean_bits)
            seconds.append(time.perf_counter() - start)
        assert np.median(seconds) < 0.2e-3


# ----------------------------------------------------------------------------------------------------------- many layers


def layers(seed=0):
    rng = np.random.default_rng(seed)
    scores = rng.dirichlet(np.full(8, 2.0), (3, 5))
    return np.sort(rng.random((5, 8, 4)), axis=-1)[..., ::-1].copy(), scores, hot_set(scores, 3)


def assigned_one_by_one(rule, losses, scores, hot, mean_bits, across_layers, share=None):
    bits = np.zeros(scores.shape, np.int8)
    for g in range(len(scores)):
        weighted = losses if share is None else losses * share[g][..., None]
        budgets = [range(scores.shape[1])] if across_layers else [[at] for at in range(scores.shape[1])]
        for together in budgets:
            cold = [(at, e) for at in together for e in range(scores.shape[2]) if not hot[g, at, e]]
            cold.sort(key=lambda place: (-scores[g, place[0], place[1]], place))
            chosen = rule(np.array([weighted[place] for place in cold]).reshape(-1, 4), mean_bits)
            for place, b in zip(cold, chosen, strict=True):
                bits[(g, *place)] = b
    return bits


@pytest.mark.parametrize("across_layers", [False, True])
@pytest.mark.parametrize("rule", BIT_RULES.values(), ids=BIT_RULES)
def test_assign_ranks_the_cold_experts_of_a_budget(rule, across_layers):
    losses, scores, hot = layers()
    share = np.random.default_rng(1).random(scores.shape)
    for weights in (None, share):
        bits = assign(rule, losses, scores, hot, 2.4, across_layers, weights)
        assert np.array_equal(bits, assigned_one_by_one(rule, losses, scores, hot, 2.4, across_layers, weights))
        assert np.array_equal(bits == 0, hot)


def test_the_ends_of_what_may_be_hot_and_arrays_that_must_not_be_written_to():
    """No cold expert, and no hot one."""
    losses, scores, _ = layers(5)
    assert not assign(PREFIX, losses, scores, hot_set(scores, 8), 2.0).any()
    assert assign(PREFIX, losses, scores, hot_set(scores, 0), 2.0).sum() == 3 * 5 * 8 * 2
    losses, scores, hot = layers(6)
    expected = assign(PREFIX, losses, scores, hot, 2.4, share=scores)
    for array in (losses, scores, hot):
        array.flags.writeable = False
    assert np.array_equal(assign(PREFIX, losses, scores, hot, 2.4, share=scores), expected)
    assert PREFIX(losses[0], 2.0).sum() == 16
