"""Token-layer events per CPU second of the loop: a cache alone, with a placement, with a KV track in its room; batch 1 and 16."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from bench.replay import N_EXPERTS, N_LAYERS, TOP_K, decode_keys
from tokentape.hw.spec import load
from tokentape.policies.slots import System, of_table
from tokentape.replay.passes import fits_of
from tokentape.replay.system.recorded import Recorded
from tokentape.replay.system.run import simulate
from tokentape.warehouse.models import load as load_model

N_PROMPT, N_DECODE = 16, 512
SYSTEMS = {
    "lru": {"residency": {"policy": "lru", "budget": "25%"}},
    "lru_place": {"residency": {"policy": "lru", "budget": "25%"}, "place": {"policy": "near_if_rare", "most": 1}},
    "lfu_place": {"residency": {"policy": "lfu", "budget": "25%"}, "place": {"policy": "near_if_rare", "most": 1}},
    "lru_place_kv": {
        "residency": {"policy": "lru", "budget": "25%", "share_kv": "true"},
        "place": {"policy": "near_if_rare", "most": 1},
        "kv": {"policy": "streaming", "budget": 256},
    },
    "guided": {"place": {"policy": "prefill_guided", "budget": "25%"}},
}


def tape_of(n_requests: int) -> Recorded:
    """Requests of equal length, experts drawn as the other benches draw them."""
    rows = n_requests * (N_PROMPT + N_DECODE)
    keys = decode_keys(rows).reshape(rows, N_LAYERS, TOP_K)
    ids = np.ascontiguousarray(keys % N_EXPERTS, np.int16)
    first = np.arange(n_requests + 1) * (N_PROMPT + N_DECODE)
    n_prompt = np.full(n_requests, N_PROMPT)
    geometry = load_model("qwen3-30b-a3b").geometry
    return Recorded("bench", "synthetic", geometry, ids, np.ones(ids.shape), first, n_prompt, 0)


def bench() -> dict[str, Any]:
    """Million (token, MoE layer)s per CPU second, the clock's cost of every iteration included."""
    machine, found = load("h100-cxl-ndp"), {}
    for batch in (1, 16):
        tape = tape_of(2 if batch == 1 else 16)
        requests = tape.requests()
        for name, table in SYSTEMS.items():
            schedule = {"policy": "orca", "max_seqs": str(batch)}
            system: System = of_table(name, {"schedule": schedule, **table})
            best = float("inf")
            for _ in range(3):
                began = time.process_time()
                simulate(tape, requests, system, machine, fits=fits_of(machine, "bf16"))
                best = min(best, time.process_time() - began)
            rate = tape.ids.shape[0] * N_LAYERS / best / 1e6
            found[f"loop_{name}_batch_{batch}_m_token_layers_per_cpu_s"] = round(rate, 2)
            print(f"loop, {name}, batch {batch}: {rate:.2f} M token-layers/s")
    return found


if __name__ == "__main__":
    bench()
