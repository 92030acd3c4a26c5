"""A tape's replay against the live run: the same tokens at every step where attention is not asked, else how far apart."""

import dataclasses

import numpy as np
import pytest
import torch
from test_kv_cache import generate, requests
from tiny_families import build
from transformers import AutoModelForCausalLM

from tokentape.capture.attention import AttentionCapture
from tokentape.capture.live.attention import KV
from tokentape.capture.live.divergence import agreement, open_trail
from tokentape.capture.run import CaptureSettings, capture
from tokentape.flows.tapes import attention_tape, replay_attention
from tokentape.policies.kv import KV_POLICIES
from tokentape.policies.kv.importance import AEP
from tokentape.policies.kv.quest import Quest, page_scores
from tokentape.policies.kv.random_eviction import RandomEviction
from tokentape.policies.kv.snapkv import SnapKV
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


@pytest.mark.parametrize(("name", "policy"), [
    pytest.param(name, policy, marks=[pytest.mark.slow] * ((i + n) % 2))
    for i, policy in enumerate(BLIND) for n, name in enumerate(("Qwen3Moe", "GptOss", "DeepseekV3", "Mistral", "OPT"))
])  # fmt: skip
def test_blind_policies_keep_the_same_tokens_open_and_closed(tiny, name, policy):
    opened, closed = both(tiny[name], policy, requests((12, 12), 15, forced=True))
    assert len(opened) == len(closed) == 15
    assert agreement(opened, closed) == [(1.0, 1.0)] * 3


@pytest.mark.parametrize(("name", "policy"), [
    pytest.param(name, policy, marks=[pytest.mark.slow] * (i != n))
    for i, policy in enumerate((AEP(6, sink=1), AEP(6, sink=1, is_per_head=False), AEP(6, sink=1, importance="decay")))
    for n, name in enumerate(("Qwen3Moe", "DeepseekV3", "OPT"))
])  # fmt: skip
def test_scores_agree_in_the_first_layer_and_drift_after(tiny, name, policy):
    """Nothing that is evicted reaches the first layer's queries or keys, and a row scaled to its sum is the smaller softmax."""
    batch = requests((12, 12), 25, forced=True)
    first, *deeper = agreement(*both(tiny[name], policy, batch))
    assert first == (1.0, 1.0)
    assert all(0.5 < same <= 1 for same, _ in deeper)
    if (name, policy.importance) == ("OPT", "decay"):  # later layers lose other tokens
        assert min(equal for _, equal in deeper) < 0.9


def kept_by_matrix(matrix, c, policy, n_observed):
    """Mean kept mass of decoded queries, policy after policy's own paper on (H, n, n) attention: the prompt's last n_observed
    queries choose, then the newest row (TOVA) or the last rows (SnapKV, whose prompt stands in them by its mean) move on."""
    n_heads, n = matrix.shape[:2]
    budget, _, recent = policy.limits
    seen = matrix[:, c - n_observed : c, :c].sum(axis=1)
    rank = seen.sum(axis=0, keepdims=True) if not policy.is_per_head else seen.copy()
    pool = getattr(policy, "pool", 1) // 2
    for h, last in ((h, c - recent) for h in range(len(rank)) if pool):
        padded = np.pad(seen[h, :last], pool)
        rank[h, :last] = [padded[i : i + 2 * pool + 1].mean() for i in range(last)]
    kept, shares = [], []
    for h in range(len(rank)):
        free = sorted(range(c - recent), key=lambda i: (-rank[h, i], i))
        kept.append(sorted(free[: max(0, budget - recent)]) + list(range(max(0, c - recent), c)))
    window = [[{i: seen[h, i] / n_observed for i in kept[h]}] * n_observed for h in range(len(kept))]
    for now in range(c, n):
        for g, mine in enumerate(kept):
            mine.append(now)
            paid = dict.fromkeys(mine, 0.0)
            for h in [g] if policy.is_per_head else range(n_heads):
                share = matrix[h, now, mine].sum()
                shares.append(share)
                for i in mine:
                    paid[i] += matrix[h, now, i] / share
            window[g] = [*window[g], paid][-n_observed:]
            score = {i: sum(row.get(i, 0.0) for row in window[g]) for i in mine}
            if len(mine) > budget:
                mine.remove(min((i for i in mine if i <= now - recent), key=lambda i: (score[i], i)))
    return float(np.mean(shares))


@pytest.mark.parametrize(
    "policy", [TOVA(8), TOVA(8, is_per_head=True), SnapKV(9, window=3, pool=3)], ids=["shared", "tova", "snapkv"]
)
def test_recorded_last_rows_replay_as_the_full_matrix_says(model_folder, tmp_path, policy):
    text, store = tmp_path / "text.jsonl", Store(str(tmp_path / "tape"))
    text.write_text('{"prompt": "the quick brown fox jumps"}\n{"prompt": "over a lazy dog again"}\n')
    lengths = {"max_prompt_tokens": 32, "max_new_tokens": 9, "batch_size": 2}
    settings = CaptureSettings(model_folder("Llama"), str(text), ("tokens", "attention"), **lengths)
    n = policy.prompt_queries
    tapes = [capture(dataclasses.replace(settings, attention_rows=rows), store) for rows in (n - 1, n, n + 2)]
    few, *exact = [replay_kv(attention_tape(store, trace_id), policy) for trace_id in tapes]
    assert [found.replay["is_exact"] for found in (few, *exact)] == [False, True, True]
    assert exact[0].replay | {"trace_id": ""} == exact[1].replay | {"trace_id": ""}
    model = AutoModelForCausalLM.from_pretrained(settings.model, attn_implementation="eager").eval()
    tables = store.open(tapes[1])
    means, lasting = [], []
    for request_id, n_prompt, n_output in (
        tables.read("requests").select("request_id", "n_prompt_tokens", "n_output_tokens").rows()
    ):
        ids = tables.read("tokens").filter(request_id=request_id)["token_id"].to_list()
        with torch.inference_mode():
            attentions = model(torch.tensor([ids]), output_attentions=True).attentions
        matrices = [of[0].unflatten(0, (2, 2)).sum(1).double().numpy() / 2 for of in attentions]
        means += [np.mean([kept_by_matrix(m, n_prompt, policy, n) for m in matrices])]
        lasting += [n_output - 1]
    assert exact[0].replay["kept_mass_frac"] == pytest.approx(np.average(means, weights=lasting), abs=2e-6)


def test_quest_over_recorded_pages_reads_what_all_keys_say(model_folder, tmp_path):
    """Scores bound every q.k, and kept mass is that of a computation on all keys and queries of one plain pass."""
    text, store = tmp_path / "text.jsonl", Store(str(tmp_path / "tape"))
    text.write_text('{"prompt": "the quick brown fox jumps"}\n{"prompt": "over a lazy dog"}\n')
    settings = CaptureSettings(model_folder("Llama"), str(text), ("tokens", "attention"), max_new_tokens=9, batch_size=2)
    settings = dataclasses.replace(settings, max_prompt_tokens=32, key_pages=4, query_heads=True)
    trace_id, policy, page = capture(settings, store), Quest(12, dense_layers=1), 4
    found = replay_attention(store, trace_id, policy, True, True)
    model, shares = AutoModelForCausalLM.from_pretrained(settings.model, attn_implementation="eager").eval(), []
    tokens, requests_ = (store.open(trace_id).read(name) for name in ("tokens", "requests"))
    sums = store.open(trace_id).read("attention").filter(reduction="head_sum")
    for request_id, c in requests_.select("request_id", "n_prompt_tokens").rows():
        ids = tokens.filter(request_id=request_id)["token_id"].to_list()
        with AttentionCapture(model, with_vectors=True) as watched, torch.inference_mode():
            watched.n_rows = len(ids)
            vectors = []
            for n in range(1, len(ids) + 1):
                model(torch.tensor([ids[:n]]))
                seen = watched.take()
                vectors.append({layer: [x.numpy() for x in pair] for layer, pair in seen.vectors.items()})
        with torch.inference_mode():
            whole = model(torch.tensor([ids]), output_attentions=True).attentions
        for layer, of in seen.rows.items():
            mine = sums.filter(request_id=request_id, layer=layer)
            assert mine["query_head"].to_list() == [0, 1, 2, 3]
            np.testing.assert_allclose(mine["mass"].to_list(), whole[layer][0, :, :c, :c].sum(1), atol=2e-5)
            for head in range(2):
                for now in range(c, len(ids)):
                    query, keys = vectors[now][layer][0][0].reshape(2, 2, -1)[head], vectors[now][layer][1][0, head]
                    starts = np.arange(0, now + 1, page)
                    scores = page_scores(query, np.minimum.reduceat(keys, starts), np.maximum.reduceat(keys, starts))
                    assert (np.repeat(scores, page)[: now + 1] >= (query @ keys.T).sum(0) - 1e-4).all()
                    pages = policy.read(scores, page) if layer else np.arange(scores.size)
                    assert len(pages) == (min(3, scores.size) if layer else scores.size)
                    mass = of[0, head, now, : now + 1].numpy()
                    shares.append(mass[np.isin(np.arange(now + 1) // page, pages)].sum() / mass.sum())
    assert found.replay["kept_mass_frac"] == pytest.approx(np.mean(shares), abs=2e-6)
    assert 0.3 < found.replay["kept_mass_frac"] < 0.99
    with pytest.raises(ValueError, match="--key-pages 16"):
        replay_kv(attention_tape(store, capture(dataclasses.replace(settings, key_pages=0), store)), policy)
    with pytest.raises(ValueError, match="decide kv"):
        KV(model, policy)
