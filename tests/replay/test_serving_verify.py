"""Draft-and-verify rounds of the serving engine: worked by hand, their draws, where they lose."""

import numpy as np
import pytest
from refusing import refuses
from serving_models import NOTED, TABLE_1, clockwork, costs, requests_of, some

from tokentape.hw.spec import load as machine
from tokentape.policies.serving import Chunked, Continuous, Disaggregated, Layered, Speculation
from tokentape.policies.serving.speculation import accepted
from tokentape.replay.coverage import Curve
from tokentape.replay.serving.coverage import FixedCoverage, IndependentCoverage, RecordedCurves, at_multiples
from tokentape.replay.serving.iteration import IterationCosts
from tokentape.replay.serving.metrics import metrics, token_times
from tokentape.replay.serving.run import serve, serve_disaggregated
from tokentape.replay.serving.workload import synthetic
from tokentape.warehouse import models


def qwen(speculation: Speculation | None = None) -> IterationCosts:
    geometry = models.load("qwen3-30b-a3b").geometry
    return costs(geometry, machine("h100x2"), NOTED, TABLE_1, speculation=speculation)


def test_rounds_worked_by_hand() -> None:
    """Every iteration takes 1 s and its drafts half a second more; two of three drafts are always accepted.

    Iteration 0 carries both prompts and no decode: 1 s. Then rounds of 1.5 s with 3 tokens each: request 0 has 1, 4, 7, 8 tokens
    (the last round is cut to one), request 1 has 1, 4, 5. The chunk of 12 counts 4 tokens for each decode: beside two of them 4
    prompt tokens of request 2 fit, so its 10 take rounds 1 and 2, and round 3, where request 0 alone is left, the rest.
    """
    cost = clockwork(speculation=Speculation(3, (1.0, 1.0), 0.5))
    run = serve(requests_of([[0, 6, 8], [0, 6, 5], [0.5, 10, 1]]), Chunked(12), cost, record=True)
    names = ("start_s", "seconds", "n_decode", "n_prefill", "n_waiting")
    assert np.column_stack([run.iterations[name] for name in names]).tolist() == [
        [0, 1, 0, 12, 0], [1, 1.5, 2, 4, 0], [2.5, 1.5, 2, 4, 0], [4, 1.5, 1, 2, 0],
    ]  # fmt: skip
    assert run.first_token_s.tolist() == [1, 1, 5.5]
    assert run.finish_s.tolist() == [5.5, 4, 5.5]
    assert run.largest_gap_s.tolist() == [1.5, 1.5, 0]
    assert (run.n_decoded, run.n_accepted) == (5, 6)
    # Gaps: three tokens share a round twice (request 0) and once (request 1), two rounds bring one token.
    gaps = [0.5] * 9 + [1.5] * 2
    assert run.gaps.sum() == len(gaps)
    assert [run.gap_mean_s, run.gap_std_s] == pytest.approx([np.mean(gaps), np.std(gaps)])
    assert run.gap_percentiles_s(50) == pytest.approx(0.5, rel=3e-4)


def test_accepted_drafts_follow_their_chances_and_the_seed_alone() -> None:
    drafts = Speculation.conditional(4, [0.9, 0.5, 0.5, 0.0])
    assert drafts.survival == pytest.approx((0.9, 0.45, 0.225, 0.0))
    chances = drafts.chances()
    drawn = np.array([accepted(seed, r, t, chances) for seed in range(20) for r in range(50) for t in range(1, 51)])
    for n, chance in enumerate(drafts.survival, start=1):
        assert (drawn >= n).mean() == pytest.approx(chance, abs=4 * np.sqrt(0.25 / drawn.size))
    falling = 0.9 ** np.arange(1, 9)  # golden: a seed means the same run in every release
    assert [accepted(3, r, 7, falling) for r in range(12)] == [6, 6, 0, 7, 7, 8, 2, 8, 8, 7, 3, 2]
    assert [accepted(3, 5, t, falling) for t in range(12)] == [8, 1, 3, 0, 8, 0, 8, 8, 2, 8, 8, 8]
    assert [accepted(2**40 + i, 5, 1, falling) for i in range(12)] == [8, 5, 1, 5, 2, 2, 6, 8, 8, 7, 8, 0]
    columns = drawn.reshape(20, 50, 50)
    for axis in range(3):  # neighbours are independent
        pair = np.corrcoef(np.delete(columns, 0, axis).ravel(), np.delete(columns, -1, axis).ravel())[0, 1]
        assert abs(pair) < 4 / np.sqrt(drawn.size)
    cost, requests = qwen(drafts), some(3)
    a, b, c = (serve(requests, Chunked(), cost, seed=seed) for seed in (1, 1, 2))
    assert a.finish_s.tobytes() == b.finish_s.tobytes()
    assert a.finish_s.tobytes() != c.finish_s.tobytes()
    assert serve(requests, Layered(), cost, seed=1).n_accepted == a.n_accepted, "whatever the scheduler"
    assert metrics(a)["accepted_mean"].value == pytest.approx(a.n_accepted / a.n_decoded)
    refuses("drafts were accepted", token_times, serve(requests, Chunked(), cost, record=True), 0)


def test_recorded_lengths_become_survival_and_a_disaggregated_pair_decodes_in_rounds() -> None:
    assert Speculation.recorded(3, [0, 1, 1, 5]).survival == (0.75, 0.25, 0.25)
    drafts = Speculation.conditional(3, 0.8)
    cost = costs(models.load("qwen3-30b-a3b").geometry, machine("h100"), NOTED, TABLE_1, speculation=drafts)
    requests = synthetic("arxiv", 0.5, 0, n=30)
    run = serve_disaggregated(requests, Disaggregated(), cost, cost, seed=1)
    assert run.decode is not None
    assert run.decode.n_decoded + run.decode.n_accepted == requests.n_output_tokens.sum() - len(requests)


def test_drafting_pays_for_one_request_and_loses_in_a_large_batch() -> None:
    """Negative: where all experts are read anyway and time goes into multiplying, rejected drafts cost more than they save."""
    one = requests_of([[0, 500, 200]])
    many = requests_of([[0, 20, 100]] * 256)
    good, bad = (qwen(Speculation.conditional(4, alpha, 1e-3)) for alpha in (0.8, 0.2))
    assert serve(one, Chunked(), good).end_s < 0.75 * serve(one, Chunked(), qwen()).end_s
    assert serve(many, Continuous(), bad).end_s > 1.05 * serve(many, Continuous(), qwen()).end_s


def test_coverage_of_nodes() -> None:
    assert IndependentCoverage().tokens_of_nodes(3) == FixedCoverage().tokens_of_nodes(3) == TABLE_1.tokens_of_nodes(3) == 4.0
    n = 2.0 ** np.arange(4)
    decode = Curve("decode", n, np.array([8.0, 16.0, 32.0, 64.0]))
    alike = Curve("prefill", n, np.array([8.0, 8.0, 16.0, 32.0]))
    curves = RecordedCurves(128, 8, (alike,), (decode,))
    assert curves.tokens_of_nodes(3) == pytest.approx(2.0), "four tokens of one prompt touch what two requests' do"
    assert curves.tokens_of_nodes(1) == 1.0
    table = np.array([[0.0], [0.1], [0.2], [0.4]])
    np.testing.assert_allclose(at_multiples(table, 1.5)[:, 0], [0.0, 0.15, 0.4, 1 - 0.6 * 3 / 4.5])
