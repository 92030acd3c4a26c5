"""Workloads: moments of the length fits, arrivals, resampling, prefix caches; the benchmark client and when it sends."""

from collections import deque

import numpy as np
import polars as pl
import pytest
from refusing import refuses
from serving_models import clockwork

from tokentape.hw.spec import load
from tokentape.policies.serving import Chunked, Continuous
from tokentape.replay.serving.client import Client
from tokentape.replay.serving.coverage import FixedCoverage
from tokentape.replay.serving.iteration import iteration_costs
from tokentape.replay.serving.metrics import load_of, metrics
from tokentape.replay.serving.run import Limits, serve
from tokentape.replay.serving.workload import (
    LENGTHS,
    Requests,
    arrivals,
    cached_tokens,
    client_arrivals,
    from_table,
    resampled,
    sharing,
    spread_ties,
    synthetic,
)
from tokentape.warehouse import models


@pytest.mark.parametrize(
    ("dataset", "field", "mean", "std", "p90"),
    [
        ("sharegpt", 0, 2324, 2086, 5661),
        ("sharegpt", 1, 433, 265, 832),
        ("arxiv", 0, 9203, 5826, 17337),
        ("arxiv", 1, 230, 103, 383),
    ],
)
def test_length_fits_have_their_moments(dataset: str, field: int, mean: float, std: float, p90: float) -> None:
    fit = LENGTHS[dataset][field]
    drawn = fit.draw(300_000, np.random.default_rng(0))
    assert [drawn.mean(), drawn.std(), np.percentile(drawn, 90)] == pytest.approx([mean, std, p90], rel=0.01)
    assert fit.low <= drawn.min()
    assert drawn.max() <= fit.high
    assert fit.source


@pytest.mark.parametrize("cv", [0.0, -1.0, 1e-200, 1e308, float("inf"), float("nan")])
def test_a_cv_that_no_gamma_has_is_refused(cv: float) -> None:
    refuses(r"must lie in 0.001..100; 1 is Poisson", arrivals, 10, 2.5, np.random.default_rng(1), cv)


@pytest.mark.parametrize("cv", [0.25, 1.0, 3.0])
def test_arrivals_have_their_rate_and_variation(cv: float) -> None:
    gaps = np.diff(arrivals(200_000, 2.5, np.random.default_rng(1), cv), prepend=0.0)
    assert gaps.mean() == pytest.approx(0.4, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.03)


def test_a_length_without_end_is_refused_with_no_warning() -> None:
    with np.errstate(all="raise"):
        refuses("n_prompt_tokens is inf; it must be a whole number", Requests, np.zeros(1), np.array([np.inf]), np.ones(1))


def test_runs_are_ten_minutes_scaled_or_all_at_once() -> None:
    a, b = synthetic("arxiv", 1.3, 7), synthetic("arxiv", 1.3, 7)
    assert len(a) == 780
    assert a.arrival_s.tobytes() == b.arrival_s.tobytes()
    assert a.n_prompt_tokens.tolist() == b.n_prompt_tokens.tolist() != synthetic("arxiv", 1.3, 8).n_prompt_tokens.tolist()
    scaled = synthetic("arxiv", 1.3, 7, length_scale=0.5)
    assert scaled.n_prompt_tokens.sum() == pytest.approx(a.n_prompt_tokens.sum() / 2, rel=1e-3)
    assert scaled.n_output_tokens.tolist() == a.n_output_tokens.tolist()
    requests = synthetic("sharegpt", 2.0, 0, n=50)
    assert requests.scaled(2.0).rate_per_s == pytest.approx(2 * requests.rate_per_s)
    assert requests.at_once().rate_per_s == float("inf")
    refuses("rate factor 0", requests.scaled, 0)


def test_resampling_keeps_pairs_and_says_where_they_are_from() -> None:
    tape = Requests(np.zeros(3), np.array([10, 20, 30]), np.array([1, 2, 3]), origin="tape x")
    drawn = resampled(tape, 50, 1.0, 0)
    assert np.array_equal(drawn.n_prompt_tokens, 10 * drawn.n_output_tokens)
    assert np.array_equal(drawn.n_output_tokens, drawn.tape_request + 1)
    assert drawn.origin == "resampled from tape x"
    assert len(resampled(tape, None, 1.15, 0)) == len(synthetic("arxiv", 1.15, 0)) == 690, "600 s of them, rounded alike"
    assert np.array_equal(resampled(drawn, 9, 1.0, 1).tape_request + 1, resampled(drawn, 9, 1.0, 1).n_output_tokens)


def test_tables_become_requests_and_stamps_in_steps_are_spread() -> None:
    frame = pl.DataFrame(
        {"request_id": [4, 2, 7], "arrival_s": [1.0, 5.0, 1.0], "n_prompt_tokens": [3, 4, 5], "n_output_tokens": [1, 1, 1]}
    )
    made = from_table(frame, "tape x")
    assert made.n_prompt_tokens.tolist() == [3, 5, 4]
    assert made.tape_request.tolist() == [1, 2, 0], "rows by request id"
    requests = Requests(np.array([0.0, 0, 0, 3, 3, 6]), np.ones(6, np.int64), np.ones(6, np.int64))
    assert spread_ties(requests).arrival_s.tolist() == [0, 1, 2, 3, 4.5, 6]
    alone = Requests(np.zeros(2), np.ones(2, np.int64), np.ones(2, np.int64))
    assert spread_ties(alone) is alone


def test_prefix_cache() -> None:
    def found(blocks: list[list[int]], lengths: list[int], **settings: int) -> list[int]:
        n = len(lengths)
        shared = sharing(Requests(np.arange(float(n)), np.array(lengths), np.ones(n, np.int64)), blocks, settings)
        run = serve(shared, Continuous(), clockwork(), Limits(keeps=True))
        assert run.n_cached_tokens.tolist() == cached_tokens(shared).tolist()
        assert serve(shared, Continuous(), clockwork()).n_cached_tokens.sum() == 0, "without prefix caching"
        return run.n_cached_tokens.tolist()

    blocks = [[0, 1, 2], [0, 1, 3], [9], [0, 1, 2], [0, 1, 2], [0, 1, 3]]
    lengths = [1536, 1536, 10, 1536, 1536, 1536]
    assert found(blocks, lengths) == [0, 1024, 0, 1520, 1520, 1520], "of its last block at least one token is left"
    assert found([[7]] * 2, [12] * 2) == [0, 0], "no block of the cache is full"
    refuses("request 0: 2 prefix blocks of 512 tokens do not fit 5 prompt tokens", found, [[1, 2]], [5])
    assert found([[0, 1], [0, 2]], [20, 17], prefix_block_tokens=16) == [0, 16]


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_it_sends_when_the_client_does(cv: float) -> None:
    legacy, sends, now = np.random.RandomState(0), list[float](), 0.0
    for _ in range(500):
        sends.append(now)
        now += legacy.gamma(shape=1 / cv**2, scale=1 / (1.3 / cv**2))
    np.testing.assert_allclose(client_arrivals(500, 1.3, cv), sends, rtol=1e-12)
    np.testing.assert_allclose(client_arrivals(500, 2.6, cv), client_arrivals(500, 1.3, cv) / 2, rtol=1e-12)
    assert synthetic("arxiv", 1.3, 0, cv=10 * cv, of_client=True).arrival_s[0] == 0.0, "however small the gaps are, they rise"


def test_a_seed_draws_the_lengths_alone_and_text_has_as_many_tokens_as_the_tokenizer_makes() -> None:
    drawn, sent, other = (synthetic("arxiv", 2.1, seed, of_client=of) for seed, of in ((3, False), (3, True), (4, True)))
    assert sent.n_prompt_tokens.tolist() == drawn.n_prompt_tokens.tolist() != other.n_prompt_tokens.tolist()
    assert sent.arrival_s.tolist() == other.arrival_s.tolist() != drawn.arrival_s.tolist()
    shorter = synthetic("arxiv", 2.1, 3, tokens_of_text=0.5)
    assert np.abs(shorter.n_prompt_tokens - drawn.n_prompt_tokens / 2).max() <= 0.5
    assert np.abs(shorter.n_output_tokens - drawn.n_output_tokens / 2).max() <= 0.5


@pytest.mark.parametrize("gather_s", [0.0, 0.002, 0.03])
def test_the_tokeniser_takes_prompts_in_turn_or_waits_for_more_and_cuts_them_together(gather_s: float) -> None:
    rng, client = np.random.default_rng(0), Client(connection_s=0.004, tokenise_s=1e-6, gather_s=gather_s)
    sizes = set()
    for mean_s in (0.05, 0.005, 1e-4) * 7:
        n = int(rng.integers(1, 120))
        sent = Requests(np.cumsum(rng.exponential(mean_s, n)), rng.integers(1, 20_000, n), np.ones(n, np.int64))
        waiting = deque(zip((sent.arrival_s + 0.004).tolist(), (1e-6 * sent.n_prompt_tokens).tolist(), strict=True))
        now, there = 0.0, list[float]()
        while waiting:
            at, busy = waiting.popleft()
            now = max(now, at)
            until, batch = now + gather_s, [busy]
            while gather_s and len(batch) < 32 and waiting and waiting[0][0] <= until:
                at, busy = waiting.popleft()
                now = max(now, at)
                batch.append(busy)
            now = (now if len(batch) == 32 else until) + sum(batch)
            there += [now] * len(batch)
            sizes.add(len(batch))
        np.testing.assert_allclose(client.handed_over(sent).arrival_s, there, rtol=1e-12)
    assert sizes == {1} if not gather_s else 1 in sizes and 32 in sizes


def test_times_begin_when_it_sends() -> None:
    cost = iteration_costs(models.load("gpt-oss-20b").geometry, load("h100x2"), FixedCoverage(), "layered_prefill")
    sent = synthetic("arxiv", 1.0, 0, n=60, of_client=True)
    client = Client()
    seen = serve(sent, Chunked(), cost, client=client)
    engine = serve(client.handed_over(sent), Chunked(), cost)
    assert seen.finish_s.tolist() == engine.finish_s.tolist()
    np.testing.assert_allclose(seen.ttft_s - engine.ttft_s, engine.requests.arrival_s - sent.arrival_s, rtol=1e-9)
    at_once = serve(sent.at_once(), Chunked(), cost, client=client)
    assert at_once.requests.rate_per_s == float("inf")
    for name in ("queue_mean", "queue_max"):  # what the client takes is no queue of the engine
        assert metrics(seen)[name].value == pytest.approx(metrics(engine)[name].value, rel=0.01)
    assert load_of(seen).service_per_s == load_of(engine).service_per_s
