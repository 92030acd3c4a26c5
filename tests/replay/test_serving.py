"""The serving engine: a schedule worked by hand, what machines and replicas change, and what must be refused."""

import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from refusing import refuses
from serving_models import NOTED, TABLE_1, both, clockwork, costs, requests_of, tiny

from tokentape.hw import profile
from tokentape.hw.spec import load as machine
from tokentape.policies.serving import SCHEDULERS, Chunked, Continuous, Disaggregated, Layered, Speculation
from tokentape.replay.estimate import estimate
from tokentape.replay.passes import fits_of
from tokentape.replay.serving import iteration as entries
from tokentape.replay.serving.coverage import FixedCoverage
from tokentape.replay.serving.iteration import IterationCosts, iteration_costs
from tokentape.replay.serving.run import Limits, ServingRun, run_rule, serve, serve_disaggregated
from tokentape.replay.serving.workload import Requests, synthetic
from tokentape.replay.tokens import Tokens
from tokentape.warehouse import models

GOLDEN = json.loads((Path(__file__).resolve().parents[1] / "data" / "serving_golden.json").read_text())


def costs_of(name: str, device: str = "h100x2", **options: object) -> IterationCosts:
    return costs(models.load(name).geometry, machine(device), NOTED, options.pop("coverage", TABLE_1), **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def qwen() -> IterationCosts:
    return costs_of("qwen3-30b-a3b")


def one(prompt: int, output: int = 1) -> Requests:
    return requests_of([[0, prompt, output]])


@pytest.mark.parametrize("golden", GOLDEN["schedulers"], ids=lambda g: g["scheduler"])
def test_schedule_worked_by_hand(golden: dict) -> None:
    scheduler = SCHEDULERS[golden["scheduler"]](**golden["fields"])
    run = serve(requests_of(GOLDEN["requests"]), scheduler, clockwork(), record=True)
    names = ("start_s", "n_decode", "n_prefill", "first_layer", "last_layer", "n_waiting")
    assert np.column_stack([run.iterations[name] for name in names]).tolist() == golden["iterations"]
    assert run.ttft_s.tolist() == golden["ttft_s"]
    assert run.finish_s.tolist() == golden["finish_s"]
    assert run.largest_gap_s.tolist() == [float(output > 1) for _, _, output in GOLDEN["requests"]]


def test_what_an_iteration_takes_does_not_depend_on_those_before() -> None:
    """Times of fitted operators are kept by tokens and shares of experts, many to a place."""
    h100, random = machine("h100"), np.random.default_rng(0)
    cost = iteration_costs(models.load("qwen3-30b-a3b").geometry, h100, TABLE_1, fits=fits_of(h100, "bf16"))
    used, kinds, layers = cost.table.copy(), cost.moe_of.size, cost.layers_before[-1]
    for _ in range(200):
        n_prompt, n_decodes = (int(n) for n in random.choice((1, 8, 64, 512, 520, 1024), 2))
        only, mixed = np.repeat(random.choice((0.2, 0.5, 1.0), (2, 1)), kinds, axis=1)
        carried = {entries.PROMPT: n_prompt, entries.PROMPTS: 1.0, entries.PAIRS: n_prompt * 50.0}
        carried |= {entries.DECODES: n_decodes, entries.KEYS: n_decodes * 900.0}
        for entry, value in carried.items():
            used[entries.CARRIED, entry] = value
        for entry, values in enumerate((0.0 * layers, layers, only, mixed)):
            used[:kinds, entry] = values
        cost.iteration(used)
        assert used[entries.COST, : entries.N_COST].tolist() == cost.cost(carried, layers, only, mixed).tolist()


@pytest.mark.parametrize("chunk", [256, 512, 1024])
def test_layered_reads_fewer_experts_for_a_prompt_longer_than_a_chunk(qwen: IterationCosts, chunk: int) -> None:
    for prompt in (chunk + 1, 3000, 8192, 20000):
        assert serve(one(prompt), Layered(), qwen).expert_bytes < serve(one(prompt), Chunked(chunk), qwen).expert_bytes


def test_runners_do_not_matter(qwen: IterationCosts) -> None:
    """Nor how often: byte by byte."""

    def made(seed: int) -> list[bytes]:
        run = serve(synthetic("arxiv", 1.3, seed, n=200), Layered(), qwen, record=True)
        columns = run.first_token_s, run.finish_s, run.largest_gap_s, run.gaps, *run.iterations.values()
        return [column.tobytes() for column in columns]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(made, range(8))) == [made(seed) for seed in range(8)]


SELDOM = ("expert_stream", "kelle", "elmoe3d")
STEPS = ("layers(a.bytes | a.ops) + b", "layers(a | b)", "(a + 1e-6) * (0.5 + 1.0) + b", "layers(partial(0.2 + 0.1, a, b))")
MINE = """name = "mine"\narbitrate = true\nlane.a.kind = ["proj", "expert", "elementwise"]
lane.b = { kind = ["kv_read", "kv_write"], bytes_frac = 0.9, bytes_frac_per_stream = 0.2 }\nstep = """


@pytest.mark.parametrize(
    "of",
    [*STEPS, *(pytest.param(of, marks=[pytest.mark.slow] * (of in SELDOM)) for of in profile.shipped())],
)
def test_a_decode_in_any_profile_takes_what_the_clock_says(of: str, tmp_path: Path) -> None:
    """Also where lanes overlap, share a tier, or sum over the step instead of a layer."""
    if of in STEPS:
        (tmp_path / "mine.toml").write_text(f'{MINE}"{of}"')
        of = str(tmp_path / "mine.toml")
    geometry, share, request = models.load("qwen3-30b-a3b").geometry, 0.25, Requests(np.zeros(1), np.array([9]), np.array([2]))
    for name in ("h100x2", "kelle-edram", "elmoe3d-8gb", "phone-lpddr5x-ufs4"):
        cost = iteration_costs(geometry, machine(name), FixedCoverage(share), of)
        found = serve(request, Chunked(64), cost, record=True).iterations["seconds"][1]
        wanted = estimate(geometry, machine(name), Tokens(decodes=1, context=10), share * 128, {}, profile=of).cost
        assert found == pytest.approx(float(wanted.seconds.value[0]), rel=1e-9), name


def test_experts_at_home_are_read_there_or_fetched() -> None:
    """By the clock on rows made by hand: one read of all that a layer misses first; in place, each tier at its own rate."""
    geometry, share, held = models.load("qwen3-30b-a3b").geometry, 1 / 16, 0.75
    request = Requests(np.zeros(1), np.array([64]), np.array([2]))
    for name, is_fetched in (("workstation-rtx4090-pcie4", True), ("elmoe3d-8gb", False)):
        spec = machine(name)
        all_held, some = (iteration_costs(geometry, spec, FixedCoverage(share), held_frac=frac) for frac in (1.0, held))
        a, b = (serve(request, Chunked(64), cost, record=True) for cost in (all_held, some))
        n_bytes = 48 * (1 - held) * share * 128 * geometry.expert_bytes("bf16")[0]
        home = spec.tiers[spec.roles.expert_home]
        rate = home.peak_bytes_per_s.value * home.efficiency_frac.value
        _, link = spec.link(spec.roles.expert_home, spec.roles.expert_cache) or ("", None)
        if is_fetched and link:
            rate = min(rate, link.peak_bytes_per_s.value * link.efficiency_frac.value)
        longer = b.iterations["seconds"][1] - a.iterations["seconds"][1]
        if is_fetched:
            each_s = home.latency_s.value + (link.latency_s.value if link else 0.0)
            assert longer == pytest.approx(n_bytes / rate + 48 * (1 - held**8) * each_s, rel=1e-9)
        else:
            assert 0.0 < longer < n_bytes / rate
        assert a.expert_bytes == pytest.approx(b.expert_bytes)


# ------------------------------------------------------------------------------------------------ edges


def test_replicas_attend_to_prompts_of_their_own_side_by_side() -> None:
    """By the roofline, on two: two prompts take as long as one but for what all write, four at most twice as long."""
    replicas = dataclasses.replace(machine("h100x2"), data_parallel=2)
    cost = iteration_costs(models.load("deepseek-v2-lite").geometry, replicas, FixedCoverage())
    runs = [serve(requests_of([[0, 1000, 1]] * n), Chunked(8000), cost, Limits(8)) for n in (1, 2, 4)]
    one, two, four = (run.seconds_of["attention"] for run in runs)
    assert one < two < 1.02 * one < four < 2 * one


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gpt-oss-20b"])
def test_joules_of_replicas_are_those_of_each_ones_own_prompts(model: str) -> None:
    """Four prompts on four: multiplied is what each multiplies on one device alone, and of a dense model moved as well. A step of
    one prompt computes as much, wherever it runs."""
    g, one, four = models.load(model).geometry, machine("h100"), dataclasses.replace(machine("h100x4"), data_parallel=4)
    rows, limits = [[0, 4000, 1], [0, 700, 1], [0, 90, 1], [0, 8, 1]], Limits(8)
    run = serve(requests_of(rows), Chunked(4000), iteration_costs(g, four, FixedCoverage()), limits)
    apart = [serve(requests_of([row]), Chunked(4000), iteration_costs(g, one, FixedCoverage()), limits) for row in rows]
    assert run.n_iterations == 1
    assert run.j_of_ops == pytest.approx(sum(of.j_of_ops for of in apart), rel=1e-12)
    if not g.moe_layers:
        assert run.j_of_bytes == pytest.approx(sum(of.j_of_bytes for of in apart), rel=1e-12)
    steps = [estimate(g, of, Tokens(decodes=0, context=1, prompt=4000), 32.0).cost.joules_of for of in (one, four)]
    assert steps[0]["engines.sm"].value == pytest.approx(steps[1]["engines.sm"].value, rel=1e-12)


def on_replicas(rows: list[list[int]], budget: int, n: int) -> list[tuple[int, int]]:
    """Prompt tokens and decodes of every iteration: each replica has a budget, and a prompt goes where the fewest tokens are."""
    cut, waiting, decodes, found = [], [list(row) for row in rows], list[int](), list[tuple[int, int]]()
    while cut or waiting or decodes:
        filled, batch, queue = [0] * n, list[list[int]](), cut + waiting
        while queue and (take := min(queue[0][0], budget - -(-len(decodes) // n) - min(filled))) > 0:
            filled[filled.index(min(filled))] += take
            queue[0][0] -= take
            batch.append(queue.pop(0))
        found.append((sum(filled), len(decodes)))
        n_cut = max(0, len(cut) - len(batch))
        cut, waiting = [of for of in batch if of[0]] + queue[:n_cut], queue[n_cut:]
        decodes = [left - 1 for left in decodes if left > 1] + [output - 1 for rest, output in batch if not rest and output > 1]
    return found


@pytest.mark.parametrize("n", [1, 2, 3])
def test_each_replica_has_a_token_budget(n: int) -> None:
    rng = np.random.default_rng(n)
    replicas = dataclasses.replace(machine("h100x2"), n_devices=6, data_parallel=n)
    cost = iteration_costs(models.load("deepseek-v2-lite").geometry, replicas, FixedCoverage())
    for _ in range(20):
        rows = np.column_stack([rng.integers(1, 300, 12), rng.integers(1, 20, 12)]).tolist()
        budget = int(rng.integers(20, 200))
        its = serve(requests_of([[0, *row] for row in rows]), Chunked(budget), cost, record=True).iterations
        assert list(zip(its["n_prefill"].tolist(), its["n_decode"].tolist(), strict=True)) == on_replicas(rows, budget, n)


def test_prompts_that_are_processed_anew_on_several_replicas_run_each() -> None:
    """Of an engine that decodes: two lost their KV, and while both are in prefill one decodes beside them, of three that may run.
    One more would have lost its own at once."""
    replicas = dataclasses.replace(machine("h100x2"), data_parallel=2)
    cost = iteration_costs(models.load("deepseek-v2-lite").geometry, replicas, FixedCoverage())
    rows = [[0, 30, 30], [0, 20, 30], [0, 10, 30], [0, 10, 20], [0, 20, 25]]
    run = run_rule(requests_of(rows), Disaggregated(8).decode_rule(27), cost, Limits(3, 100, 1))
    assert run.n_restarts.tolist() == [0, 1, 1, 0, 0]


def test_arrival_at_an_iterations_start_is_admitted_and_during_a_pass_waits() -> None:
    cost = both(tiny(4))[0]
    first = serve(one(600, 2), Layered(4096, 4, "fixed"), cost, record=True).iterations["start_s"]
    rows = [[0, 600, 2], [first[1], 600, 1]]
    run = serve(requests_of(rows), Layered(4096, 4, "fixed"), cost)
    assert run.started_s[1] == run.first_token_s[0], "it waits for the pass to end"
    second = serve(requests_of([[0, 30, 9], [0, 30, 9]]), Chunked(30), cost, record=True).iterations["start_s"][1]
    run = serve(requests_of([[0, 30, 9], [second, 30, 9]]), Chunked(31), cost)
    assert run.started_s[1] == run.first_token_s[0] == pytest.approx(second, rel=1e-2)


def test_whole_prompts_up_to_the_cap_join_and_those_longer_than_a_pass_keep_their_order() -> None:
    """Two requests decode while two prompts come, which fill the cap of 10 to the token; with one token more they follow."""
    for later, expected in ((5, [10, 10, 0]), (6, [10, 5, 6])):
        rows = [[0, 5, 9], [0, 5, 9], [1e-9, 5, 9], [1e-9, later, 9]]
        its = serve(requests_of(rows), Continuous(10), both(tiny())[0], record=True).iterations
        assert its["n_prefill"][:3].tolist() == expected
        assert its["n_decode"][1] == 2
    run = serve(requests_of([[0, 900, 1], [0, 10, 1], [0, 10, 1]]), Layered(250, 2, "fixed"), both(tiny())[0], record=True)
    assert run.iterations["n_prefill"].tolist() == [250, 250, 250, 250, 250, 250, 170, 170]
    assert np.ptp(run.first_token_s) == 0.0


def test_disaggregated_is_two_engines_in_series() -> None:
    cost = costs_of("qwen3-30b-a3b", "h100")
    requests = synthetic("arxiv", 0.5, 0, n=50)
    run = serve_disaggregated(requests, Disaggregated(2048), cost, cost)
    assert run.decode is not None
    assert np.all(run.finish_s >= run.prefill.first_token_s)
    assert run.decode.n_prefilled == 0
    assert run.decode.n_decoded == requests.n_output_tokens.sum() - len(requests)
    transfer_s = 48 * 2048 * requests.n_prompt_tokens / 300e9
    assert run.decode.requests.arrival_s[0] == pytest.approx((run.prefill.first_token_s + transfer_s).min())
    alone = serve_disaggregated(one(1000, 5), Disaggregated(), cost, cost)
    assert alone.decode is not None
    assert alone.finish_s[0] == pytest.approx(alone.prefill.ttft_s[0] + 1000 * 98304 / 300e9 + alone.decode.busy_s)
    narrow = {"of_windows": (("n_kv_heads", 1), ("head_dim", 24))}  # two layers of 2 x 24 values, two of 2 x 2 x 64
    mixed = both(tiny(4, windows=(40, 0, 40, 0)).model_copy(update=narrow), "h100")[0]
    pair = serve_disaggregated(one(1000, 5), Disaggregated(), mixed, mixed)
    assert pair.decode is not None
    assert pair.finish_s[0] == pytest.approx(pair.prefill.ttft_s[0] + (40 * 192 + 1000 * 1024) / 300e9 + pair.decode.busy_s)
    ends = serve_disaggregated(one(1000, 1), Disaggregated(), cost, cost)
    assert ends.decode is None


def test_disaggregated_decodes_that_lose_their_kv_are_processed_again_there() -> None:
    cost = both(tiny(5, windows=(40, 0, 40, 0, 40)), "h100")[0]
    n_restarts = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        requests = Requests(np.sort(rng.random(30)) * 0.1, rng.integers(1, 400, 30), rng.integers(1, 60, 30))
        longest = int((-(-(requests.n_prompt_tokens + requests.n_output_tokens - 1) // 16)).max())
        run = serve_disaggregated(requests, Disaggregated(100), cost, cost, Limits(kv_blocks=longest + 3))
        assert run.decode is not None
        assert np.all(run.finish_s >= run.prefill.first_token_s)
        assert run.decode.n_prefilled == run.decode.n_lost_tokens
        n_restarts += int(run.decode.n_restarts.sum())
    assert n_restarts > 0


def test_a_request_that_lost_its_kv_goes_before_those_that_come_to_decode() -> None:
    """The second of two loses its own to the first; sixty small ones that wait do not fill the room before it is back."""
    cost = both(tiny())[0]
    prompts, outputs = np.array([10, 11] + [2] * 60), np.array([12, 12] + [4] * 60)
    arrival = np.where(np.arange(62) < 2, 0.0, 1e-9)
    run = serve_disaggregated(Requests(arrival, prompts, outputs), Disaggregated(64), cost, cost, Limits(256, 24, 1)).decode
    assert run is not None
    assert run.n_restarts[1] == 1
    assert np.sum(run.finish_s < run.finish_s[1]) < 10, "it was the last of all"
    run = run_rule(requests_of([[0, 10, 12], [0.5, 12, 12]]), Disaggregated().decode_rule(4), clockwork(), Limits(9, 24, 1))
    assert (run.n_restarts.tolist(), run.finish_s.tolist()) == ([0, 0], [11, 22]), "it comes when it need not go at once"
    rows = [[0, 5, 6], [0, 13, 9], [5, 18, 4]]  # the third comes while the second, with 4 of its tokens, is processed again
    run = run_rule(requests_of(rows), Disaggregated(4).decode_rule(4), clockwork(), Limits(9, 23, 1))
    assert (run.n_restarts.tolist(), run.finish_s.tolist()) == ([0, 1, 0], [5, 14, 17]), "not into the room of the next slice"


def test_layered_loses_on_a_dense_model() -> None:
    """Negative: without experts to read, walking through the layers only delays the first token and the tokens beside it."""
    cost = costs_of("qwen3-8b", "h100")
    for rate in (0.6, 0.8, 1.0):
        runs: dict[str, list[ServingRun]] = {"chunked": [], "layered": []}
        for seed in range(5):
            requests = synthetic("arxiv", rate, seed, length_scale=0.931)
            runs["chunked"].append(serve(requests, Chunked(512), cost))
            runs["layered"].append(serve(requests, Layered(), cost))
        ttft, tbt = (
            {name: np.median([of(run) for run in made]) for name, made in runs.items()}
            for of in (lambda run: run.ttft_s.mean(), lambda run: run.gap_mean_s)
        )
        assert ttft["layered"] > ttft["chunked"], rate
        assert tbt["layered"] > tbt["chunked"], rate


# ------------------------------------------------------------------------------------------------ bad input


def test_bad_input_is_refused_in_one_line(qwen: IterationCosts) -> None:
    drafting = costs_of("qwen3-30b-a3b", speculation=Speculation(4, ()))
    cases = [
        (lambda: requests_of([[0, 5, 5], [0, 5, 0]]), "request 1: n_output_tokens is 0"),
        (lambda: requests_of([[float("nan"), 5, 5]]), "arrival_s is nan"),
        (lambda: Requests(np.zeros(2), np.ones(1, np.int64), np.ones(2, np.int64)), "n_prompt_tokens has 1 entries"),
        (lambda: dataclasses.replace(one(5), prefix=np.array([1])), "prefix is 1; it must be a row of prefixes"),
        (lambda: dataclasses.replace(one(5), prefixes=np.array([[0, 6, 0]])), "of one no longer than the prompt"),
        (lambda: serve(one(900, 3), Chunked(), qwen, Limits(kv_blocks=56)), "need 57 KV blocks of 16, kv_blocks is 56"),
        (lambda: serve(one(5), Layered(n_max=49, n_lg_rule="fixed"), qwen), "n_max 49: more groups than the model's 48 layers"),
        (lambda: serve(one(5), type("Own", (), {"rule": Disaggregated().decode_rule})(), qwen), "Own: starts_decoding"),
        (lambda: Limits(max_seqs=0), "max_seqs must be at least 1, found 0"),
        (lambda: synthetic("wiki", 1.0, 0), "data set 'wiki' is unknown"),
        (lambda: Speculation(-1, ()), "n_nodes is -1"),
        (lambda: Speculation(1, (0.5, 0.4)), "at least as many as the 2 positions"),
        (lambda: Speculation(2, (0.4, 0.5)), "do not rise"),
        (lambda: Speculation(1, (1.5,)), r"lie in \[0, 1\]"),
        (lambda: Speculation(1, (float("nan"),)), r"lie in \[0, 1\]"),
        (lambda: Speculation(1, (0.5,), -1.0), "draft_s is -1.0"),
        (lambda: Speculation(0, (), 0.1), "0 where nothing is drafted"),
        (lambda: Speculation.recorded(2, []), "no rounds were recorded"),
        (lambda: serve(one(30, 3), Chunked(), drafting, Limits(kv_blocks=2)), "need 3 KV blocks"),
    ]
    for call, message in cases:
        refuses(message, call)
