"""The benchmark client: when it sends, and what lies before the engine."""

import numpy as np
import pytest

from tokentape.hw.spec import load
from tokentape.policies.serving import Chunked
from tokentape.replay.serving.client import Client
from tokentape.replay.serving.coverage import FixedCoverage
from tokentape.replay.serving.iteration import iteration_costs
from tokentape.replay.serving.run import serve
from tokentape.replay.serving.workload import Requests, client_arrivals, synthetic
from tokentape.warehouse import models


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_it_sends_when_the_client_does(cv: float) -> None:
    legacy, sends, now = np.random.RandomState(0), list[float](), 0.0
    for _ in range(500):
        sends.append(now)
        now += legacy.gamma(shape=1 / cv**2, scale=1 / (1.3 / cv**2))
    np.testing.assert_allclose(client_arrivals(500, 1.3, cv), sends, rtol=1e-12)
    np.testing.assert_allclose(client_arrivals(500, 2.6, cv), client_arrivals(500, 1.3, cv) / 2, rtol=1e-12)


def test_a_seed_draws_the_lengths_alone_and_text_has_as_many_tokens_as_the_tokenizer_makes() -> None:
    drawn, sent, other = (synthetic("arxiv", 2.1, seed, of_client=of) for seed, of in ((3, False), (3, True), (4, True)))
    assert sent.n_prompt_tokens.tolist() == drawn.n_prompt_tokens.tolist() != other.n_prompt_tokens.tolist()
    assert sent.arrival_s.tolist() == other.arrival_s.tolist() != drawn.arrival_s.tolist()
    shorter = synthetic("arxiv", 2.1, 3, tokens_of_text=0.5)
    assert np.abs(shorter.n_prompt_tokens - drawn.n_prompt_tokens / 2).max() <= 0.5
    assert np.abs(shorter.n_output_tokens - drawn.n_output_tokens / 2).max() <= 0.5


def test_the_tokeniser_takes_prompts_in_turn() -> None:
    rng, client = np.random.default_rng(0), Client(connection_s=0.004, tokenise_s=1e-5)
    for _ in range(20):
        n = int(rng.integers(1, 60))
        arrival = np.cumsum(rng.exponential(0.05, n))
        sent = Requests(arrival, rng.integers(1, 20_000, n), np.ones(n, np.int64))
        free_s, there = 0.0, []
        for at, tokens in zip(arrival, sent.n_prompt_tokens, strict=True):
            free_s = max(free_s, at + 0.004) + 1e-5 * tokens
            there.append(free_s)
        np.testing.assert_allclose(client.handed_over(sent).arrival_s, there, rtol=1e-12)


def test_times_begin_when_it_sends() -> None:
    cost = iteration_costs(models.load("gpt-oss-20b").geometry, load("h100x2"), FixedCoverage(), "layered_prefill")
    sent = synthetic("arxiv", 1.0, 0, n=60, of_client=True)
    client = Client()
    seen = client.served(sent, lambda given: serve(given, Chunked(), cost))
    engine = serve(client.handed_over(sent), Chunked(), cost)
    assert seen.finish_s.tolist() == engine.finish_s.tolist()
    np.testing.assert_allclose(seen.ttft_s - engine.ttft_s, engine.requests.arrival_s - sent.arrival_s, rtol=1e-9)
    at_once = client.served(sent.at_once(), lambda given: serve(given, Chunked(), cost))
    assert at_once.requests.rate_per_s == float("inf")
