"""Sliced serving over a tape: the paper's own arithmetic, and what is refused."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from refusing import refuses
from sliced_tape import GEOMETRY, sliced_tables, sliced_trace
from tapes import peak_of

from tokentape.hw.profile import ENDS
from tokentape.hw.spec import load as load_hardware
from tokentape.policies.resolve import resolve
from tokentape.policies.serving import Continuous
from tokentape.policies.sliced import PRECISIONS, ROUTERS, WARMUPS, SlicedCache, SliceMoE
from tokentape.policies.sliced.cache_prior import CachePrior
from tokentape.policies.sliced.precision import Critical, Hard, HighBit
from tokentape.policies.sliced.warmup import PCW, LastLayer
from tokentape.policies.slots import System
from tokentape.replay.curve import lru_curve
from tokentape.replay.scores import scores_from_choices, scores_from_table
from tokentape.replay.semantics import Semantics
from tokentape.replay.slicemoe import implied_operating_point, token_cost
from tokentape.replay.stream import stream
from tokentape.replay.system import events as ev
from tokentape.replay.system.recorded import recorded
from tokentape.replay.system.routes import slices_of
from tokentape.replay.system.run import run, simulate
from tokentape.replay.system.slicemoe import early_costs, found_in, point_of, served
from tokentape.replay.trace import DECODE, PREFILL, trace_from_tables
from tokentape.warehouse.model_sizes import static_bytes
from tokentape.warehouse.models import load as load_model

XPU = load_hardware("slicemoe-xpu")
DEEPSEEK, QWEN = (load_model(name).geometry for name in ("deepseek-v2-lite", "qwen1.5-moe-a2.7b"))
MAT84, MAT42 = SlicedCache(8, 4), SlicedCache(4, 2)


@pytest.fixture(scope="module")
def tape():
    trace, table, _ = sliced_trace()
    return trace, scores_from_table(trace, table, "softmax", {})


def test_slice_bytes_are_the_papers_and_tokens_cost_what_the_first_model_said():
    assert [round(n / 1e6, 3) for n in (*slices_of(DEEPSEEK, MAT84), *slices_of(QWEN, MAT42))] == [5.136, 4.325, 2.974, 2.163]
    assert slices_of(DEEPSEEK, SlicedCache(4, 4)) == (slices_of(DEEPSEEK, MAT84)[0], 0)
    # 220 random settings, priced before rows and profiles were: seconds and joules at the three ends of the ranges.
    for row in map(json.loads, (Path(__file__).parent / "golden" / "slicemoe.jsonl").read_text().splitlines()):
        geometry, machine = load_model(row["model"]).geometry, load_hardware(row["machine"])
        cost = token_cost(geometry, machine, SlicedCache(*row["bits"]), row["lsb_frac"], row["miss_frac"])
        for what in ("seconds", "joules"):
            assert [float(getattr(getattr(cost, what), end)[0]) for end in ENDS] == pytest.approx(row[what], rel=1e-9)


@pytest.mark.parametrize(
    ("geometry", "lsb_frac", "step_ms", "energy_mj"),
    [(DEEPSEEK, 1.0, 198.1, 32.5), (DEEPSEEK, 0.0, 146.2, 24.4), (QWEN, 1.0, 188.7, 30.9), (QWEN, 0.0, 156.7, 25.9)],
)
def test_a_token_without_misses_costs_what_section_5_says(geometry, lsb_frac, step_ms, energy_mj):
    cost = token_cost(geometry, XPU, MAT84, lsb_frac)
    assert 1e3 * cost.seconds.value[0] == pytest.approx(step_ms, rel=2e-3)
    assert 1e3 * cost.joules.value[0] == pytest.approx(energy_mj, rel=4e-3)


def test_equal_gains_fix_no_two_miss_rates():
    """What those of the paper fix, and that they give its gains back: tests/flows/test_slicemoe.py."""
    refuses("must differ", implied_operating_point, DEEPSEEK, XPU, 2.0, 2.0, baseline_lsb_frac=0.0, ours_lsb_frac=0.0)


def of_tape(tape, policy, capacity_bytes=200_000):
    """A point's numbers, what its passes cost, and what each of them found."""
    trace, made = tape[0], recorded(tape[0], scores=tape[1])
    return *point_of(trace, made, policy, XPU, capacity_bytes), found_in(trace, served(made, policy, capacity_bytes))


def system_of(policy, capacity_bytes, start="persistent"):
    options = {"residency": {"budget": f"{capacity_bytes}B", "start": start}}
    return System("slicemoe", {"schedule": Continuous(), "route": policy}, options)


def test_a_replay_costs_each_pass_as_section_5_writes_it(tape):
    """By hand: t = max((N + D) / 13e9, ops / 16.4e12) + F / 1.25e9, and the same for energy."""
    trace, _ = tape
    numbers, cost, found = of_tape(tape, SliceMoE(warmup=LastLayer()))
    decode = trace.pass_kind == DECODE
    seconds, joules = (of.value[decode] for of in (cost.seconds, cost.joules))
    ops = 2.0 * (GEOMETRY.non_expert_params + 3 * 4 * GEOMETRY.expert_params)
    fast, flash = found[2:4].sum(axis=2)[:, decode]
    fast += GEOMETRY.non_expert_bytes("int8")
    assert flash.sum() > 0
    assert np.allclose(seconds, np.maximum(fast / 13e9, ops / 16.4e12) + flash / 1.25e9, rtol=1e-9)
    assert np.allclose(joules, 12e-12 * (fast + flash) + 824e-12 * flash + ops * 0.3145e-12, rtol=1e-9)
    assert fast.min() >= static_bytes(GEOMETRY, "int8") + 3 * 4 * slices_of(GEOMETRY, MAT84)[0]
    assert numbers["decode_energy_j_per_token"] == pytest.approx(joules.mean())
    assert numbers["flash_energy_frac"] == pytest.approx(824e-12 * flash.sum() / joules.sum())
    early = np.concatenate([np.arange(10), 25 + np.arange(10)])
    assert numbers["early_energy_j_per_token"] == pytest.approx(joules[early].mean())
    assert numbers["early_step_s"] == early_costs(trace, cost, 10)["decode_step_s"] == pytest.approx(seconds[early].mean())


def test_a_prompts_experts_are_looked_up_once_per_layer(tape):
    trace, scores = tape
    _, _, found = of_tape(tape, SliceMoE())
    for p in np.flatnonzero(trace.pass_kind == PREFILL):
        rows = np.flatnonzero(trace.row_pass == p)
        unique = {(trace.row_layer[r], e) for r in rows for e in trace.ids[4 * r : 4 * r + 4]}
        assert found[:, p].sum(axis=1).tolist()[:2] == [len(unique), 0]
        assert found[3, p].sum() == len(unique) * sum(slices_of(GEOMETRY, MAT84))
    made = recorded(trace, scores=scores)
    for start, has_hits in (("cold", False), ("persistent", True)):
        assert (simulate(made, made.requests(), system_of(SliceMoE(), 200_000, start), XPU).total(ev.HITS, 1) > 0) == has_hits


def test_at_zero_strength_the_tapes_route_is_applied_and_rerouting_costs_gate_mass(tape):
    made = recorded(tape[0], scores=tape[1])
    for router in (ROUTERS["lru"](), CachePrior(0.0)):
        metrics = served(made, SliceMoE(router, warmup=WARMUPS["empty"]()), 200_000).metrics()
        assert metrics["rerouted_frac"].value == 0.0
        assert metrics["kept_gate_mass_frac"].value == pytest.approx(1.0, abs=1e-12)
    stock, prior = (served(made, SliceMoE(router), 60_000).metrics() for router in (ROUTERS["lru"](), CachePrior(0.5)))
    assert prior["high_bit_miss_frac"].value < stock["high_bit_miss_frac"].value
    assert prior["kept_gate_mass_frac"].value < 1.0
    of_one = run(made, made.requests(order=[1]), system_of(SliceMoE(CachePrior(0.5)), 60_000), XPU).metrics
    assert of_one["rerouted_frac"].value > 0
    assert of_one["high_bit_miss_frac"].value != prior["high_bit_miss_frac"].value


def test_a_replay_is_deterministic_and_its_settings_name_the_whole_composition(tape):
    made = recorded(tape[0], scores=tape[1])
    policy = SliceMoE(CachePrior(0.2), MAT42, Critical(0.5), Hard(0.05), PCW(0.03))
    one, two = (run(made, made.requests(), system_of(policy, 60_000), XPU) for _ in range(2))
    assert one.settings == two.settings
    assert one.metrics == two.metrics
    assert one.settings["expert_format"] == "MAT42"
    name, *told = one.settings["route"].split()
    assert resolve("route", name, dict(one.partition("=")[::2] for one in told)) == policy
    buddies = [system_of(SliceMoE(ROUTERS["buddy"](np.full((1, 2, 2), x, np.float32))), 1).told() for x in (0, 0, 1)]
    assert buddies[0] == buddies[1] != buddies[2]


def test_scores_are_made_in_the_memory_of_both_matrices_and_a_layer():
    trace, table, _ = sliced_trace(n_requests=2, n_prompt=4000, n_decode=1)
    scores, peak = peak_of(lambda: scores_from_table(trace, table, "softmax", {}))
    assert peak < 16 * scores.values.size


def test_a_tape_of_choices_alone_drives_the_stock_router_and_nothing_else(tape):
    trace, scores = tape
    _, _, routing = sliced_trace()
    chosen = scores_from_choices(trace, routing["gate_weights"].explode().to_numpy().astype(np.float32))
    for precision in PRECISIONS.values():
        full, alone = (of_tape((trace, each), SliceMoE(precision=precision()), 60_000)[0] for each in (scores, chosen))
        for name in ("high_bit_miss_frac", "decode_energy_j_per_token"):
            assert full[name] == alone[name]
    for policy in (SliceMoE(CachePrior()), SliceMoE(ROUTERS["cumsum"]()), SliceMoE(budget=Hard(0.1))):
        refuses("chosen experts only", served, recorded(trace, scores=chosen), policy, 60_000)


def decode_only():
    """A trace of decode passes alone, with its scores."""
    routing, table, passes = sliced_tables(n_requests=1, n_prompt=0, n_decode=80)
    return trace_from_tables("test", GEOMETRY, "synthetic", routing, passes), table


def test_high_bit_under_lru_hits_as_often_as_stack_distances_say():
    trace, table = decode_only()
    scores, semantics = scores_from_table(trace, table, "softmax", {}), Semantics("global")
    curve = lru_curve(stream(trace, semantics), semantics, 3, 16)
    for capacity in (4, 9, 20, 33, 48):
        policy = SliceMoE(precision=HighBit(), warmup=WARMUPS["empty"]())
        totals = served(recorded(trace, scores=scores), policy, capacity * sum(slices_of(GEOMETRY, MAT84))).totals
        at = int(np.flatnonzero(curve.capacity_experts == capacity)[0])
        assert totals[:, ev.HITS].sum() == curve.n_hits[at]
        assert totals[:, ev.LOOKUPS].sum() == curve.n_lookups


def test_a_tape_without_prefill_starts_empty():
    trace, table = decode_only()
    numbers, _, _ = of_tape((trace, scores_from_table(trace, table, "softmax", {})), SliceMoE(), 60_000)
    assert numbers["high_bit_miss_frac"] > 0


def test_scores_follow_the_manifests_rule_and_the_routing_rows():
    trace, table, _ = sliced_trace(n_requests=1, n_prompt=4, n_decode=3)
    raw = np.array(table["scores"].to_list(), np.float32)
    soft = scores_from_table(trace, table, "softmax_topk", {})
    assert np.array_equal(soft.values, raw)
    assert np.allclose(soft.gates.sum(axis=1), 1.0)
    bias = {str(layer): np.linspace(-1, 1, 16).tolist() for layer in GEOMETRY.moe_layers}
    groups = scores_from_table(trace, table, "sigmoid_bias_groups", {"bias": bias, "n_group": 4, "topk_group": 2})
    assert np.isneginf(groups.values).sum(axis=1).tolist() == [8] * raw.shape[0]
    assert np.allclose(groups.gates, 1 / (1 + np.exp(-raw)))
    limited = scores_from_table(trace, table, "softmax", {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 1})
    assert np.isneginf(limited.values).sum(axis=1).tolist() == [12] * raw.shape[0]
    refuses("cannot be rerouted", scores_from_table, trace, table, "sparsemixer", {})
    refuses("one score per expert", scores_from_table, trace, table[:-1], "softmax", {})
    refuses("position differs", scores_from_table, trace, table.with_columns(pl.col("position") + 1), "softmax", {})
