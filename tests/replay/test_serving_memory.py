"""What fits a machine's memory beside a model: KV blocks against those of real servers, by hand, and refusals with the sizes."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from refusing import refuses
from serving_models import tiny

from tokentape.hw.spec import load as machine
from tokentape.policies.serving import Chunked, Continuous, Layered, Speculation, Static
from tokentape.replay.serving.coverage import FixedCoverage
from tokentape.replay.serving.iteration import iteration_costs
from tokentape.replay.serving.memory import BLOCK_TOKENS, Footprint, footprint
from tokentape.replay.serving.run import Limits, serve
from tokentape.replay.serving.workload import Requests
from tokentape.warehouse import models
from tokentape.warehouse.geometry import Geometry

REAL = Path(__file__).resolve().parents[3] / "shared" / "data" / "vllm_experiments" / "experiments.json"
# hidden, layers, heads, KV heads, head width, FFN, vocabulary; from the models' config.json.
DENSE = {
    "meta-llama/Llama-3.1-70B-Instruct": (8192, 80, 64, 8, 128, 28672, 128256),
    "mistralai/Mistral-Nemo-Instruct-2407": (5120, 40, 32, 8, 128, 14336, 131072),
    "Qwen/Qwen2.5-7B-Instruct": (3584, 28, 28, 4, 128, 18944, 152064),
    "meta-llama/Llama-2-7b-hf": (4096, 32, 32, 32, 128, 11008, 32000),
}


def dense(name: str) -> Geometry:
    names = ("hidden", "n_layers", "n_heads", "n_kv_heads", "head_dim", "dense_intermediate", "vocab")
    return Geometry(architecture=name, **dict(zip(names, DENSE[name], strict=True)))


def rule(geometry: Geometry, chunk: int = 512):
    return Chunked(chunk).rule(geometry.n_layers)


@pytest.mark.skipif(not REAL.is_file(), reason="needs ../shared/data")
def test_blocks_are_those_of_real_servers() -> None:
    """vLLM on H100s, dense models of 7 to 70 billion parameters on one to four GPUs; nothing fitted."""
    n_held = 0
    for real in json.loads(REAL.read_text()):
        if real["model"] not in DENSE:
            continue
        geometry, spec = dense(real["model"]), machine("h100")
        many = machine("h100x2") if real["tensor_parallel"] > 1 else spec
        many = type(many)(**{**vars(many), "n_devices": real["tensor_parallel"]})
        of = rule(geometry, real["max_num_batched_tokens"])
        found = footprint(real["model"], geometry, many, "bf16", of, real["max_num_seqs"]).kv_blocks()
        assert found == pytest.approx(real["kv_blocks_of_16_tokens"], rel=0.04), real["model"]
        n_held += 1
    assert n_held == 5


def test_blocks_by_hand() -> None:
    g = tiny(4)
    found = footprint("tiny", g, machine("h100x2"), "bf16", rule(g, 100), 10)
    assert found.block_bytes == 4 * BLOCK_TOKENS * 2 * 2 * 64 * 2  # layers, tokens, K and V of two heads, bf16
    assert found.memory_bytes == 2 * 85.5e9
    # 100 tokens: hidden states twice on both devices; of 8 selections the down product on both and the activation's output.
    assert found.activation_bytes == 2 * 100 * (2 * 512 * 2 + 8 * (2 * 512 + 160)) + 10 * 3000 * 6 * 2
    left = 0.5 * found.memory_bytes - found.weights_bytes - found.activation_bytes
    assert found.kv_blocks(0.5) == int(left / found.block_bytes)


def test_kv_heads_are_copied_and_windows_take_a_window() -> None:
    g = models.load("qwen3-235b-a22b").geometry
    eight, two = (footprint("q", g, machine(name), "bf16", rule(g), 256) for name in ("h100x8", "h100x2"))
    assert eight.block_bytes == 2 * two.block_bytes  # four KV heads
    made = [tiny(len(w), windows=w) for w in ((0,) * 4, (128, 0, 128, 0), (128,) * 4, (128, 128, 128, 0, 0), (128, 0, 0, 0))]
    of = [footprint("tiny", g, machine("h100"), "bf16", rule(g), 256) for g in made]
    assert [found.windows.get("windowed", 0) for found in of] == [0, 1, 0, 2, 0]  # two groups for three layers, one filled up
    assert [found.block_bytes / of[0].block_bytes for found in of] == [1, 1, 1, 1.5, 1]


def test_a_window_leaves_room_for_more_requests() -> None:
    """400 blocks in all; 1,800 tokens have 113 of the layers that see all of them, and 9 of those that see 128."""
    eight, windows = Requests(np.zeros(8), np.full(8, 1600), np.full(8, 200)), {"windowed": 1, "window_tokens": 128}
    cost = iteration_costs(tiny(4), machine("h100"), FixedCoverage(), "layered_prefill")
    for keeps in (False, True):
        for has, n_at_once in (({}, 1), (windows, 3), (windows | {"has_states": True}, 3)):
            run = serve(eight, Chunked(64), cost, Limits(kv_blocks=200, keeps=keeps, **has), record=True)
            assert (run.iterations["n_decode"].max(), run.n_restarts.sum()) == (n_at_once, 0)
    states, two = Limits(kv_blocks=10, **windows, has_states=True), Requests(np.zeros(2), np.full(2, 16), np.full(2, 17))
    assert not serve(two, Chunked(64), cost, states).n_restarts.any()  # a state takes 8 blocks, beside 2
    serve(eight, Chunked(64), cost, Limits(kv_blocks=63, **windows))  # with the slice that the window passes 13
    refuses("need 63 KV blocks of 16, kv_blocks is 62", serve, eight, Chunked(64), cost, Limits(kv_blocks=62, **windows))
    four = {"windowed": 4, "window_tokens": 16}
    back = (Requests(np.zeros(2), np.full(2, 10), np.full(2, 600)), Chunked(512), cost)  # one comes back with a slice of 300
    refuses("need 35 KV blocks of 16, kv_blocks is 34", serve, *back, Limits(kv_blocks=34, **four))
    whole = (Requests(np.zeros(2), np.full(2, 2000), np.full(2, 60)), Continuous(100), cost)  # a prompt above the cap is whole
    refuses("need 129 KV blocks of 16, kv_blocks is 128", serve, *whole, Limits(kv_blocks=128, **four))
    assert not serve(*whole, Limits(kv_blocks=129, **four)).n_restarts.any()
    # A window passes no draft before it is accepted: 9 blocks, and 3 in each of four windows, of two requests.
    drafted, two = replace(cost, speculation=Speculation(16, ())), Requests(np.zeros(2), np.full(2, 64), np.full(2, 65))
    assert [serve(two, Chunked(64), drafted, Limits(kv_blocks=n, **four)).n_restarts.any() for n in (8, 9)] == [True, False]


def test_larger_iterations_leave_fewer_blocks() -> None:
    g = models.load("qwen3-30b-a3b").geometry
    sizes = [
        footprint("q", g, machine("h100x2"), "bf16", scheduler.rule(g.n_layers), 256).activation_bytes
        for scheduler in (Chunked(512), Layered(), Static())
    ]
    assert sizes == sorted(sizes)
    assert sizes[0] < 1e9 < sizes[1] < 2e9 < sizes[2]


def test_experts_that_do_not_fit_stay_at_their_home() -> None:
    """Half of what 24 GB leave beside 3 GB of other weights is for KV; on a machine without a home for experts all must fit."""
    g, card = models.load("qwen3-30b-a3b").geometry, machine("workstation-rtx4090-pcie4")
    found = footprint("q", g, card, "bf16", rule(g), 256)
    left = 0.9 * found.memory_bytes - (found.weights_bytes - found.movable_bytes) - found.activation_bytes
    assert found.movable_bytes == 48 * 128 * g.expert_bytes("bf16")[0]
    assert found.kv_blocks() == int(left / 2 // found.block_bytes)
    assert found.held_frac(found.kv_blocks()) == pytest.approx(left / 2 / found.movable_bytes, rel=1e-3)
    assert found.held_frac(0) == pytest.approx(left / found.movable_bytes)
    small = footprint("q", g, card, "int4", rule(g), 256)
    assert small.held_frac(small.kv_blocks()) == 1.0
    assert footprint("q", g, machine("h100"), "bf16", rule(g), 256).movable_bytes == 0
    in_place = footprint("q", g, machine("elmoe3d-xpu-nmp"), "bf16", rule(g), 256)
    assert in_place.movable_bytes == 0
    assert in_place.weights_bytes == found.weights_bytes - found.movable_bytes


def test_what_does_not_fit_is_refused_with_its_sizes() -> None:
    held = Footprint("big", "small card", 24e9, 61_100_000_000, 500_000_000, 1_000_000, {})
    words = (
        "big does not fit small card: 61.1 GB of weights and 0.5 GB of activations leave no room for a KV cache in 21.6 GB, 90 %"
    )
    refuses(words, held.kv_blocks)
    fits = Footprint("fits", "card", 24e9, 20_000_000_000, 500_000_000, 1_000_000, {})
    assert fits.kv_blocks() == 1100
    fits.refuse_more_than_fit(3500)
    refuses(r"kv_blocks is 3501, 3.5 GB: .* room for 3500 in the 24 GB of card", fits.refuse_more_than_fit, 3501)
    for share in (0.0, 1.1, float("nan")):
        refuses("--memory-frac", fits.kv_blocks, share)


def test_replicas_hold_copies_of_all_but_experts_and_what_their_own_requests_take() -> None:
    g, two = models.load("qwen3-30b-a3b").geometry, replace(machine("h100x2"), data_parallel=2, expert_parallel=True)
    alone, pair, spare = (
        footprint("q", g, of, "bf16", rule(g), n_seqs, n_replicas=n)
        for of, n_seqs, n in ((machine("h100"), 128, 0), (two, 256, 0), (two, 256, 8))
    )
    expert_bytes = sum(g.expert_bytes("bf16"))
    assert pair.weights_bytes == 2 * alone.weights_bytes - 128 * expert_bytes
    assert spare.weights_bytes - pair.weights_bytes == 8 * expert_bytes
    assert pair.activation_bytes == 2 * alone.activation_bytes
