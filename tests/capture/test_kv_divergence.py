"""A tape's replay against the live run: the same tokens at every step where attention is not asked, else how far apart."""

import numpy as np
import pytest
from test_kv_cache import generate, requests
from tiny_families import build

from tokentape.capture.live.attention import KV
from tokentape.capture.live.divergence import agreement, open_trail
from tokentape.capture.run import CaptureSettings, capture
from tokentape.flows.kv_tape import attention_tape
from tokentape.policies.kv import KV_POLICIES
from tokentape.policies.kv.importance import AEP
from tokentape.policies.kv.random_eviction import RandomEviction
from tokentape.policies.kv.streaming import Streaming
from tokentape.policies.kv.tova import TOVA
from tokentape.replay.kv.replay import replay_kv
from tokentape.warehouse.tape import Store

BLIND = [KV_POLICIES["full"](), Streaming(6, sink=2), Streaming(5, sink=0), RandomEviction(6, sink=1, seed=3)]


@pytest.fixture(scope="module")
def tiny():
    return {name: build(name) for name in ("Qwen3Moe", "GptOss", "DeepseekV3", "Mistral", "OPT")}


def both(model, policy, batch):
    loop = KV(model, policy, keeps_trail=True)
    generate(model, batch, loop)
    return open_trail(model, policy, batch, 0), loop.trail


@pytest.mark.parametrize("name", ["Qwen3Moe", "GptOss", "DeepseekV3", "Mistral", "OPT"])
@pytest.mark.parametrize("policy", BLIND, ids=lambda p: type(p).__name__)
def test_blind_policies_keep_the_same_tokens_open_and_closed(tiny, name, policy):
    opened, closed = both(tiny[name], policy, requests((12, 12), 15, forced=True))
    assert len(opened) == len(closed) == 15
    assert agreement(opened, closed) == [(1.0, 1.0)] * 3


@pytest.mark.parametrize("name", ["Qwen3Moe", "DeepseekV3", "OPT"])
def test_scores_agree_in_the_first_layer_and_drift_after(tiny, name):
    """Nothing that is evicted reaches the first layer's queries or keys, and a row scaled to its sum is the smaller softmax."""
    batch = requests((12, 12), 25, forced=True)
    for policy in (AEP(6, sink=1), AEP(6, sink=1, is_per_head=False), AEP(6, sink=1, importance="decay")):
        first, *deeper = agreement(*both(tiny[name], policy, batch))
        assert first == (1.0, 1.0)
        assert all(0.5 < same <= 1 for same, _ in deeper)
    if name == "OPT":  # the last policy above: later layers lose other tokens
        assert min(equal for _, equal in deeper) < 0.9


def test_a_captured_tape_replays_to_what_the_live_run_keeps(model_folder, prompts, tmp_path):
    """Through the store: kept mass of the tape's replay equals the mass on what the live run retained."""
    store = Store(str(tmp_path / "tape"))
    folder = model_folder("Qwen3Moe")
    tables = ("requests", "tokens", "passes", "attention")
    settings = CaptureSettings(folder, prompts, tables, max_requests=3, max_prompt_tokens=32, max_new_tokens=12)
    tape = attention_tape(store, capture(settings, store))
    for policy in (*BLIND, TOVA(6)):
        row = replay_kv(tape, policy).replay
        assert 0 < row["kept_mass_frac"] <= 1 + 1e-6
        assert row["n_steps"] == sum(n - n_prompt for n_prompt, n in tape.requests.values())
    assert replay_kv(tape, BLIND[0]).replay["kept_mass_frac"] == pytest.approx(1)
    assert np.isfinite(replay_kv(tape, KV_POLICIES["oracle"](6)).replay["kept_mass_frac"])
