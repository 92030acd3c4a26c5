"""Pools, trees and acceptance: against slow versions, on random traces, and by what the output's distribution must be."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from tokentape.policies.speculation import POOLS
from tokentape.policies.speculation.accept import accept_greedy, accept_sampled
from tokentape.policies.speculation.ngram import lookup
from tokentape.policies.speculation.pools import Pools, exchange, hottest, pool_size, restricted_topk, selections
from tokentape.policies.speculation.tree import Draft, Shape, ancestors, draw, shares

sizes = st.tuples(st.integers(0, 2**31), st.integers(2, 24), st.integers(1, 8))


@given(sizes, st.data())
def test_a_restricted_topk_is_a_subset_of_the_pool_in_score_order(size, data):
    seed, n_experts, k = size
    rng = np.random.default_rng(seed)
    k = min(k, n_experts)
    values = np.round(rng.standard_normal((5, n_experts)), 1)  # ties happen
    pool = rng.permutation(n_experts)[: data.draw(st.integers(1, n_experts))]
    ids = restricted_topk(values, pool, k)
    assert ids.shape == (5, min(k, pool.size))
    for row, chosen in zip(values, ids, strict=True):
        slow = sorted(pool.tolist(), key=lambda e: (-row[e], e))[:k]
        assert chosen.tolist() == slow
    whole = restricted_topk(values, np.arange(n_experts), k)
    assert np.array_equal(whole, np.argsort(-values, axis=1, kind="stable")[:, :k])


def slow_exchange(pool, wanted, hot, touched):
    """The same by dictionaries and one slot at a time."""
    slots, entered = set(pool), []
    for expert in sorted(set(wanted) - slots):
        if not touched[expert]:
            continue
        out = min((e for e in slots if e not in wanted), key=lambda e: (hot[e], -e))
        slots.remove(out)
        slots.add(expert)
        entered.append(expert)
    return sorted(slots), entered


@pytest.mark.parametrize("policy", POOLS)
def test_rounds_of_a_pool_against_a_slow_version(policy):
    rng = np.random.default_rng(7)
    n_layers, n_experts, k, n = 3, 16, 4, 6
    route = lambda rows: np.stack([rng.permutation(n_experts)[:k] for _ in range(rows)])  # noqa: E731
    prompt = np.stack([selections(route(20), n_experts) for _ in range(n_layers)])
    pools = Pools(POOLS[policy](), prompt, n, np.random.default_rng(1))
    used = [dict.fromkeys(np.flatnonzero(prompt[layer]).tolist(), 0) for layer in range(n_layers)]
    n_entered = 0
    for number in range(1, 40):
        drafted, verified = [route(8) for _ in range(n_layers)], [route(2) for _ in range(n_layers)]
        hot = np.stack([selections(ids, n_experts) for ids in drafted])
        assert (hot.sum(axis=1) == k * 8).all()
        before, wanted = pools.members, pools.wanted(hot)
        touched = np.stack([selections(ids, n_experts) > 0 for ids in verified])
        entered = pools.verified(wanted, hot, touched)
        assert pools.members.shape == (n_layers, n)
        for layer in range(n_layers):
            counts = {e: int(c) for e, c in enumerate(hot[layer])}
            last = used[layer]
            orders = {
                "hotness": lambda e, c=counts: (-c[e], e),
                "lru": lambda e, c=counts, u=last: (-u.get(e, -1), -c[e], e),
            }
            slow = sorted(sorted(range(n_experts), key=orders[policy])[:n]) if policy in orders else before[layer].tolist()
            assert wanted[layer].tolist() == slow
            after, came = slow_exchange(before[layer].tolist(), slow, hot[layer], touched[layer])
            assert pools.members[layer].tolist() == after
            assert entered[layer].tolist() == came
            assert touched[layer][entered[layer]].all()
            last.update({int(e): number for e in np.flatnonzero(touched[layer])})
            n_entered += len(came)
    assert (n_entered > 0) == (policy in ("hotness", "lru"))


def test_pools_take_the_hottest_and_round_down_to_at_least_one():
    assert hottest(np.array([2, 5, 2, 5, 0]), 3).tolist() == [0, 1, 3]
    after, entered = exchange(
        np.array([0, 1, 2]), np.array([2, 3, 4]), np.array([3, 1, 9, 8, 8]), np.array([True, True, True, True, False])
    )
    assert (after.tolist(), entered.tolist()) == ([0, 2, 3], [3])  # 4 was not read; 1 is colder than 0
    assert [pool_size(16, f) for f in (0.01, 0.25, 0.49, 1.0)] == [1, 4, 7, 16]
    with pytest.raises(ValueError, match="above 0"):
        pool_size(16, 0.0)


def test_prompt_lookup_takes_the_latest_match_of_the_longest_suffix():
    assert lookup([1, 2, 3, 9, 2, 3, 7, 1, 2, 3], 3) == [9, 2, 3]  # 1 2 3 beats the later 2 3
    assert lookup([2, 3, 9, 2, 3, 7, 5, 2, 3], 2) == [7, 5]
    assert lookup([1, 2, 3, 4], 4) == []


def test_the_ancestors_of_a_node():
    seen = ancestors([-1, 0, 0, 1, 3])
    assert [np.flatnonzero(row).tolist() for row in seen] == [[0], [0, 1], [0, 2], [0, 1, 3], [0, 1, 3, 4]]


@given(st.integers(1, 9), st.integers(1, 9))
def test_shares_of_a_level_add_up(n_parents, width):
    found = shares(n_parents, width)
    assert sum(found) == width
    assert found[:-1] == sorted(found[:-1], reverse=True)


def test_a_greedy_tree_keeps_and_verifies_the_likeliest_nodes():
    draft = Draft(9, Shape(depth=2, width=2, verify_nodes=3))
    draft.grow(np.array([[0.6, 0.3, 0.1]]))
    draft.grow(np.array([[0.5, 0.4, 0.1], [0.9, 0.05, 0.05]]))
    assert draft.tokens == [9, 0, 1, 0, 0]  # .30 and .27; .24 falls out
    assert draft.parents == [-1, 0, 0, 1, 2]
    assert draft.verified() == [0, 1, 2, 3]
    path, bonus = accept_greedy(draft, [0, 1, 2, 3], [0, 0, 2, 5])
    assert (path, bonus) == ([1, 3], 5)


class Language:
    """Made-up next-token distributions over a few tokens, by the last two tokens."""

    def __init__(self, n: int, seed: int, sharpness: float) -> None:
        rng = np.random.default_rng(seed)
        table = np.exp(sharpness * rng.standard_normal((n, n, n)))
        table[rng.random(table.shape) < 0.2] = 0.0  # some tokens are impossible
        table[..., 0] += 1e-3
        self.table = table / table.sum(-1, keepdims=True)

    def after(self, ids: list[int]) -> np.ndarray:
        return self.table[ids[-2], ids[-1]]


def path_to(draft: Draft, node: int) -> list[int]:
    return [] if node == 0 else [*path_to(draft, draft.parents[node]), draft.tokens[node]]


def one_round(target: Language, drafter: Language, shape: Shape, rng: np.random.Generator, accept) -> list[int]:
    """The first two tokens after [0, 0]; a round that gives one is filled up from the target."""
    draft = Draft(0, shape, rng)
    for _ in range(shape.depth):
        draft.grow(np.stack([drafter.after([0, 0, *path_to(draft, n)]) for n in draft.level]))
    nodes = draft.verified()
    path, bonus = accept(draft, nodes, np.stack([target.after([0, 0, *path_to(draft, n)]) for n in nodes]), rng)
    ids = [0, 0, *(draft.tokens[n] for n in path), bonus]
    while len(ids) < 4:
        ids.append(draw(target.after(ids), rng))
    return ids[2:4]


def p_value(target: Language, pairs: list[list[int]]) -> float:
    n = target.table.shape[0]
    expected = np.array([[target.after([0, 0])[a] * target.after([0, a])[b] for b in range(n)] for a in range(n)]) * len(pairs)
    found = np.zeros((n, n))
    for a, b in pairs:
        found[a, b] += 1
    assert not found[expected == 0].any()
    rare = expected < 5
    cells = np.append(found[~rare], found[rare].sum()), np.append(expected[~rare], expected[rare].sum())
    if cells[1][-1] < 1:
        cells = cells[0][:-1], cells[1][:-1] * found[~rare].sum() / expected[~rare].sum()
    return float(chisquare(*cells).pvalue)


SHAPES = [
    Shape(1), Shape(3), Shape(2, 2), Shape(2, 5, verify_nodes=4),
    *(pytest.param(shape, marks=pytest.mark.slow) for shape in (Shape(3, 4), Shape(3, 4, verify_nodes=3))),
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sampled_output_has_the_targets_distribution(shape):
    target, drafter = Language(5, 1, 1.0), Language(5, 2, 1.5)
    rng = np.random.default_rng(11)
    pairs = [one_round(target, drafter, shape, rng, accept_sampled) for _ in range(3000)]
    assert p_value(target, pairs) > 0.01


def test_the_chi_square_sees_a_wrong_acceptance():
    def naive(draft, nodes, probabilities, rng):
        """Accepts a child with its plain probability under p and then draws the bonus from the whole of p."""
        for child in draft.children(0, nodes):
            if rng.random() < probabilities[0][draft.tokens[child]]:
                return [child], draw(probabilities[nodes.index(child)], rng)
        return [], draw(probabilities[0], rng)

    target, drafter = Language(5, 1, 1.0), Language(5, 2, 1.5)
    rng = np.random.default_rng(11)
    assert p_value(target, [one_round(target, drafter, Shape(1), rng, naive) for _ in range(3000)]) < 1e-6


def test_a_perfect_drafter_is_always_accepted():
    target, rng = Language(5, 1, 1.0), np.random.default_rng(3)
    for _ in range(200):
        draft = Draft(0, Shape(3), rng)
        for _ in range(3):
            draft.grow(np.stack([target.after([0, 0, *path_to(draft, n)]) for n in draft.level]))
        nodes = draft.verified()
        probabilities = np.stack([target.after([0, 0, *path_to(draft, n)]) for n in nodes])
        assert accept_sampled(draft, nodes, probabilities, rng)[0] == [1, 2, 3]
