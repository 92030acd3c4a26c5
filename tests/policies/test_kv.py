"""KV eviction kernels against a dictionary, and what every policy must keep to."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_oracle import aep
from refusing import refuses

from tokentape.policies.kv import KV_POLICIES
from tokentape.policies.kv.importance import AEP, H2O
from tokentape.policies.kv.random_eviction import RandomEviction, drawn
from tokentape.policies.kv.recompute import X_TOKENS, Widths, after_prompt, enter, judge, leave, pays
from tokentape.policies.kv.rule import UNLIMITED
from tokentape.policies.kv.slots import Slots, salts_of
from tokentape.policies.kv.snapkv import SnapKV
from tokentape.policies.kv.streaming import Streaming
from tokentape.policies.kv.tova import TOVA

SCORED = [
    Streaming(8, sink=2), H2O(8), TOVA(8), SnapKV(8, window=3), RandomEviction(8, sink=1), AEP(8, sink=1),
    AEP(8, sink=0, recent=0, importance="mean"), AEP(8, sink=2, importance="decay"), AEP(8, sink=1, score_bits=4),
]  # fmt: skip


def attention(rng, n_heads, c, n_steps, n_levels=0):
    """(prompt (H, c) column sums, rows (T, H, c + T)) of causal attention; n_levels: few distinct masses, so that scores tie."""
    n = c + n_steps
    logits = rng.normal(size=(n_heads, n, n)) * 2
    mass = np.exp(logits) if not n_levels else rng.integers(1, n_levels + 1, logits.shape).astype(float)
    mass *= np.tril(np.ones((n, n)))
    if not n_levels:
        mass /= mass.sum(axis=-1, keepdims=True)
    return mass[:, :c].sum(axis=1)[:, :c], mass[:, c:].transpose(1, 0, 2)


def run(policy, prompt, rows, window=0, n_slots=None):
    """Kept positions by step and head, sorted, and the slots at the end."""
    n_heads, c = prompt.shape
    slots = Slots(policy, salts_of(0, n_heads), n_slots)
    slots.start(prompt, window=window)
    states = [[sorted(p[p >= 0].tolist()) for p in slots.positions]]
    for i, row in enumerate(rows):
        now = np.full(n_heads, c + i)
        slots.place(now)
        mass = np.where(slots.positions >= 0, np.take_along_axis(row, np.maximum(slots.positions, 0), axis=1), 0.0)
        slots.settle(mass, now, window)
        states.append([sorted(p[p >= 0].tolist()) for p in slots.positions])
    return states, slots


@pytest.mark.parametrize("seed", range(200))
def test_eviction_equals_a_dictionary_ties_included(seed):
    rng = np.random.default_rng(seed)
    c, n_steps, n_heads = int(rng.integers(1, 20)), int(rng.integers(0, 25)), int(rng.integers(1, 4))
    budget = int(rng.integers(1, 14))
    sink = int(rng.integers(0, max(1, budget - 1)))
    recent = int(rng.integers(0, budget - sink))
    window = int(rng.choice([0, 0, 3, 9]))
    importance = ("sum", "mean", "decay")[seed % 3]
    prompt, rows = attention(rng, n_heads, c, n_steps, n_levels=2 * (seed % 2))
    states, _ = run(AEP(budget, sink, recent, importance=importance), prompt, rows, window)
    for h in range(n_heads):
        expected = aep(prompt[h], rows[:, h], budget, sink, recent, importance, window=window)
        assert [state[h] for state in states] == expected


@pytest.mark.parametrize("policy", SCORED, ids=lambda p: f"{type(p).__name__}-{getattr(p, 'importance', '')}")
@pytest.mark.parametrize("c", [1, 3, 8, 9, 30])
def test_budget_sink_and_recent_hold_and_nothing_returns(policy, c):
    prompt, rows = attention(np.random.default_rng(c), 3, c, 30)
    states, _ = run(policy, prompt, rows)
    budget, sink, recent = policy.limits
    for i, state in enumerate(states):
        seen = c + i
        for kept in state:
            assert len(kept) == min(budget, seen)
            assert set(range(min(sink, seen))) <= set(kept)
            assert set(range(max(0, seen - recent), seen)) <= set(kept)
    for before, after in pairwise(states):
        for kept, then in zip(before, after, strict=True):
            assert set(then) <= set(kept) | {max(max(kept), max(then))}


@pytest.mark.parametrize("policy", [H2O(8), RandomEviction(8, sink=1)], ids=lambda p: type(p).__name__)
def test_sets_filled_in_parts_are_those_filled_at_once(policy):
    mass = attention(np.random.default_rng(3), 7, 20, 0)[0]
    whole, parts = (Slots(policy, salts_of(0, 7)) for _ in range(2))
    kept = whole.start(mass)
    for first, last in ((0, 3), (3, 5), (5, 7)):
        assert np.array_equal(parts.start(mass[first:last], first), kept[first:last])
    for name in ("positions", "total", "rank", "memory"):
        assert np.array_equal(getattr(parts, name), getattr(whole, name))


@dataclass(frozen=True)
class OwnTOVA(TOVA):
    """What a person writes: plain Python, which is compiled at first use."""

    @staticmethod
    def weigh(mass, positions, now, total, rank, memory, salt, params):
        for s in range(mass.shape[0]):
            rank[s] = mass[s]


class NoNumber(OwnTOVA):
    @staticmethod
    def weigh(mass, positions, now, total, rank, memory, salt, params):
        rank[:] = np.nan


class Short(OwnTOVA):
    @staticmethod
    def weigh(mass, positions, now):
        pass


def test_scores_of_ones_own_need_no_decorator():
    prompt, rows = attention(np.random.default_rng(2), 2, 12, 20)
    assert run(OwnTOVA(6), prompt, rows)[0] == run(TOVA(6), prompt, rows)[0]
    refuses(r"Short.weigh does not compile with numba: .* takes 3 arguments", run, Short(6), prompt, rows)
    refuses("weigh ranked a token NaN", run, NoNumber(6), prompt, rows, error=FloatingPointError)


def test_streaming_keeps_the_latest_where_a_window_has_dropped_its_sink():
    prompt = np.array([[9.0, 8.0, 7.0, 6.0, 5.0, 9.0, 4.0, 3.0, 2.0, 1.0]])
    states, _ = run(Streaming(4, sink=1), prompt, np.ones((6, 1, 16)), window=8)
    assert [kept for (kept,) in states] == [list(range(n - 4, n)) for n in range(10, 17)]


def test_tova_drops_what_the_last_query_sees_least_and_full_nothing():
    prompt = np.array([[1.0, 0.1, 0.5]])
    rows = np.array([[[0.5, 0.3, 0.05, 0.15]], [[0.1, 0.4, 0.2, 0.3]]])
    rows = [np.pad(r, ((0, 0), (0, 2))) for r in rows]
    states, _ = run(TOVA(2), prompt, [])
    assert states == [[[0, 2]]]  # the newest stays, then the most attended
    states, _ = run(TOVA(3), prompt, rows[:1])
    assert states[-1] == [[0, 1, 3]]
    prompt, rows = attention(np.random.default_rng(0), 2, 5, 40)
    states, slots = run(KV_POLICIES["full"](), prompt, rows)
    assert states[-1] == [list(range(45))] * 2
    assert slots.positions.shape[1] < 2 * 64


def test_tokens_that_a_window_no_longer_attends_to_are_equals_of_which_the_oldest_leaves():
    rng, left = np.random.default_rng(0), []
    slots = Slots(SnapKV(12, window=3, pool=1), salts_of(0, 1))
    slots.start(rng.random((1, 12)))
    for now in range(12, 24):
        newest = slots.place(np.array([now]))
        mass = rng.random((1, 13)) if now < 15 else np.eye(13)[newest]
        left.append(int(slots.settle(mass, np.array([now]))[0]))
    assert left[6:] == sorted(left[6:])


def test_snapkv_forgets_what_its_window_no_longer_sees_and_pools_over_neighbours():
    """Token 0 has all attention until the window has moved on."""
    prompt = np.array([[9.0, 1.0, 1.0, 1.0]])
    rows = np.zeros((8, 1, 12))
    rows[:2, 0, :2] = 1.0, 0.5
    rows[2:, 0, 1] = 1.0
    states, _ = run(SnapKV(4, window=2, pool=1), prompt, rows)
    assert 0 in states[2][0]
    assert 0 not in states[-1][0]
    assert 1 in states[-1][0]
    prompt = np.zeros((1, 12))
    prompt[0, 5] = 1.0
    states, _ = run(SnapKV(5, window=2, pool=3), prompt, [])
    assert states == [[[4, 5, 6, 10, 11]]]


def test_random_draws_are_uniform_repeatable_and_of_every_heads_own_salt():
    draws = np.array([drawn(3, 7, p, t) for p in range(100) for t in range(100)])
    assert 0 <= draws.min() < draws.max() < 1
    assert abs(draws.mean() - 0.5) < 4 / np.sqrt(12 * draws.size)
    assert np.unique(draws).size == draws.size
    golden = [0.3206375063632214, 0.08380632374876407, 0.7413807289637118, 0.20389865064788415]  # the same in every release
    assert [drawn(3, 7, p, 2 * p + 1) for p in range(4)] == golden
    prompt, rows = attention(np.random.default_rng(2), 2, 20, 20)
    first, again = (run(RandomEviction(6, sink=1, seed=5), prompt, rows)[0] for _ in range(2))
    other, _ = run(RandomEviction(6, sink=1, seed=6), prompt, rows)
    assert first == again != other
    assert any(state[0] != state[1] for state in first)  # heads draw for themselves
    refuses("seed 9223372036854775808 must lie in", RandomEviction, seed=2**63)
    salts = np.concatenate([salts_of(layer, 128) for layer in range(64)])
    assert np.unique(salts).size == salts.size


@given(st.integers(0, 10_000), st.integers(2, 16))
@settings(max_examples=60, deadline=None)
def test_a_narrow_register_ranks_as_the_wide_one_up_to_its_steps(seed, bits):
    """The victim of `bits` bits is never more than one register step above the true minimum."""
    rng = np.random.default_rng(seed)
    prompt, rows = attention(rng, 1, 10, 1)
    policy = AEP(10, sink=0, recent=0, score_bits=bits)
    states, _ = run(policy, prompt, rows)
    scores = np.append(prompt[0], 0.0) + rows[0, 0]
    (evicted,) = set(range(11)) - set(states[-1][0])
    step = 2.0 * scores.mean() / (2**bits - 1)
    saturated = np.minimum(np.floor(scores / step), 2**bits - 1)
    assert saturated[evicted] == saturated.min()
    assert evicted == int(np.argmin(saturated))


def test_a_shared_register_saturates_large_scores():
    lowest, highest = AEP(score_bits=4).params()[2:]
    assert (lowest, highest) == (0, 15)
    assert AEP(score_bits=4, score_kind="raw").params()[2:].tolist() == [-8, 7]


def test_defaults_auto_recent_and_what_no_or_the_smallest_budget_means():
    made = {name: kind() for name, kind in KV_POLICIES.items()}
    assert {name for name, policy in made.items() if policy.is_per_head is not True} == {"tova"}  # as published
    assert TOVA(is_per_head=True).is_per_head is True
    assert AEP(is_per_head=False).is_per_head is False
    assert (TOVA.prompt_queries, Streaming().sink) == (1, 4)
    for name, kind in KV_POLICIES.items():
        policy = kind(None)
        assert policy.limits == (UNLIMITED, 0 if name == "full" else policy.sink, 0), name
    assert AEP(32, sink=10).limits == (32, 10, 16)
    assert AEP(16, sink=10).limits == (16, 10, 5)
    prompt, rows = attention(np.random.default_rng(3), 1, 4, 6)
    states, _ = run(AEP(1, sink=0), prompt, rows)
    assert all(len(s[0]) == 1 for s in states)


# ------------------------------------------------------------------------------------------------------------ recomputation


def counted(held, is_x, theta, n_heads):
    return [
        np.count_nonzero(held), (held > theta * n_heads).sum(), held.sum(), held[is_x == 0].sum(), (is_x & (held > 0)).sum(),
    ]  # fmt: skip


@given(st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_tallies_equal_a_count_from_scratch(seed):
    rng = np.random.default_rng(seed)
    n_heads, n = int(rng.integers(1, 7)), 30
    held, c = np.zeros(n, np.int32), int(rng.integers(0, 10))
    held[:c] = rng.integers(0, n_heads + 1, c)
    is_x = np.zeros(n, np.uint8)
    is_x[:], tally = after_prompt(held, n_heads, 0.5, True)
    for now in range(c, n):
        enter(held, is_x, tally, now, n_heads, 0.5, True)
        assert is_x[now]
        for _ in range(int(rng.integers(0, 5))):
            alive = np.flatnonzero(held)
            if alive.size:
                leave(held, is_x, tally, int(rng.choice(alive)), n_heads, 0.5)
        if now - c >= 3:
            judge(held, is_x, tally, now - 3, n_heads, 0.5)
            assert bool(is_x[now - 3]) == (held[now - 3] > 0.5 * n_heads)
        assert tally.tolist() == counted(held, is_x, 0.5, n_heads)


def test_exactly_half_is_not_popular_and_the_form_is_sticky():
    is_x, tally = after_prompt(np.array([2, 3, 1], np.int32), 4, 0.5, True)
    assert is_x.tolist() == [0, 1, 0]
    held = np.array([2, 3, 1], np.int32)
    for _ in range(2):
        leave(held, is_x, tally, 1, 4, 0.5)
    assert is_x[1] == 1  # one head of four is left
    leave(held, is_x, tally, 1, 4, 0.5)
    assert (is_x[1], tally[X_TOKENS]) == (0, 0)


def test_a_layer_input_pays_where_it_is_smaller_than_all_heads():
    """C = 4096, 32 heads: x 8192 B, keys and values of one head 512 B."""
    widths = Widths(2 * 4096, 2 * 2 * 128, 32)
    x_bytes, kv_bytes = widths.bytes_of(np.array([3, 2, 60, 20, 2]))
    assert (x_bytes, kv_bytes) == (16384, 20 * 512)
    assert widths.can_save
    assert pays(widths, "physical")
    llama = Widths(2 * 3072, 2 * 2 * 128, 8)  # LLaMA3.2-3B: 6144 B against 4096 B
    with pytest.warns(UserWarning, match=r"recompute is off: a layer input \(6144 B\) .* all 8 KV heads \(4096 B\)"):
        assert not pays(llama, "physical")
    assert pays(llama, "paper")


def test_a_row_sum_tells_tokens_not_apart():
    """The printed Eq. 3 sums a softmax row: every token scores 1, and eviction falls back to the oldest."""
    rng = np.random.default_rng(4)
    prompt, rows = attention(rng, 2, 12, 0)
    by_row, _ = run(AEP(6, sink=1, recent=2), np.ones_like(prompt), rows)
    assert by_row == [[[0, 1, 2, 3, 10, 11]] * 2]
    by_column, _ = run(AEP(6, sink=1, recent=2), prompt, rows)
    assert by_column != by_row
