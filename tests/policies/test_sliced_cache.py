"""The sliced cache, its routers and budgets against an obvious oracle, invariants, edge cases, and where slicing must lose."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusing import refuses
from sliced_oracle import natural, obvious_decode
from sliced_scores import made_up_scores, prompt, softmax

from tokentape.policies.cache import ExpertCache
from tokentape.policies.residency import CACHES
from tokentape.policies.sliced import BUDGETS, PRECISIONS, ROUTERS, WARMUPS, Controller, SlicedCache, SliceMoE
from tokentape.policies.sliced.buddy import Buddy, gate_similarity
from tokentape.policies.sliced.cache_prior import CachePrior
from tokentape.policies.sliced.precision import Critical, Hard, HighBit, LowBit, Soft
from tokentape.policies.sliced.ranking import Router
from tokentape.policies.sliced.warmup import Empty

MSB, LSB = 5_136_384, 4_325_376  # MAT84 of DeepSeek-V2-Lite


def make_router(name, rng, n_layers=3, n_experts=10):
    if name == "cache_prior":
        return CachePrior(float(rng.choice([0.0, 0.2, 1.0])), int(rng.integers(0, 4)))
    if name == "max_rank":
        return ROUTERS[name](int(rng.integers(1, 14)))
    if name == "cumsum":
        return ROUTERS[name](float(rng.uniform(0.1, 1.0)), int(rng.integers(0, 3)))
    if name == "buddy":
        similarity = np.round(rng.random((n_layers, n_experts, n_experts)).astype(np.float32), 1)  # with ties
        return Buddy(similarity, float(rng.uniform(0.2, 1.0)))
    return ROUTERS[name]()


def random_system(seed):
    """A composition drawn from the seed, and the name of its router."""
    rng = np.random.default_rng(seed)
    name = list(ROUTERS)[seed % len(ROUTERS)]
    budget = [BUDGETS["none"](), Hard(float(rng.uniform(0, 0.4)))][int(rng.integers(2))]
    if name == "cache_prior" and rng.random() < 0.5:
        budget = Soft(float(rng.uniform(0, 0.4)))
    precision = [HighBit(), LowBit(), PRECISIONS["amat"](), Critical(0.35), Critical(-1.0), Critical(0.1)][int(rng.integers(6))]
    cache = SlicedCache(
        lsb_policy=str(rng.choice(["on_pressure", "after_use"])),
        skip_lsb_when_over_budget=bool(not isinstance(budget, BUDGETS["none"]) and rng.random() < 0.5),
    )
    router = make_router(name, rng)
    return SliceMoE(router, cache, precision, budget, Empty(), free_steps=int(rng.integers(0, 8))), name, rng


@pytest.mark.parametrize("seed", range(200))
def test_the_fast_cache_equals_the_dictionary_oracle(seed):
    system, name, rng = random_system(seed)
    layer, values, gates = made_up_scores(seed, 25, 3, 10)
    if rng.random() < 0.3:
        values = np.round(values)  # ties
        gates = softmax(values)
    k, msb, lsb = int(rng.integers(1, 5)), int(rng.integers(1, 9)), int(rng.integers(0, 9))
    capacity = int(rng.integers(0, 30 * (msb + lsb)))
    controller = Controller(system, 3, 10, k, msb, lsb, capacity)
    events = controller.decode(layer, values, gates)
    rows, cache = obvious_decode(system, name, 3, k, msb, lsb, capacity, layer, values, gates)
    for i, (ids, high, msb_hit, lsb_hit, needed, degraded, flash, dram) in enumerate(rows):
        assert events.ids[i].tolist() == ids, i
        assert events.is_high[i].tolist() == high
        assert events.msb_hit[i].tolist() == msb_hit
        assert events.lsb_hit[i].tolist() == lsb_hit
        assert events.lsb_needed[i].tolist() == needed
        assert events.degraded[i].tolist() == degraded
        assert (events.flash_bytes[i], events.dram_bytes[i]) == (flash, dram)
    assert {tuple(key) for key in np.argwhere(controller.msb_resident).tolist()} == set(cache.msb)
    assert {tuple(key) for key in np.argwhere(controller.lsb_resident).tolist()} == set(cache.lsb)
    assert controller.used_bytes == cache.used


@given(seed=st.integers(0, 2**32 - 1), capacity=st.integers(0, 200), warmup=st.sampled_from(list(WARMUPS)))
@settings(max_examples=60, deadline=None)
def test_invariants_hold_after_every_access_and_one_event_per_call_is_the_same(seed, capacity, warmup):
    system, _, _ = random_system(seed)
    system = replace(system, warmup=WARMUPS[warmup]())
    layer, values, gates = made_up_scores(seed, 12, 3, 10)
    whole, single = (Controller(system, 3, 10, 3, 5, 4, capacity) for _ in range(2))
    for controller in (whole, single):
        controller.prefill(*prompt(layer, values, gates, 3, 6))
        controller.end_prefill()
    at_once = whole.decode(layer[18:], values[18:], gates[18:])
    for i in range(18, layer.size):
        row = slice(i, i + 1)
        event = single.decode(layer[row], values[row], gates[row])
        for name, of in vars(event).items():
            assert np.array_equal(of[0], getattr(at_once, name)[i - 18]), name
        assert np.all(single.msb_resident >= single.lsb_resident)
        unit = 9 if isinstance(system.precision, HighBit) else 5
        held = unit * single.msb_resident.sum() + 4 * single.lsb_resident.sum()
        assert held == single.used_bytes <= capacity
    if not system.needs_scores:  # nothing reroutes
        assert np.all(at_once.degraded == 0)
    assert np.array_equal(whole.msb_resident, single.msb_resident)


@pytest.mark.parametrize(
    "router",
    [CachePrior(0.0), ROUTERS["max_rank"](6), ROUTERS["cumsum"](0.0, 2), Buddy(np.zeros((4, 20, 20), np.float32), 2.0)],
    ids=["cache_prior", "max_rank", "cumsum", "buddy"],
)
def test_zero_strength_is_the_stock_router_byte_for_byte(router):
    layer, values, gates = made_up_scores(1, 80, 4, 20)
    stock, zero = (
        Controller(SliceMoE(r, precision=Critical()), 4, 20, 6, MSB, LSB, 25 * (MSB + LSB)).decode(layer, values, gates)
        for r in (ROUTERS["lru"](), router)
    )
    for name, wanted in vars(stock).items():
        assert getattr(zero, name).tobytes() == wanted.tobytes(), name
    assert stock.ids.tolist() == [natural(row, 6) for row in values]


@pytest.mark.parametrize("router", ["lru", "cache_prior", "max_rank", "cumsum"])
@pytest.mark.parametrize("n_experts", [6, 40, 64, 100])
def test_ties_and_ruled_out_experts_follow_the_lowest_index(router, n_experts):
    rng = np.random.default_rng(n_experts)
    values = rng.integers(-2, 3, (300, n_experts)).astype(np.float32)
    values[values == 0] = rng.choice(np.array([0.0, -0.0], np.float32), (values == 0).sum())
    values[rng.random(values.shape) < 0.3] = -np.inf
    values[:, :4] = 0.0
    gates = softmax(values)
    made = ROUTERS[router](
        **{"cache_prior": {"strength": 0.0}, "max_rank": {"max_rank": 4}, "cumsum": {"share_frac": 0.0}}.get(router, {})
    )
    events = Controller(SliceMoE(made), 1, n_experts, 4, 5, 4, 40).decode(np.zeros(300, np.int32), values, gates)
    assert events.ids.tolist() == [natural(row, 4) for row in values]


def test_what_routers_ask_for_and_which_of_them_pulls():
    made = {name: make_router(name, np.random.default_rng(0)) for name in ROUTERS} | {"cache_prior": CachePrior(0.2)}
    assert {name for name, router in made.items() if SliceMoE(router).needs_scores} == set(ROUTERS) - {"lru"}
    assert SliceMoE(made["lru"], budget=Hard(0.1)).needs_scores
    pulls = {name: Controller(SliceMoE(router), 3, 10, 2, 5, 4, 40).strength for name, router in made.items()}
    assert pulls == dict.fromkeys(ROUTERS, 0.0) | {"cache_prior": 0.2}
    assert ROUTERS["max_rank"]() == ROUTERS["max_rank"](12)


def test_equal_gates_choose_the_first_experts_and_weights_come_from_the_unmodified_scores():
    """Negative: a router that weighed by its boosted scores would call resident experts critical."""
    gates = np.full((5, 8), 1 / 8, np.float32)
    events = Controller(SliceMoE(), 1, 8, 3, 5, 4, 100).decode(np.zeros(5, np.int32), np.zeros((5, 8)), gates)
    assert np.all(events.ids == [0, 1, 2])
    assert not events.lsb_needed.any()  # a third each is below tau
    # Negative: a router that weighed by its boosted scores would call resident experts critical.
    values = np.log(np.array([[0.5, 0.3, 0.1, 0.06, 0.04]], np.float32)).repeat(2, 0)
    values[1] = np.log(np.array([0.25, 0.24, 0.2, 0.16, 0.15], np.float32))
    controller = Controller(SliceMoE(CachePrior(1.0, 0), precision=Critical(0.6)), 1, 5, 2, 5, 4, 100)
    events = controller.decode(np.zeros(2, np.int32), values, np.exp(values))
    assert events.lsb_needed.tolist() == [[1, 0], [0, 0]]  # 0.5 / 0.8; then 0.25 / 0.49, whatever the bonus


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_a_row_without_enough_experts_is_refused_by_number(bad):
    layer, values, gates = made_up_scores(0, 4, 2, 8)
    values[5, :6] = bad
    with pytest.raises(ValueError, match=r"event 5 \(layer 1\) has fewer than 4 experts"):
        Controller(SliceMoE(), 2, 8, 4, 5, 4, 100).decode(layer, values, gates)
    refuses("event 5", Controller(SliceMoE(), 2, 8, 4, 5, 4, 100).prefill, layer, values, gates)


def test_bad_arguments_are_refused_in_one_line():
    layer, values, gates = made_up_scores(0, 4, 2, 8)
    controller = Controller(SliceMoE(), 2, 8, 4, 5, 4, 100)
    refuses("do not fit", controller.decode, layer, values[:, :7], gates)
    refuses(r"must lie in 0\.\.1", controller.decode, layer + 1, values, gates)
    refuses("top_k at most", Controller, SliceMoE(), 2, 8, 9, 5, 4, 100)
    refuses("similarity is", Controller, SliceMoE(Buddy(np.zeros((1, 8, 8), np.float32))), 2, 8, 4, 5, 4, 100)


def test_an_empty_stream_and_a_capacity_below_one_slice():
    layer, values, gates = made_up_scores(0, 6, 2, 8)
    none = Controller(SliceMoE(), 2, 8, 4, 5, 4, 100).decode(layer[:0], values[:0], gates[:0])
    assert none.ids.shape == (0, 4)
    controller = Controller(SliceMoE(precision=Critical(-1.0)), 2, 8, 4, 5, 4, 4)
    events = controller.decode(layer, values, gates)
    assert controller.used_bytes == 0
    assert np.all(events.flash_bytes == 4 * 9)
    assert np.all(events.is_high == 1)


def test_misses_fall_with_capacity_and_as_cache_prior_pulls_harder():
    layer, values, gates = made_up_scores(5, 200, 6, 24)
    system = SliceMoE(ROUTERS["lru"](), precision=HighBit(), free_steps=0)
    misses = [int(Controller(system, 6, 24, 4, 1, 0, c).decode(layer, values, gates).flash_bytes.sum()) for c in range(4, 145, 4)]
    assert misses == sorted(misses, reverse=True)
    assert misses[-1] == np.unique(np.c_[np.repeat(layer, 4), np.argsort(-values, 1, "stable")[:, :4].ravel()], axis=0).shape[0]
    layer, values, gates = made_up_scores(7, 300, 8, 32)
    missed = []
    for strength in (0.0, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0):
        controller = Controller(SliceMoE(CachePrior(strength), precision=HighBit()), 8, 32, 4, 1, 0, 128)
        controller.decode(layer, values, gates)
        missed.append(controller.miss_frac)
    assert all(later <= earlier + 0.01 for earlier, later in itertools.pairwise(missed))
    assert missed[-1] < 0.5 * missed[0]


@pytest.mark.parametrize("capacity", [8, 24, 60, 100])
def test_lru_equals_the_expert_cache_and_belady_bounds_every_policy_that_does_not_reroute(capacity):
    layer, values, gates = made_up_scores(6, 150, 6, 24)
    chosen = np.argsort(-values, axis=1, kind="stable")[:, :4]
    keys = (layer[:, None] * 24 + chosen).astype(np.int32).ravel()
    sizes, bounds = np.ones(144, np.int64), np.arange(0, keys.size + 1, 4)

    def misses(policy):
        cache = ExpertCache(CACHES[policy](), sizes, np.zeros(144, np.int32), np.array([capacity], np.int64))
        return int((1 - cache.advance(keys, bounds)).sum())

    def sliced(precision, n_bytes):
        controller = Controller(SliceMoE(precision=precision, free_steps=0), 6, 24, 4, 1, 0, n_bytes)
        return int((1 - controller.decode(layer, values, gates).msb_hit).sum())

    assert sliced(HighBit(), capacity) == misses("lru")
    for precision in PRECISIONS.values():
        assert sliced(precision(), capacity) >= misses("belady-bypass")


def test_pinned_slices_stay_while_their_layer_is_in_flight():
    """Four experts fit; the two of the event that came last and the LSB of a member must survive the member's own misses."""
    gates = np.full((3, 6), 0.01, np.float32)
    gates[0, [0, 1]] = 0.9, 0.1  # 0 is critical: MSB 0 1, LSB 0
    gates[1, [2, 3]] = 0.5, 0.5
    gates[2, [4, 0]] = 0.5, 0.4  # 0 is the oldest resident and pinned: 4 must push 1 out, not 0
    controller = Controller(SliceMoE(precision=Critical(0.8)), 1, 6, 2, 10, 3, 43)
    events = controller.decode(np.zeros(3, np.int32), np.log(gates), gates)
    assert events.lsb_needed.tolist() == [[1, 0], [0, 0], [0, 0]]
    assert events.msb_hit[2].tolist() == [0, 1]
    assert np.flatnonzero(controller.msb_resident[0]).tolist() == [0, 2, 3, 4]
    # The pinned LSB stays too as long as something unpinned can leave in its place.
    assert controller.lsb_resident[0].tolist() == [True, False, False, False, False, False]


def test_similarity_of_recorded_gates_is_a_cosine():
    layer, _, gates = made_up_scores(8, 50, 2, 6)
    found = gate_similarity(layer, gates, 2)
    assert np.allclose(np.diagonal(found, axis1=1, axis2=2), 1.0)
    a, b = gates[layer == 1][:, 2], gates[layer == 1][:, 5]
    assert found[1, 2, 5] == pytest.approx(float(a @ b / np.sqrt((a @ a) * (b @ b))), rel=1e-5)


def test_a_router_of_the_users_own_needs_no_numba():
    class Last(Router):
        @staticmethod
        def choose(layer, values, gates, natural, resident, phase, params, work, ids):
            for j in range(ids.shape[1]):
                ids[:, j] = values.shape[1] - 1 - j

    layer, values, gates = made_up_scores(9, 5, 2, 6)
    events = Controller(SliceMoE(Last()), 2, 6, 2, 5, 4, 40).decode(layer, values, gates)
    assert set(events.ids.ravel().tolist()) == {4, 5}
