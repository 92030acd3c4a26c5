"""Coverage for the serving engine: the published table, closed forms, a tape's curves, and exact unions against Python sets."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
from refusing import refuses
from serving_models import NOTED, TABLE_1, RecordedOracle, costs, share
from serving_oracle import serve_slowly
from tapes import GEOMETRY, make_trace

from tokentape.hw.spec import load as machine
from tokentape.policies.serving import Chunked, Continuous, Layered
from tokentape.replay.serving.coverage import (
    FixedCoverage,
    IndependentCoverage,
    RecordedCurves,
    covered_to_effective,
    effective_to_covered,
    published_coverage,
)
from tokentape.replay.serving.iteration import covered
from tokentape.replay.serving.run import serve
from tokentape.replay.serving.workload import Requests
from tokentape.replay.system import events as ev
from tokentape.replay.system.experts import held
from tokentape.replay.system.recorded import recorded
from tokentape.replay.trace import Trace
from tokentape.warehouse import models
from tokentape.warehouse.load import claims

QWEN, GPT = models.load("qwen3-30b-a3b").geometry, models.load("gpt-oss-20b").geometry
WIDE = GEOMETRY.model_copy(update={"n_experts": 130, "top_k": 3})


def test_published_table_and_what_lies_between() -> None:
    coverage = published_coverage(claims().to_pylist(), NOTED.prefill_correlation)
    prefill, decode = (table[:, 0] for table in coverage.tables(QWEN))
    for n, percent in ((0, 0), (1, 6.25), (2, 11.7), (8, 29.0), (32, 54.7), (256, 93.4), (512, 98.0)):
        assert decode[n] == pytest.approx(percent / 100)
    assert decode[3] == pytest.approx(0.117 + (np.log2(3) - 1) * (0.213 - 0.117))
    assert decode[48] == pytest.approx(0.547 + (np.log2(48) - 5) * (0.694 - 0.547))
    assert decode[1000] == pytest.approx(1 - 0.02 * 512 / 1000)
    assert prefill[0] == 0.0
    assert prefill[1] == prefill[7] == 8 / 128, "less than one effective token still touches top-k experts"
    assert prefill[4096] == pytest.approx(share(4096 / 7.47))
    assert coverage.outside(QWEN) == ""
    assert "128 experts, top 8" in coverage.outside(GPT)


def test_curves_go_on_beyond_a_table_and_where_a_recording_ends() -> None:
    table = np.array([[0.0, 0.0], [0.1, 0.2], [0.19, 0.3], [0.25, 0.5]])
    assert [covered(table, n, kind) for kind in (0, 1) for n in range(4)] == [0.0, 0.1, 0.19, 0.25, 0.0, 0.2, 0.3, 0.5]
    assert [covered(table, n, 1) for n in (4, 6, 30)] == pytest.approx([1 - 0.5 * 3 / 4, 0.75, 0.95])
    short, long = (RecordedCurves.of(make_trace(geometry=WIDE, n_prompt=n)).tables(WIDE)[0].mean(axis=1) for n in (16, 250))
    assert short[128] == pytest.approx(long[128], rel=0.12)
    assert short[128] > 1.5 * short[16]
    refuses("routing of 2 prefill tokens at most; a curve needs 4", RecordedCurves.of, make_trace(n_prompt=3))


@pytest.mark.parametrize("coverage", [TABLE_1, IndependentCoverage(), FixedCoverage(0.5)], ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("geometry", [QWEN, GPT], ids=["qwen", "gpt"])
def test_coverage_rises_and_stays_within_bounds(coverage, geometry) -> None:
    for table in coverage.tables(geometry):
        assert table[0].tolist() == [0.0]
        assert np.all(np.diff(table[:, 0]) >= 0)
        assert geometry.top_k / geometry.n_experts - 1e-12 <= table[1, 0] <= table[-1, 0] <= 1.0


def test_effective_tokens_invert_and_independent_ones_overshoot() -> None:
    decode = IndependentCoverage().tables(QWEN)[1]
    assert [decode[8, 0], decode[32, 0]] == pytest.approx([0.40, 0.87], abs=0.005)
    assert np.all(decode[2:512, 0] > TABLE_1.tables(QWEN)[1][2:512, 0])
    n = np.array([0.0, 1.0, 2.5, 100.0])
    np.testing.assert_allclose(covered_to_effective(effective_to_covered(n, QWEN), 128, 8), n, rtol=1e-9)
    assert effective_to_covered(np.ones(1), GPT)[0] == pytest.approx(4 / 32)


def test_a_tapes_curves_layer_by_layer_and_moved_to_another_model() -> None:
    curves = RecordedCurves.of(make_trace(n_requests=4, n_prompt=40))
    prefill, decode = curves.tables(GEOMETRY)
    assert prefill.shape[1] == decode.shape[1] == len(GEOMETRY.moe_layers)
    assert prefill[1].tolist() == decode[1].tolist() == [0.25] * 3
    assert curves.outside(GEOMETRY) == "coverage of more than 32 prefill and 64 decode tokens goes beyond the tape"
    assert np.all(np.diff(prefill, axis=0) >= 0)
    assert np.all(np.diff(decode, axis=0) >= 0)
    assert prefill.max() <= 1.0
    assert prefill[33] == pytest.approx(prefill[32], rel=0.02), "no step where the recording ends"
    moved = curves.tables(QWEN)[1]
    assert moved.shape[1] == 1
    assert moved[1, 0] == pytest.approx(8 / 128)
    assert "recorded on 3 MoE layers of 8 experts, top 2" in curves.outside(QWEN)
    cost = costs(GEOMETRY, machine("h100"), NOTED, curves)
    assert cost.moe_of.tolist() == [-1, 0, 1, 2]
    requests = Requests(np.zeros(2), np.array([30, 20]), np.array([9, 5]))
    assert serve(requests, Layered(n_max=2, n_lg_rule="fixed"), cost).expert_bytes > 0


def sets_of(trace: Trace) -> dict[tuple[int, int, int], set[int]]:
    rows = zip(trace.row_request.tolist(), trace.row_position.tolist(), trace.row_layer.tolist(), strict=True)
    layers = trace.geometry.moe_layers
    return {
        (request, position, layers[layer]): set(trace.ids[trace.offsets[i] : trace.offsets[i + 1]].tolist())
        for i, (request, position, layer) in enumerate(rows)
    }


@pytest.mark.parametrize("scheduler", [Chunked(70), Layered(150, 3, "fixed"), Continuous(200)], ids=str)
def test_exact_unions_agree_with_sets(scheduler) -> None:
    trace = make_trace(geometry=WIDE, n_requests=5, n_prompt=150, n_decode=6)
    spec = machine("h100")
    cost = costs(WIDE, spec, NOTED, TABLE_1, events=True)
    tape = Requests(np.zeros(5), np.array([150, 140, 130, 150, 64]), np.array([6, 7, 1, 3, 5]))
    rows = np.array([3, 0, 0, 4, 1, 2])
    requests = Requests(
        np.cumsum(np.full(6, 2e-3)), tape.n_prompt_tokens[rows], tape.n_output_tokens[rows], origin="test", tape_request=rows
    )
    slots = held(recorded(trace), requests, cost)
    run = serve(requests, scheduler, cost, slots=slots, record=True)
    ids = {
        (new, position, layer): experts
        for new, old in enumerate(rows.tolist())
        for (request, position, layer), experts in sets_of(trace).items()
        if request == old
    }
    peaks = spec.tiers["hbm"].peak_bytes_per_s.value, spec.compute.ops_per_s["bf16"].value
    oracle = RecordedOracle(WIDE, NOTED, 1, *peaks, ids, Counter())
    columns = (requests.arrival_s, requests.n_prompt_tokens, requests.n_output_tokens)
    _, log = serve_slowly(list(zip(*(column.tolist() for column in columns), strict=True)), scheduler, oracle)
    for name, series in run.iterations.items():
        np.testing.assert_allclose(series, [row[name] for row in log], rtol=1e-9, err_msg=name)
    touched = Counter(layer for layer, _ in oracle.touched.elements())
    looked_up = slots.totals[:, ev.LOOKUPS] + slots.totals[:, ev.N_OF_PHASE + ev.LOOKUPS]
    assert dict(zip(WIDE.moe_layers, looked_up.tolist(), strict=True)) == touched


def test_a_tape_of_another_model_or_too_short_is_refused_and_gaps_are_said() -> None:
    trace = make_trace()
    tape, requests = recorded(trace), Requests(np.zeros(3), np.full(3, 10), np.full(3, 20), tape_request=np.arange(3))
    with pytest.raises(ValueError, match="3 MoE layers, 8 experts, top 2; the model has 48 MoE layers, 128 experts, top 8"):
        held(tape, requests, costs(QWEN, machine("h100x2"), NOTED, TABLE_1, events=True))
    cost = costs(GEOMETRY, machine("h100"), NOTED, TABLE_1, events=True)
    longer = dataclasses.replace(requests, n_output_tokens=np.array([20, 25, 20]))
    refuses("request 1: it processes 34 tokens, request 1 of tape test holds 30", held, tape, longer, cost)
    assert tape.gaps == ""
    gap = dataclasses.replace(tape, not_run=27)
    assert gap.gaps == "10.0% of the tape's (token, layer)s have no routing"
