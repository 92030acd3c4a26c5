"""Token-layers per CPU second of the loop: a cache, a placement, a KV track in its room, drafts, slices; at batch 1 and 16."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from bench.replay import N_EXPERTS, N_LAYERS, TOP_K, decode_keys
from tokentape.hw.spec import load
from tokentape.policies.slots import System, of_table
from tokentape.replay.scores import Scores
from tokentape.replay.system.drafts import Rounds
from tokentape.replay.system.recorded import Recorded
from tokentape.replay.system.run import simulate
from tokentape.warehouse.models import load as load_model

N_PROMPT, N_DECODE, DEPTH = 16, 512, 3
SYSTEMS = {
    "lru": {"residency": {"policy": "lru", "budget": "25%"}},
    "lru_prefetch": {"residency": {"policy": "lru", "budget": "25%"}, "prefetch": {"policy": "transitions"}},
    "lru_place": {"residency": {"policy": "lru", "budget": "25%"}, "place": {"policy": "near_if_rare", "most": 1}},
    "lfu_place": {"residency": {"policy": "lfu", "budget": "25%"}, "place": {"policy": "near_if_rare", "most": 1}},
    "lru_place_kv": {
        "residency": {"policy": "lru", "budget": "25%", "share_kv": "true"},
        "place": {"policy": "near_if_rare", "most": 1},
        "kv": {"policy": "streaming", "budget": 256},
    },
    "lru_place_kv_drafts": {
        "draft": {"policy": "recorded"},
        "residency": {"policy": "lru", "budget": "25%", "share_kv": "true"},
        "place": {"policy": "near_if_rare", "most": 1},
        "kv": {"policy": "streaming", "budget": 256},
    },
    "guided": {"place": {"policy": "prefill_guided", "budget": "25%"}},
    "sliced": {"route": {"policy": "slicemoe", "router": "cache_prior"}, "residency": {"budget": "25%"}},
}


def tape_of(n_requests: int, is_scored: bool = False) -> Recorded:
    """Requests of equal length, experts drawn as the other benches draw them; rounds of DEPTH drafts, one accepted. is_scored:
    with scores, drawn too."""
    rows, n_rounds = n_requests * (N_PROMPT + N_DECODE), n_requests * N_DECODE // 2
    keys = decode_keys(rows + n_rounds * (2 * DEPTH + 1)).reshape(-1, N_LAYERS, TOP_K)
    ids = np.ascontiguousarray(keys % N_EXPERTS, np.int16)
    first = np.arange(n_requests + 1) * (N_PROMPT + N_DECODE)
    n_prompt = np.full(n_requests, N_PROMPT)
    geometry = load_model("qwen3-30b-a3b").geometry
    round_at = np.full(rows, -1)
    round_at[(first[:-1, None] + np.arange(N_PROMPT, N_PROMPT + N_DECODE, 2)).ravel()] = np.arange(n_rounds)
    verify = rows + np.arange(n_rounds + 1) * (DEPTH + 1)
    passes = np.arange(n_rounds + 1) * DEPTH
    bounds = verify[-1] + np.arange(n_rounds * DEPTH + 1)
    rounds = Rounds(round_at, np.ones(n_rounds, np.int64), verify, passes, bounds, "elastic", "hotness", 0.5, 4, "slices")
    tape = Recorded(
        "bench", "synthetic", geometry, ids, np.ones((rows, *ids.shape[1:]), np.float32), first, n_prompt, 0, rounds=rounds
    )
    if not is_scored:
        return tape
    values = np.random.default_rng(0).standard_normal((rows * N_LAYERS, N_EXPERTS), np.float32)
    gates = np.exp(values)
    gates /= gates.sum(axis=1, keepdims=True)
    return replace(tape, ids=ids[:rows], rounds=None, scores=Scores(values, gates))


def bench() -> dict[str, Any]:
    """Million (token, MoE layer)s per CPU second, the clock's cost of every iteration included."""
    machine, found = load("h100-cxl-ndp"), {}
    tapes = {False: tape_of(16), True: tape_of(4, is_scored=True)}
    for batch in (1, 16):
        for name, table in SYSTEMS.items():
            tape = tapes["route" in table]
            requests = tape.requests()
            schedule = {"policy": "orca", "max_seqs": str(batch)}
            system: System = of_table(name, {"schedule": schedule, **table})
            best = float("inf")
            for _ in range(3):
                began = time.process_time()
                simulate(tape, requests, system, machine)
                best = min(best, time.process_time() - began)
            of_rounds = len(tape.ids) - int(tape.first[-1])  # verified and drafted, in place of decodes
            n_rows = len(requests) * N_PROMPT + (of_rounds if "draft" in table else len(requests) * N_DECODE)
            rate = n_rows * N_LAYERS / best / 1e6
            found[f"loop_{name}_batch_{batch}_m_token_layers_per_cpu_s"] = round(rate, 2)
            print(f"loop, {name}, batch {batch}: {rate:.2f} M token-layers/s")
    return found


if __name__ == "__main__":
    bench()
