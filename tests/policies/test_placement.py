"""Importance by hand, hot sets, every placement's promise, and migration kernels against dictionaries."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusing import refuses

from tokentape.policies.bits import BIT_RULES, assign
from tokentape.policies.placement import PLACEMENTS, Capacity, Seen, hot_set, importance, start_average
from tokentape.policies.placement.fixed import Oracle, PrefillGuided, RandomPlacement, ShuffledPrompts, StaticGlobal
from tokentape.policies.placement.host import Host
from tokentape.policies.placement.missed import FirstLayersNear, NearBesideLink, NearIfFaster
from tokentape.policies.placement.reactive import EMA, Always, Balance, Never

# A layer of 8 experts, top 2, after a prompt of 20 tokens: 40 selections. The weights of a token sum to 1, so W sums to 20.
COUNTS = np.array([10, 2, 0, 8, 4, 4, 12, 0])
WEIGHTS = np.array([6.0, 0.5, 0.0, 3.0, 2.5, 1.5, 6.5, 0.0])
S = np.array([0.275, 0.0375, 0.0, 0.175, 0.1125, 0.0875, 0.3125, 0.0])  # (P/40 + W/20) / 2


def test_a_layer_worked_by_hand():
    scores = importance(COUNTS, WEIGHTS)
    assert scores == pytest.approx(S)
    hot = hot_set(scores, 4)
    assert np.flatnonzero(hot).tolist() == [0, 3, 4, 6]
    # Cold by rank: 5, 1, 2, 7. Losses that only expert 5 has: all it can take, 3 of R = 4 bits, the last to the next.
    losses = np.zeros((1, 8, 4))
    losses[0, 5] = [1.0, 0.5, 0.25, 0.0]
    bits = assign(BIT_RULES["prefix_split"], losses, scores[None, None], hot[None, None], 2.0)
    assert bits[0, 0].tolist() == [0, 2, 1, 0, 0, 4, 0, 1]


def test_alpha_weighs_counts_against_gate_weights_and_ties_go_to_the_lowest_ids():
    assert importance(COUNTS, WEIGHTS, 1.0) == pytest.approx(COUNTS / 40)
    assert importance(COUNTS, WEIGHTS, 0.0) == pytest.approx(WEIGHTS / 20)
    for alpha in (-0.1, 1.1):
        refuses(r"alpha .* must lie in 0\.\.1", importance, COUNTS, WEIGHTS, alpha)
    nothing = np.zeros(8)
    assert not importance(nothing, nothing).any()
    assert np.flatnonzero(hot_set(importance(nothing, nothing), 3)).tolist() == [0, 1, 2]
    assert importance(COUNTS, nothing).sum() == pytest.approx(0.5)  # a tape without gate weights


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 12), st.integers(1, 3), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_importance_sums_to_one_and_the_sets_partition_the_experts(n_experts, n_layers, alpha, seed):
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 9, (2, n_layers, n_experts))
    counts[..., 0] += 1
    scores = importance(counts, counts * rng.uniform(0.1, 1, counts.shape), alpha)
    assert scores.sum(axis=-1) == pytest.approx(1.0)
    for k in range(n_experts + 1):
        hot = hot_set(scores, k)
        assert (hot.sum(axis=-1) == k).all()
        if 0 < k < n_experts:
            assert (np.where(hot, scores, 2).min(axis=-1) >= np.where(hot, -1, scores).max(axis=-1)).all()


def test_capacity_in_experts_bytes_and_across_layers():
    scores = np.array([[[0.7, 0.2, 0.1, 0.0], [0.3, 0.3, 0.25, 0.15]]])
    assert Capacity(2).hot(scores)[0].tolist() == [[True, True, False, False], [True, True, False, False]]
    assert Capacity(2, across_layers=True).hot(scores)[0].tolist() == [[True, False, False, False], [True, True, True, False]]
    assert Capacity.of_bytes(1_000, 300, 8) == Capacity(3)
    assert Capacity.of_bytes(10_000, 300, 8) == Capacity(8)
    assert Capacity.of_bytes(299, 300, 8) == Capacity(0)
    for wrong in (Capacity(5), Capacity(5, across_layers=True)):
        refuses("5 hot experts of 4 per layer", wrong.hot, scores)
    refuses("must be 0 experts", Capacity, -1)


def seen(seed=0, groups=6, n_layers=3, n_experts=8):
    rng = np.random.default_rng(seed)
    prefill = rng.integers(0, 30, (groups, n_layers, n_experts))
    decode = rng.integers(0, 30, (groups, n_layers, n_experts))
    return Seen(prefill, prefill * 0.5, decode, (prefill + decode).sum(axis=0))


@pytest.mark.parametrize("capacity", [Capacity(k, across) for k in (0, 1, 4, 8) for across in (False, True)], ids=str)
def test_no_fixed_set_is_hit_more_often_than_the_oracle(capacity):
    state = seen()
    hits = {}
    for name, placement in PLACEMENTS.items():
        if placement.kind == "fixed":
            hot = capacity.hot(placement().scores(state))
            assert (hot.sum(axis=(1, 2)) == 3 * capacity.experts).all()
            hits[name] = (state.decode_counts * hot).sum(axis=(1, 2))
    for name, found in hits.items():
        assert (found <= hits["oracle"]).all(), name
    assert [name for name, placement in PLACEMENTS.items() if placement.is_bound] == ["oracle"]


def test_what_each_fixed_placement_goes_by():
    state = seen(1)
    assert np.array_equal(PrefillGuided(0.3).scores(state), importance(state.prefill_counts, state.prefill_weights, 0.3))
    assert np.array_equal(Oracle().scores(state).argmax(-1), state.decode_counts.argmax(-1))
    static = StaticGlobal().scores(state)
    assert np.array_equal(static[0], static[5])
    assert np.array_equal(static[0].argmax(-1), state.tape_counts.argmax(-1))
    drawn = RandomPlacement(3).scores(state)
    assert np.array_equal(drawn, RandomPlacement(3).scores(state))
    assert not np.array_equal(hot_set(drawn, 4), hot_set(RandomPlacement(4).scores(state), 4))
    for groups in (2, 5):
        state = seen(2, groups)
        own, of_another = PrefillGuided(0.3).scores(state), ShuffledPrompts(0.3).scores(state)
        assert [of_another[g].tolist() for g in range(groups)] == [own[g - 1].tolist() for g in range(groups)]


# -------------------------------------------------------------------------------------------------------------- reactive


def follow(policy, steps, capacity, average=None, resident=None):
    """Residents after each step and what moved, over counts (T, E)."""
    n_experts = steps.shape[1]
    average = np.zeros(n_experts) if average is None else average.copy()
    resident = np.zeros(n_experts, np.uint8) if resident is None else resident.astype(np.uint8)
    states = []
    for counts in steps:
        moved = policy.migrate(counts, average, resident, capacity, policy.params())
        states.append((np.flatnonzero(resident).tolist(), moved))
    return states


def random_steps(seed, n_steps=40, n_experts=7, n_tokens=6):
    rng = np.random.default_rng(seed)
    return rng.multinomial(n_tokens, rng.dirichlet(np.ones(n_experts)), n_steps).astype(np.int64)


def obvious_ema(beta, steps, capacity, average, resident):
    """One migration at a time: a wanted expert enters, the resident one of lowest average leaves."""
    average, resident, states = dict(enumerate(average.tolist())), set(np.flatnonzero(resident).tolist()), []
    for counts in steps.tolist():
        average = {e: beta * a + (1 - beta) * counts[e] for e, a in average.items()}
        wanted = sorted(average, key=lambda e: (-average[e], e))[:capacity]
        moved = 0
        for e in wanted:
            if e not in resident:
                if len(resident) == capacity:
                    resident.remove(min(resident, key=lambda r: (average[r], -r)))
                resident.add(e)
                moved += 1
        states.append((sorted(resident), moved))
    return states


@pytest.mark.parametrize("seed", range(20))
def test_the_average_moves_experts_as_a_dictionary_does(seed):
    steps, capacity = random_steps(seed), seed % 6 + 1
    start = start_average(steps[:10].sum(axis=0), 3, 2)
    assert start.sum() == pytest.approx(6.0)
    resident = hot_set(start, capacity)
    beta = (0.9, 0.5, 0.0)[seed % 3]
    found = follow(EMA(beta), steps, capacity, start, resident)
    assert found == obvious_ema(beta, steps, capacity, start, resident)
    assert all(len(state) == capacity and moved <= capacity for state, moved in found)


def test_never_always_and_balance():
    steps = np.array([[3, 0, 1, 2], [0, 0, 0, 6], [0, 0, 0, 0]], np.int64)
    assert follow(Never(), steps, 2) == [([], 0)] * 3
    assert follow(Always(), steps, 2) == [([0, 3], 2), ([3], 1), ([], 0)]  # refetched though it was there; idle ones are not
    assert follow(Balance(16.0, 0.25), steps, 4) == [([], 0)] * 3
    # Fetch half a read: 3 experts read where they lie take 3, one moved 2, two moved max(1, 1); a third would take 1.5.
    assert follow(Balance(fetch_reads=0.5, token_reads=0.25), steps, 4)[0] == ([0, 3], 2)
    assert follow(Balance(fetch_reads=0.5, token_reads=0.25), steps, 1)[0] == ([0], 1)
    # Reads by token, a fetch takes four: 22 there, max(4, 13), max(8, 5), max(12, 2).
    assert follow(Balance(fetch_reads=4.0, token_reads=1.0), np.array([[9, 8, 3, 2]]), 4) == [([0, 1], 2)]
    # 6 tokens of half a read each take 3 there, 2 over the link.
    assert follow(Balance(fetch_reads=2.0, token_reads=0.5), steps, 4)[1] == ([3], 1)


@pytest.mark.parametrize("seed", range(10))
def test_balance_finds_the_shortest_of_all_numbers_of_moves(seed):
    rng = np.random.default_rng(seed)
    policy = Balance(fetch_reads=float(rng.uniform(0.2, 4)), token_reads=0.4)
    for counts, (state, moved) in zip(random_steps(seed), follow(policy, random_steps(seed), 5), strict=True):
        there = [max(1.0, 0.4 * c) if c else 0.0 for c in sorted(counts, reverse=True)]
        times = [max(policy.fetch_reads * h, sum(there[h:])) for h in range(min(5, np.count_nonzero(counts)) + 1)]
        assert len(state) == moved
        assert times[moved] == pytest.approx(min(times))


@pytest.mark.parametrize("policy", [EMA(), Never(), Always(), Balance(0.5, 0.25)], ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("capacity", [0, 7])
def test_no_room_and_room_for_all(policy, capacity):
    resident = np.ones(7, bool) if capacity and policy.starts_placed else None
    for state, moved in follow(policy, random_steps(0), capacity, resident=resident):
        assert len(state) <= capacity
        assert moved <= len(state)
        assert not (policy.starts_placed and moved)


def near_of(policy, counts, resident, layer=0):
    """Of an event of experts 0, 1, ...: those that compute where they lie."""
    near = np.zeros(len(counts), np.uint8)
    keys = np.arange(len(counts))
    policy.where(layer, keys, np.asarray(counts), np.asarray(resident, np.uint8), near, policy.params())
    return near.tolist()


@pytest.mark.parametrize("seed", range(20))
def test_an_expert_computes_where_it_lies_if_that_is_faster(seed):
    rng = np.random.default_rng(seed)
    counts, resident = rng.integers(1, 9, 12), rng.random(12) < 0.4
    fetch, token, main = rng.uniform(0.5, 4), rng.uniform(0, 1), rng.uniform(0, 1)
    wanted = [not held and max(1.0, token * n) < fetch + main for n, held in zip(counts, resident, strict=True)]
    assert near_of(NearIfFaster(fetch, token, main), counts, resident) == wanted


@pytest.mark.parametrize("seed", range(20))
def test_link_and_memory_share_what_is_missing(seed):
    """As a list that both take from, each at its own end, whoever is done sooner."""
    rng = np.random.default_rng(seed)
    counts, resident = rng.integers(1, 9, 12), rng.random(12) < 0.4
    fetch, token = rng.uniform(0.2, 4), rng.uniform(0, 1)
    found = near_of(NearBesideLink(fetch, token, 0.0), counts, resident)
    left = sorted(np.flatnonzero(~resident), key=lambda e: counts[e])
    near, near_s, link_s = [], 0.0, 0.0
    while left:
        if near_s + max(1.0, token * counts[left[0]]) <= link_s + fetch:
            near_s += max(1.0, token * counts[left[0]])
            near.append(left.pop(0))
        else:
            link_s += fetch
            left.pop()
    assert sorted(counts[i] for i, is_near in enumerate(found) if is_near) == sorted(counts[e] for e in near)
    alone = sum(max(1.0, token * n) for n, held in zip(counts, resident, strict=True) if not held)
    assert max(near_s, link_s) <= min(alone, fetch * (~resident).sum()) + max(fetch, token * 9, 1.0)


def test_what_a_machine_says_is_taken_unless_it_is_given():
    host = Host(n_away=7, fetch_reads=3.0, token_reads=0.5, main_reads=0.1)
    assert NearIfFaster(token_reads=2.0).on(host).params().tolist() == [3.0, 2.0, 0.1]
    assert Balance(fetch_reads=8.0).on(host).params().tolist() == [8.0, 0.5]
    assert [near_of(FirstLayersNear().on(host), [1], [0], layer) for layer in (0, 6, 7)] == [[1], [1], [0]]
    assert near_of(FirstLayersNear(2).on(host), [1], [0], 2) == [0]
    for policy in (NearIfFaster(), Balance(), FirstLayersNear()):
        refuses("run it on one", policy.params)
    refuses("fetch_reads", Balance, float("nan"))
