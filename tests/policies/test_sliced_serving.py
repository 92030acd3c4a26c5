"""Budgets, warm-ups and the four configurations of sliced serving at the size of the paper's models; how far an output strays."""

from dataclasses import replace

import numpy as np
import pytest
from sliced_scores import made_up_scores, prompt

from tokentape.policies.matryoshka import MAT
from tokentape.policies.sliced import PRECISIONS, ROUTERS, WARMUPS, Controller, SlicedCache, SliceMoE
from tokentape.policies.sliced.cache_prior import CachePrior
from tokentape.policies.sliced.precision import Critical, Hard, HighBit, NoBudget, Soft
from tokentape.policies.sliced.strayed import low_error_frac, strayed
from tokentape.policies.sliced.warmup import PCW, Empty, LastLayer, RandomFill, begin_prompt, in_order

MSB, LSB = 5_136_384, 4_325_376  # MAT84 of both models
HIGH = MSB + LSB
MODELS = {"DeepSeek-V2-Lite": (26, 64, 6, 0.5), "Qwen1.5-MoE-A2.7B": (24, 60, 4, 0.35)}
N_PROMPT = 30


@pytest.fixture(scope="module", params=list(MODELS))
def tape(request):
    """(layers, experts, k, scores of a prompt and of at least 20,000 lookups after 10 free steps)."""
    n_layers, n_experts, k, bias = MODELS[request.param]
    n_tokens = N_PROMPT + 10 + -(-20_000 // (n_layers * k))
    return n_layers, n_experts, k, made_up_scores(0, n_tokens, n_layers, n_experts, bias)


def serve(tape, system, capacity_bytes, msb_bytes=MSB, lsb_bytes=LSB, seed=0):
    """A controller after prefill and decode, and the decode's events."""
    n_layers, n_experts, k, scores = tape
    controller = Controller(system, n_layers, n_experts, k, msb_bytes, lsb_bytes, int(capacity_bytes), seed)
    controller.prefill(*prompt(*scores, n_layers, N_PROMPT))
    controller.end_prefill()
    return controller, controller.decode(*(array[N_PROMPT * n_layers :] for array in scores))


@pytest.mark.parametrize("router", ["lru", "cache_prior"])
@pytest.mark.parametrize("precision", ["high-bit", "low-bit", "dbsc"])
@pytest.mark.parametrize("warmup", ["pcw", "empty"])
def test_hard_mode_holds_its_target_wherever_misses_are_more(tape, router, precision, warmup):
    """Done-when 4: 1 to 30 %, within 10 %."""
    for capacity in (1.8e9, 3.6e9):
        system = SliceMoE(ROUTERS[router](), precision=PRECISIONS[precision](), warmup=WARMUPS[warmup]())
        natural = serve(tape, system, capacity)[0].miss_frac
        for target in (0.01, 0.03, 0.05, 0.1, 0.2, 0.3):
            held, _ = serve(tape, replace(system, budget=Hard(target)), capacity)
            if natural > target:
                assert held.miss_frac == pytest.approx(target, rel=0.1), (capacity, natural)
            else:
                assert held.miss_frac <= target * 1.1


def test_hard_targets_of_nothing_and_too_few_resident_experts(tape):
    """Three experts fit, six are needed: the mask is lifted where fewer than k are resident, and a target is not held."""
    layer, values, gates = made_up_scores(1, 60, 2, 16)
    system = SliceMoE(precision=HighBit(), budget=Hard(0.05), warmup=Empty(), free_steps=0)
    controller = Controller(system, 2, 16, 6, 1, 0, 3)
    events = controller.decode(layer, values, gates)
    assert controller.miss_frac > 0.5
    assert not events.degraded.any()
    n_layers, _, k, _ = tape
    controller, events = serve(tape, SliceMoE(budget=Hard(0.0), precision=Critical()), 2.4e9)
    flash = events.flash_bytes[10 * n_layers :]
    assert np.count_nonzero(flash) == 1
    assert events.degraded[10 * n_layers :].any()
    assert controller.miss_frac <= k * HIGH / (flash.size * k * HIGH)


def test_soft_mode_moves_towards_its_target_and_skipped_lsb_slices_save_their_bytes(tape):
    system = SliceMoE(CachePrior(0.0), precision=HighBit())
    free = serve(tape, system, 2.4e9)[0].miss_frac
    loose, _ = serve(tape, replace(system, budget=Soft(0.3)), 2.4e9)
    assert 0.2 < loose.miss_frac < 0.45 < free
    tight, _ = serve(tape, replace(system, budget=Soft(0.01)), 2.4e9)
    assert tight.strength == 1.0
    assert tight.miss_frac > 0.02  # negative: strength has an end
    system = SliceMoE(CachePrior(0.2), budget=Soft(0.05), precision=Critical())
    reading, _ = serve(tape, system, 2.4e9)
    skipping, events = serve(tape, replace(system, cache=SlicedCache(skip_lsb_when_over_budget=True)), 2.4e9)
    assert skipping.miss_frac < reading.miss_frac
    assert events.degraded.any()


def test_dbsc_thrashes_after_use_and_loses_to_a_high_bit_cache_that_rarely_misses(tape):
    """Negative: dropped after use, every critical access reads its LSB slice again, so misses cannot fall below their share."""
    n_layers, n_experts, _k, _ = tape
    capacity = 0.97 * n_layers * n_experts * HIGH
    literal = SliceMoE(cache=SlicedCache(lsb_policy="after_use"), precision=Critical(), warmup=PCW(lsb_share_frac=0.0))
    dbsc, events = serve(tape, literal, capacity)
    high, _ = serve(tape, replace(literal, precision=HighBit()), capacity)
    floor = LSB / HIGH * events.lsb_needed[10 * n_layers :].mean()
    assert high.miss_frac < 0.03
    assert dbsc.miss_frac >= floor > 0.03
    assert not events.lsb_hit.any()
    kept, _ = serve(tape, replace(literal, cache=SlicedCache()), capacity)
    assert kept.miss_frac < floor  # on_pressure keeps them where there is room
    skipped, _ = serve(tape, replace(literal, budget=Hard(0.02)), capacity)
    assert skipped.miss_frac <= 0.022  # in debt an LSB miss degrades instead


def test_an_lsb_slice_goes_with_its_token_and_stays_where_a_prompt_loads_it_after_it():
    """Experts 0 and 1 by a token, 2 and 3 by a prompt's chunk after it; then the same two by the next prompt and by its token."""
    policy = SliceMoE(cache=SlicedCache(lsb_policy="after_use"), precision=Critical(-1.0), warmup=LastLayer())
    controller, scores = (
        Controller(policy, 1, 4, 2, 5, 4, 100),
        np.array([[4.0, 3.0, 2.0, 1.0], [1.0, 2.0, 3.0, 4.0]], np.float32),
    )

    def hits(row, in_prompt=False):
        controller._in_prefill = in_prompt
        return controller.decode(np.zeros(1, np.int32), scores[[row]], scores[[row]] / 10).lsb_hit.tolist()

    assert (hits(0), hits(1, in_prompt=True), hits(0), hits(1)) == ([[0, 0]], [[0, 0]], [[0, 0]], [[1, 1]])
    begin_prompt(controller.arrays)
    assert (hits(1, in_prompt=True), hits(1)) == ([[0, 0]], [[1, 1]])


def test_the_four_configurations_order_as_their_bytes_do(tape):
    misses, events = {}, {}
    for name, precision in PRECISIONS.items():
        controller, events[name] = serve(tape, SliceMoE(precision=precision()), 2.4e9)
        misses[name] = controller.miss_frac
    assert misses["low-bit"] <= misses["dbsc"] < misses["high-bit"]
    assert misses["amat"] <= misses["dbsc"]
    assert events["high-bit"].is_high.all()
    assert not events["low-bit"].is_high.any()
    assert not events["amat"].is_high.any()
    critical = events["dbsc"].lsb_needed.sum(axis=1)
    assert critical.max() <= 2  # at most two gates of .35 in a whole
    assert 0.3 < critical.mean() < 1.5


def test_prefill_loads_every_expert_of_a_layer_once_at_its_precision(tape):
    n_layers, n_experts, k, scores = tape
    rows = prompt(*scores, n_layers, N_PROMPT)
    for name, n_bytes in {"high-bit": HIGH, "low-bit": MSB, "amat": HIGH, "dbsc": HIGH}.items():
        controller = Controller(
            SliceMoE(precision=PRECISIONS[name](), warmup=LastLayer()), n_layers, n_experts, k, MSB, LSB, int(2.4e9)
        )
        events = controller.prefill(*rows)
        needed = sum(np.unique(events.ids[rows[0] == layer]).size for layer in range(n_layers))
        assert events.flash_bytes.sum() == events.dram_bytes.sum() == needed * n_bytes
        assert np.all(events.is_high == (name != "low-bit"))
        again = controller.prefill(*(array[-N_PROMPT:] for array in rows))  # the last layer is resident now
        assert again.flash_bytes.sum() == 0


@pytest.mark.parametrize("precision", ["high-bit", "low-bit", "dbsc"])
def test_a_prompts_rows_find_what_an_earlier_row_of_the_layer_loaded(precision):
    layer, values, gates = made_up_scores(6, 12, 3, 16)
    rows = prompt(layer, values, gates, 3, 12)
    controller = Controller(SliceMoE(precision=PRECISIONS[precision]()), 3, 16, 4, 5, 4, 3 * 16 * 9)
    first, again = controller.prefill(*rows), controller.prefill(*rows)
    seen = set()
    for i, (at, ids) in enumerate(zip(rows[0].tolist(), first.ids.tolist(), strict=True)):
        assert first.msb_hit[i].tolist() == [(at, e) in seen for e in ids]
        seen |= {(at, e) for e in ids}
    assert again.msb_hit.all()
    for events in (first, again):
        assert np.array_equal(events.lsb_hit, events.msb_hit * (precision == "dbsc"))
        assert (events.lsb_needed == (precision == "dbsc")).all()


def test_prefill_through_less_than_a_layer_streams_and_never_overfills():
    layer, values, gates = made_up_scores(2, 40, 3, 16)
    for warmup in WARMUPS.values():
        controller = Controller(SliceMoE(precision=Critical(0.3), warmup=warmup()), 3, 16, 4, 5, 4, 23)
        events = controller.prefill(*prompt(layer, values, gates, 3, 40))
        assert controller.used_bytes <= 23
        assert events.is_high.all()
        controller.end_prefill()
        assert controller.used_bytes <= 23
        assert np.all(controller.msb_resident >= controller.lsb_resident)


def test_the_predictive_warm_up_keeps_what_prefill_used_most_and_a_few_lsb_slices(tape):
    n_layers, n_experts, k, scores = tape
    rows = prompt(*scores, n_layers, N_PROMPT)
    controller = Controller(SliceMoE(precision=Critical()), n_layers, n_experts, k, MSB, LSB, int(2.4e9))
    events = controller.prefill(*rows)
    controller.end_prefill()
    keys = rows[0][:, None].astype(np.int64) * n_experts + events.ids
    count = np.bincount(keys.ravel(), minlength=n_layers * n_experts)
    critical = np.bincount(keys[share(events, rows[2]) > 0.35], minlength=count.size)
    resident, lsb = controller.msb_resident.ravel(), controller.lsb_resident.ravel()
    assert count[resident].mean() > 2 * count[~resident].mean()
    assert 0 < lsb.sum() * LSB <= 0.04 * 2.4e9
    assert critical[lsb].min() >= 1
    # Order of use: rising count, so decode evicts the rarest first.
    order = in_order(controller._msb_link)
    assert np.all(np.diff(count[order]) >= 0)


def share(events, gates):
    """Gates renormalised within the chosen set."""
    chosen = np.take_along_axis(gates, events.ids.astype(np.int64), axis=1)
    return chosen / chosen.sum(axis=1, keepdims=True)


def test_pcw_starts_better_than_random_last_layer_and_empty():
    """Order of SliceMoE section 6 over the first 10 steps: mean of four prompts."""
    misses = dict.fromkeys(WARMUPS, 0.0)
    for seed in range(4):
        scores = made_up_scores(seed, N_PROMPT + 10, 26, 64)
        for name, warmup in WARMUPS.items():
            system = SliceMoE(precision=Critical(), warmup=warmup(), free_steps=0)
            misses[name] += serve((26, 64, 6, scores), system, 2.4e9)[0].miss_frac / 4
    assert misses["pcw"] < misses["random"] < misses["empty"]
    assert misses["pcw"] < 0.95 * misses["last_layer"]
    assert misses["last_layer"] < misses["empty"]


def test_zero_prefill_leaves_the_cache_as_it_is_and_random_fills_depend_on_the_seed():
    controller = Controller(SliceMoE(), 3, 16, 4, 5, 4, 60)
    controller.end_prefill()
    assert controller.used_bytes == 0
    layer, values, gates = made_up_scores(3, 10, 3, 16)
    lasting = Controller(SliceMoE(precision=Critical(2.0)), 3, 16, 4, 5, 4, 60)
    lasting.decode(layer, values, gates)
    before = lasting.msb_resident
    lasting.end_prefill()
    assert np.array_equal(before, lasting.msb_resident)
    fills = []
    for seed in (0, 0, 1):
        controller = Controller(SliceMoE(warmup=RandomFill()), 3, 16, 4, 5, 4, 60, seed)
        controller.end_prefill()
        fills.append(controller.msb_resident)
    assert np.array_equal(fills[0], fills[1])
    assert not np.array_equal(fills[0], fills[2])
    assert fills[0].sum() == 12


def test_a_new_generation_counts_its_own_steps(tape):
    n_layers, n_experts, k, scores = tape
    controller = Controller(SliceMoE(budget=NoBudget()), n_layers, n_experts, k, MSB, LSB, int(2.4e9))
    one = [array[: 10 * n_layers] for array in scores]
    controller.decode(*one)
    assert np.isnan(controller.miss_frac)
    controller.end_prefill()
    controller.decode(*one)
    assert np.isnan(controller.miss_frac)
    controller.decode(*(array[:n_layers] for array in scores))
    assert controller.miss_frac > 0


def test_what_is_added_up_is_what_drawn_outputs_do() -> None:
    rng = np.random.default_rng(0)
    n, n_experts, k, dim = 40, 12, 4, 20_000
    gates = rng.dirichlet(np.ones(n_experts), n).astype(np.float32)
    natural = np.argsort(-gates, axis=1)[:, :k]
    ids = np.stack([rng.permutation(n_experts)[:k] for _ in range(n)])
    is_low = rng.random((n, k)) < 0.5
    is_natural = np.zeros(gates.shape, bool)
    np.put_along_axis(is_natural, natural, True, axis=1)
    found = strayed(gates, is_natural, ids, is_low, 0.3)
    for i in range(n):
        outputs, noise = rng.standard_normal((2, n_experts, dim))
        own = sum(gates[i, e] * outputs[e] for e in natural[i])
        ours = sum(gates[i, e] * (outputs[e] + np.sqrt(0.3) * noise[e] * low) for e, low in zip(ids[i], is_low[i], strict=True))
        assert found[i] == pytest.approx(((ours - own) ** 2).sum() / (own**2).sum(), rel=0.08)
    same = np.zeros((n, k), bool)
    assert strayed(gates, is_natural, natural, same, 0.3) == pytest.approx(0.0, abs=1e-12)


def test_a_low_expert_errs_in_each_of_its_matrices() -> None:
    """Three matrices with the errors of Gaussian weights ; without a gate two; whole codes err less."""
    assert low_error_frac(MAT(8, 4), True) == pytest.approx(3 * 0.0122, rel=0.03)
    assert low_error_frac(MAT(4, 2), False) == pytest.approx(2 * 0.217, rel=0.03)
    assert low_error_frac(MAT(4, 4), True) < 3 * 0.01
