"""What a serving run is judged by, against plain counting; costs against the published sizes; capacity and calibration facts."""

from dataclasses import replace

import numpy as np
import pytest
from refusing import refuses
from serving_models import NOTED, TABLE_1, both, clockwork, costs, requests_of, tiny

from tokentape.hw import profile, serving_fits
from tokentape.hw.calibrate import gpu_of
from tokentape.hw.sourced import BadSpec
from tokentape.hw.spec import load as machine
from tokentape.policies.serving import Chunked, Layered
from tokentape.replay.passes import fits_of
from tokentape.replay.serving.facts import facts
from tokentape.replay.serving.gaps import N_BINS, add_gap, drop_before, longest_since, percentiles_s
from tokentape.replay.serving.iteration import DECODES, IterationCosts, iteration_costs
from tokentape.replay.serving.metrics import (
    ServiceLevel,
    attained,
    capacity,
    jain,
    load_of,
    metrics,
    over_runs,
    queue_length,
    saturation_rate_per_s,
    token_times,
)
from tokentape.replay.serving.run import Limits, ServingRun, serve
from tokentape.replay.serving.window import window
from tokentape.replay.serving.workload import Requests, synthetic
from tokentape.warehouse import models
from tokentape.warehouse.load import claims

LEVEL = ServiceLevel(10.0, 0.125)


@pytest.fixture(scope="module")
def qwen() -> IterationCosts:
    return costs(models.load("qwen3-30b-a3b").geometry, machine("h100x2"), NOTED, TABLE_1)


@pytest.fixture(scope="module")
def run(qwen: IterationCosts) -> ServingRun:
    return serve(synthetic("arxiv", 1.3, 0, n=80, length_scale=0.931), Chunked(), qwen, record=True)


def test_noted_constants_give_the_noted_microbenchmarks_which_the_machine_alone_beats(qwen: IterationCosts) -> None:
    """The equations with the constants of our notes on the paper reach what the notes say they do."""
    for chunk, seconds, load_gb in ((512, 0.525, 659), (4096, 0.221, 114), (8192, 0.193, 57)):
        lone = serve(Requests(np.zeros(1), np.array([8192]), np.array([1])), Chunked(chunk), qwen)
        assert lone.ttft_s[0] == pytest.approx(seconds, rel=4e-3)
        assert lone.expert_bytes / 1e9 == pytest.approx(load_gb, rel=1e-2)
    assert qwen.decode_step_s(1, 8000) == pytest.approx(7.1e-3, rel=0.01)
    assert qwen.decode_step_s(32, 4096) == pytest.approx(0.84 * 25e-3, rel=0.01)
    physical = iteration_costs(qwen.geometry, machine("h100x2"), TABLE_1)
    lone = Requests(np.zeros(1), np.array([8192]), np.array([1]))
    slower, faster = (serve(lone, Chunked(), cost).ttft_s[0] for cost in (qwen, physical))
    assert 2.0 < slower / faster < 6.0


def test_expert_times_from_measured_kernels(qwen: IterationCosts) -> None:
    spec, every = machine("h100x2"), np.ones(1)
    fits = fits_of(spec, "bf16")
    timed = NOTED.profile(per="item", operators=True)
    cost = iteration_costs(qwen.geometry, spec, TABLE_1, timed, fits=fits)
    for n, share in ((1.0, 8 / 128), (32.0, 0.5), (512.0, 0.96875), (8192.0, 1.0)):
        shapes = {"num_tokens": n, "active_experts": share * 128, "hidden_size": 2048, "inter_size": 768, "topk": 8}
        rows = {name: np.array([float(value)]) for name, value in (shapes | {"num_experts": 128, "moe_tp_size": 2}).items()}
        direct = 48 * fits["moe"].seconds(gpu_of(spec), rows)[0]
        assert cost.cost({DECODES: n}, 0 * every, share * every, every)[0] == pytest.approx(direct, rel=1e-12)
    requests = synthetic("arxiv", 1.0, 0, n=60)
    slow, fast = (serve(requests, Chunked(), costs) for costs in (qwen, cost))
    assert fast.seconds_of["moe"] < 0.7 * slow.seconds_of["moe"], "these kernels read experts at 93 % of the bandwidth, not 37 %"
    assert serve(requests, Layered(), cost).expert_bytes < fast.expert_bytes


@pytest.mark.parametrize("seed", range(5))
def test_the_longest_gap_of_any_range_is_on_the_stack_before_and_after_dropping(seed: int) -> None:
    seconds = np.random.default_rng(seed).integers(1, 30, 40).astype(float)
    at = np.array([i for i in range(40) if seconds[i] > seconds[i + 1 :].max(initial=0.0)])  # what later ones do not exceed
    stack_at, stack_s, stacked = np.append(at, 99), np.append(seconds[at], 99.0), at.size
    for begin in (0, 7, 25, int(at[-1])):
        stacked = drop_before(stack_at, stack_s, stacked, begin)
        assert stacked == np.count_nonzero(at >= begin)
        for first in range(begin, int(at[-1]) + 1):
            assert longest_since(stack_at, stack_s, stacked, first) == seconds[first:].max()
    assert (stack_at[-1], stack_s[-1]) == (99, 99.0)  # beyond the stack nothing is written


def test_gaps_of_nanoseconds_and_of_a_day_are_told_apart() -> None:
    histogram, sums = np.zeros(N_BINS, np.int64), np.zeros(2)
    for seconds in (2e-9, 3e-9, 9e4):
        add_gap(seconds, 10, histogram, sums, np.zeros(1))
    assert percentiles_s(histogram, [10, 50, 99]).tolist() == pytest.approx([2e-9, 3e-9, 9e4], rel=5e-4)


def test_metrics_by_counting(run: ServingRun) -> None:
    found = {name: metric.value for name, metric in metrics(run, LEVEL).items()}
    requests = run.requests
    times = [token_times(run, r) for r in range(len(requests))]
    gaps = [np.diff(t) for t in times]
    pooled = np.concatenate(gaps)
    assert found["ttft_mean_s"] == pytest.approx(np.mean([t[0] for t in times] - requests.arrival_s))
    assert found["e2e_mean_s"] == pytest.approx(np.mean([t[-1] for t in times] - requests.arrival_s))
    assert found["tbt_mean_s"] == pytest.approx(pooled.mean())
    assert found["tbt_std_s"] == pytest.approx(pooled.std())
    for q in (50, 90, 95, 99):
        assert found[f"tbt_p{q}_s"] == pytest.approx(np.percentile(pooled, q), rel=5e-4)
    rates = np.array([1 / g.mean() for g in gaps])
    assert found["jain"] == jain(run) == pytest.approx(rates.sum() ** 2 / (rates.size * (rates**2).sum()))
    in_time, gaps_in_time = attained(run, LEVEL)
    assert gaps_in_time.tolist() == [bool(g.max() <= 0.125) for g in gaps]
    assert found["slo_frac"] == np.mean(in_time & gaps_in_time)
    assert found["goodput_per_s"] == pytest.approx(np.sum(in_time & gaps_in_time) / run.wall_s)
    joules = sum(found[f"energy_{part}_j"] for part in ("static", "bytes", "ops"))
    assert found["total_energy_j"] == pytest.approx(joules)
    n_output, n_prompt = requests.n_output_tokens.sum(), requests.n_prompt_tokens.sum()
    assert found["energy_j_per_token"] * (n_output + n_prompt) == pytest.approx(joules)
    assert found["energy_j_per_output_token"] * n_output == pytest.approx(joules)
    waiting = [np.sum((requests.arrival_s <= t) & (run.started_s > t)) for t in (5.0, 20.0, 40.0)]
    assert queue_length(run, np.array([5.0, 20.0, 40.0])).tolist() == waiting


def test_bands_over_runs(qwen: IterationCosts) -> None:
    runs = [metrics(serve(synthetic("arxiv", 1.3, seed, n=60), Layered(), qwen)) for seed in range(9)]
    found, alone = over_runs(runs), [run["ttft_mean_s"].value for run in runs]
    band = found["ttft_mean_s"]
    assert [band.low, band.value, band.high] == pytest.approx(np.percentile(alone, (5, 50, 95)).tolist())
    of_one_token = metrics(serve(Requests(np.zeros(1), np.array([100]), np.array([1])), Layered(), qwen))
    with_it = over_runs([of_one_token, *runs])
    for name in ("tbt_mean_s", "jain"):  # which that run does not have
        assert with_it[name] == found[name]
    assert "tbt_mean_s" not in over_runs([of_one_token])
    refuses("no seeds", over_runs, [])


def test_capacity_lies_below_saturation_and_layered_takes_more(qwen: IterationCosts) -> None:
    def found(scheduler: object) -> float:
        def at(rate: float, seed: int) -> ServingRun:
            return serve(synthetic("arxiv", rate, seed, n=400, length_scale=0.931), scheduler, qwen)  # type: ignore[arg-type]

        best = capacity(at, LEVEL, range(3), precision_frac=0.05)
        assert best.attained_frac >= LEVEL.frac
        assert best.rate_per_s < best.first_missed_per_s <= best.rate_per_s * 1.06
        return best.rate_per_s

    chunked, layered = found(Chunked()), found(Layered())
    assert chunked < layered
    offline = serve(synthetic("arxiv", 1.0, 0, n=400, length_scale=0.931).at_once(), Chunked(), qwen)
    assert load_of(offline) is None
    assert 0.6 < chunked / saturation_rate_per_s(offline) < 1.1


@pytest.mark.parametrize("cv", [1.0, 3.0])
def test_layered_is_fairer_and_faster_for_smooth_and_bursty_arrivals(qwen: IterationCosts, cv: float) -> None:
    drawn = [synthetic("arxiv", 1.3, seed, cv=cv, length_scale=0.931) for seed in range(20)]
    found = [over_runs([metrics(serve(of, scheduler, qwen)) for of in drawn]) for scheduler in (Chunked(512), Layered())]
    chunked, layered = ({name: metric.value for name, metric in point.items()} for point in found)
    for name in ("ttft_mean_s", "tbt_mean_s", "tbt_std_s"):
        assert layered[name] < chunked[name], name
    assert layered["jain"] > chunked["jain"]


def test_no_rate_meets_an_impossible_level() -> None:
    cost = both(tiny())[0]
    level = ServiceLevel(1e-9, 1.0)
    best = capacity(lambda rate, seed: serve(synthetic("sharegpt", rate, seed, n=5), Chunked(), cost), level, (0,))
    assert best.rate_per_s == 0.0
    refuses("needs limits above 0", ServiceLevel, 0.0, 1.0)


def test_a_window_follows_a_request_that_keeps_its_kv() -> None:
    rows = requests_of([[0, 40, 30], [1, 30, 20], [2, 50, 20], [3, 20, 10]])
    run = serve(rows, Chunked(32), clockwork(), Limits(8, 8), record=True)
    assert run.n_restarts.tolist() == [0, 0, 1, 0]
    assert {row["request_id"] for row in window(run, 2.0, 9.0)[2]} == {3}
    refuses(r"window from 9 s on: no request comes .* the last comes at 3 s", window, run, 9.0, 9.0)


def test_a_window_has_the_groups_that_the_fullest_replicas_tokens_take() -> None:
    """Two prompts of 512 tokens, each on its own replica, pass all layers at once; a batch of 1,024 would take two groups."""
    replicas = replace(machine("h100x2"), data_parallel=2)
    cost = iteration_costs(models.load("deepseek-v2-lite").geometry, replicas, TABLE_1)
    run = serve(requests_of([[0, 512, 2]] * 2), Layered(), cost, Limits(8), record=True)
    assert [(row["layer_group"], row["n_groups"]) for row in window(run, 0.0, 9.0)[0]] == [(0, 1), (0, 1)]


def test_only_claims_for_calibration_are_fitted_on() -> None:
    rows = claims().to_pylist()
    roles = {row["claim_id"]: row["role"] for row in rows}
    wanted = facts(rows)
    assert len(wanted) == 7 + 15
    assert {roles[claim] for fact in wanted for claim in fact.claims} == {"calibrate"}
    changed = [row | {"role": "predict"} if "table-6/ttft_mean" in row["claim_id"] else row for row in rows]
    refuses(r"table-6/ttft_mean.*may not be fitted on", facts, changed)
    assert len(facts(rows, "long-context")) == 7 + 15 + 2


def test_shipped_constants_load_and_say_what_they_were_fitted_on(tmp_path) -> None:
    fit = serving_fits.load("h100x2")
    roles = {row["claim_id"]: row["role"] for row in claims().to_pylist()}
    assert {roles[claim] for claim in fit.fitted_on} == {"calibrate", "input"}  # Table 1 is read, as it is
    path = tmp_path / "mine.toml"
    path.write_bytes(serving_fits.text(fit))
    assert fit.constants.profile().lanes == profile.load("layered_prefill").lanes, (
        "the profile ships with the numbers of this fit"
    )
    path.write_text(path.read_text().replace('"lane.moe"', '"lane.experts"'))
    refuses(r"there is no lane\.experts\.bytes_frac", serving_fits.load(str(path)).constants.profile, error=BadSpec)
    refuses(r"lane\.moe: bytes_frac is 0", NOTED.profile, bytes_frac=0.0, error=BadSpec)
