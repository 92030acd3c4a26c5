"""Sliced serving over a tape: the paper's own arithmetic, both modes, what is refused, and where DBSC must lose."""

import dataclasses
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
from tokentape.policies.sliced import PRECISIONS, ROUTERS, WARMUPS, SlicedCache, SliceMoE
from tokentape.policies.sliced.cache_prior import CachePrior
from tokentape.policies.sliced.precision import Critical, Hard, HighBit
from tokentape.policies.sliced.warmup import PCW, LastLayer
from tokentape.replay.curve import lru_curve
from tokentape.replay.result import tables_of
from tokentape.replay.scores import scores_from_choices, scores_from_table
from tokentape.replay.semantics import Semantics
from tokentape.replay.slicemoe import implied_operating_point, token_cost
from tokentape.replay.stream import stream
from tokentape.replay.system.routes import slices_of
from tokentape.replay.system.slicemoe import describe, replay_sliced
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


def test_a_replay_costs_each_pass_as_section_5_writes_it(tape):
    """By hand: t = max((N + D) / 13e9, ops / 16.4e12) + F / 1.25e9, and the same for energy."""
    trace, scores = tape
    result = replay_sliced(trace, scores, SliceMoE(warmup=LastLayer()), XPU, 200_000, profile="slicemoe")
    decode = trace.pass_kind == DECODE
    line = {name: values[decode] for name, values in result.timeline.items()}
    ops = 2.0 * (GEOMETRY.non_expert_params + 3 * 4 * GEOMETRY.expert_params)
    flash, fast = line["backing_bytes"], line["fast_bytes"]
    assert flash.sum() > 0
    assert np.allclose(line["step_s"], np.maximum(fast / 13e9, ops / 16.4e12) + flash / 1.25e9, rtol=1e-9)
    joules = 12e-12 * (fast + flash) + 824e-12 * flash + ops * 0.3145e-12
    assert np.allclose(line["energy_j"], joules, rtol=1e-9)
    assert fast.min() >= static_bytes(GEOMETRY, "int8") + 3 * 4 * slices_of(GEOMETRY, MAT84)[0]
    metrics = result.metrics
    assert metrics["decode_energy_j_per_token"].value == pytest.approx(joules.mean())
    assert metrics["decode_step_s"].low <= metrics["decode_step_s"].value <= metrics["decode_step_s"].high
    early = np.concatenate([np.arange(10), 25 + np.arange(10)])
    assert metrics["early_energy_j_per_token"].value == pytest.approx(joules[early].mean())
    assert metrics["n_lookups"].value - metrics["n_hits"].value > 0
    assert tables_of({"id": result}, "study", {"id": None})["runs"].num_rows == 1
    assert "not counted by the profile: kv_read" in result.settings["outside_envelope"]
    assert "not counted" not in replay_sliced(trace, scores, SliceMoE(), XPU, 200_000).settings["outside_envelope"]


def test_prefill_is_priced_and_fetches_ahead_hide(tape):
    trace, scores = tape
    waits, ahead = (
        replay_sliced(trace, scores, SliceMoE(warmup=LastLayer()), XPU, 200_000, fetching=fetching)
        for fetching in ("blocking", "overlapped")
    )
    assert [result.settings["fetching"] for result in (waits, ahead)] == ["blocking", "overlapped"]
    assert ahead.metrics["prefill_s"].value > 0
    assert np.all(ahead.timeline["step_s"] <= waits.timeline["step_s"] * (1 + 1e-12))
    assert ahead.metrics["total_s"].value < waits.metrics["total_s"].value


def test_a_prompts_experts_are_looked_up_once_per_layer(tape):
    trace, scores = tape
    result = replay_sliced(trace, scores, SliceMoE(), XPU, 200_000, start="cold")
    prefill = np.flatnonzero(trace.pass_kind == PREFILL)
    for p in prefill:
        rows = np.flatnonzero(trace.row_pass == p)
        unique = {(trace.row_layer[r], e) for r in rows for e in trace.ids[4 * r : 4 * r + 4]}
        assert result.timeline["n_lookups"][p] == len(unique)
        assert result.timeline["n_hits"][p] == 0
        assert result.timeline["backing_bytes"][p] == len(unique) * sum(slices_of(GEOMETRY, MAT84))
    warm = replay_sliced(trace, scores, SliceMoE(), XPU, 200_000)
    assert warm.timeline["n_hits"][prefill[1]] > 0


def test_at_zero_strength_the_tapes_route_is_applied_and_rerouting_costs_gate_mass(tape):
    trace, scores = tape
    for name in ("lru", "cache_prior"):
        router = ROUTERS[name](**({"strength": 0.0} if name == "cache_prior" else {}))
        result = replay_sliced(trace, scores, SliceMoE(router, warmup=WARMUPS["empty"]()), XPU, 200_000)
        assert result.metrics["rerouted_frac"].value == 0.0
        assert result.metrics["kept_gate_mass_frac"].value == pytest.approx(1.0, abs=1e-12)
        assert not result.settings["is_extrapolated"]
    stock, prior = (replay_sliced(trace, scores, SliceMoE(router), XPU, 60_000) for router in (ROUTERS["lru"](), CachePrior(0.5)))
    assert prior.metrics["high_bit_miss_frac"].value < stock.metrics["high_bit_miss_frac"].value
    assert prior.metrics["kept_gate_mass_frac"].value < 1.0
    assert prior.settings["is_extrapolated"]
    assert "open loop" in prior.settings["outside_envelope"]


def test_a_replay_is_deterministic_and_its_settings_name_the_whole_composition(tape):
    trace, scores = tape
    system = SliceMoE(CachePrior(0.2), MAT42, Critical(0.5), Hard(0.05), PCW(0.03))
    one, two = (replay_sliced(trace, scores, system, XPU, 60_000) for _ in range(2))
    assert one.settings == two.settings
    assert one.metrics == two.metrics
    assert all(np.array_equal(one.timeline[name], two.timeline[name]) for name in one.timeline)
    told = json.loads(one.settings["policy_params"])
    assert one.settings["policy"] == "slicemoe"
    assert one.settings["expert_format"] == "MAT42"
    assert (told["router"], told["router.strength"], told["router.protect"]) == ("cache_prior", 0.2, 2)
    assert (told["budget.target_frac"], told["precision"], told["warmup"]) == (0.05, "dbsc", "pcw")
    assert resolve("system", "slicemoe", told) == system
    buddies = [describe(SliceMoE(ROUTERS["buddy"](np.full((1, 2, 2), x, np.float32)))) for x in (0, 0, 1)]
    assert buddies[0] == buddies[1] != buddies[2]


def test_scores_are_made_in_the_memory_of_both_matrices_and_a_layer():
    trace, table, _ = sliced_trace(n_requests=2, n_prompt=4000, n_decode=1)
    scores, peak = peak_of(lambda: scores_from_table(trace, table, "softmax", {}))
    assert peak < 16 * scores.values.size


def test_dbsc_loses_where_the_high_bit_cache_misses_under_3_percent():
    """Done-when 6: dropped after use, LSB slices are read again and again; the high-bit cache reads almost nothing."""
    trace, table, _ = sliced_trace(n_requests=1, n_prompt=40, n_decode=120)
    scores = scores_from_table(trace, table, "softmax", {})
    capacity = trace.n_keys * sum(slices_of(GEOMETRY, MAT84))
    literal = SlicedCache(lsb_policy="after_use")
    high, dbsc = (
        replay_sliced(trace, scores, SliceMoE(cache=literal, precision=precision), XPU, capacity).metrics
        for precision in (HighBit(), Critical())
    )
    assert high["high_bit_miss_frac"].value < 0.03
    assert dbsc["high_bit_miss_frac"].value > 0.03
    assert dbsc["decode_energy_j_per_token"].value > high["decode_energy_j_per_token"].value
    assert dbsc["decode_step_s"].value > high["decode_step_s"].value


def test_a_tape_of_choices_alone_drives_the_stock_router_and_nothing_else(tape):
    trace, scores = tape
    _, _, routing = sliced_trace()
    chosen = scores_from_choices(trace, routing["gate_weights"].explode().to_numpy().astype(np.float32))
    for precision in PRECISIONS.values():
        full, alone = (replay_sliced(trace, s, SliceMoE(precision=precision()), XPU, 60_000) for s in (scores, chosen))
        assert full.metrics["high_bit_miss_frac"] == alone.metrics["high_bit_miss_frac"]
        assert full.metrics["decode_energy_j_per_token"] == alone.metrics["decode_energy_j_per_token"]
    for system in (SliceMoE(CachePrior()), SliceMoE(ROUTERS["cumsum"]()), SliceMoE(budget=Hard(0.1))):
        refuses("chosen experts only", replay_sliced, trace, chosen, system, XPU, 60_000)


def test_batched_and_interleaved_tapes_and_unknown_fetching_are_refused(tape):
    trace, scores = tape
    refuses("fetching", replay_sliced, trace, scores, SliceMoE(), XPU, 60_000, fetching="fast")
    turns = dataclasses.replace(trace, members=np.arange(trace.members.size) % 2)
    refuses("take turns", replay_sliced, turns, scores, SliceMoE(), XPU, 60_000)
    batched = dataclasses.replace(trace, pass_tokens=trace.pass_tokens + 1)
    refuses("one sequence", replay_sliced, batched, scores, SliceMoE(), XPU, 60_000)


def decode_only():
    """A trace of decode passes alone, with its scores."""
    routing, table, passes = sliced_tables(n_requests=1, n_prompt=0, n_decode=80)
    passes = passes.with_columns(pl.lit("decode").alias("kind")).filter(pl.col("n_tokens") > 0)
    return trace_from_tables("test", GEOMETRY, "synthetic", routing, passes), table


def test_high_bit_under_lru_hits_as_often_as_stack_distances_say():
    trace, table = decode_only()
    scores, semantics = scores_from_table(trace, table, "softmax", {}), Semantics("global")
    curve = lru_curve(stream(trace, semantics), semantics, 3, 16)
    for capacity in (4, 9, 20, 33, 48):
        system = SliceMoE(precision=HighBit(), warmup=WARMUPS["empty"]())
        result = replay_sliced(trace, scores, system, None, capacity * sum(slices_of(GEOMETRY, MAT84)))
        at = int(np.flatnonzero(curve.capacity_experts == capacity)[0])
        assert result.metrics["n_hits"].value == curve.n_hits[at]
        assert result.metrics["n_lookups"].value == curve.n_lookups


def test_a_tape_without_prefill_starts_empty():
    trace, table = decode_only()
    result = replay_sliced(trace, scores_from_table(trace, table, "softmax", {}), SliceMoE(), XPU, 60_000)
    assert result.metrics["high_bit_miss_frac"].value > 0
    without = replay_sliced(trace, scores_from_table(trace, table, "softmax", {}), SliceMoE(), None, 60_000)
    assert without.timeline == {}
    assert without.metrics["backing_bytes"] == result.metrics["backing_bytes"]


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
