"""Generation with a policy inside the embedded model against plain generation: 64-token prompts, 192 new tokens, CPU time.

Two policies. One for experts does all that such a policy can: Cache-Prior, DBSC with MAT42, a hard budget, a cache of 37.5 % of
the experts. One for the KV cache is AERP with 64 tokens per head. Plain and closed-loop runs take turns, so that a busy machine
slows them alike, and the fastest of each counts. All make exactly the same number of tokens.
"""

from __future__ import annotations

import json
import time

import torch

from tokentape.capture import models
from tokentape.capture.checkpoint import EMBEDDED
from tokentape.capture.embedded.texts import SHIPPED
from tokentape.capture.live.attention import KV
from tokentape.capture.live.loop import Request, Sampling, decode
from tokentape.capture.live.routers import Sliced, capacity_of
from tokentape.capture.live.slots import Inside, Slot
from tokentape.policies.kv.importance import AERP
from tokentape.policies.sliced import BUDGETS, ROUTERS, SlicedCache, SliceMoE

PROMPT_TOKENS, NEW_TOKENS, BATCHES = 64, 192, (1, 8)
CACHE_FRAC = 0.375
KV_POLICY = AERP(64, sink=4)
SYSTEM = SliceMoE(ROUTERS["cache_prior"](0.2), SlicedCache(4, 2), budget=BUDGETS["hard"](0.1))


def _requests(loaded: models.Loaded, n: int) -> list[Request]:
    ids = loaded.tokenizer(SHIPPED["code"](1)[0].prompt)["input_ids"]
    return [Request(i, tuple(ids[i * PROMPT_TOKENS : (i + 1) * PROMPT_TOKENS]), NEW_TOKENS) for i in range(n)]


def _cpu_s(loaded: models.Loaded, requests: list[Request], slots: tuple[Slot, ...]) -> float:
    """No stop ids: every run makes NEW_TOKENS tokens per request."""
    started = time.process_time()
    with Inside(loaded.model, *slots) as inside:
        decode(loaded.model, requests, Sampling(), frozenset(), 0, inside)
    return time.process_time() - started


def measure(model: str = EMBEDDED, repeats: int = 5) -> dict[str, float]:
    """Closed-loop speed as a share of plain speed, and closed-loop tokens per CPU second, for each batch size."""
    loaded, report = models.load(models.find(model), device="cpu"), {}
    with models.suitable_threads(loaded.model):
        for batch in BATCHES:
            requests = _requests(loaded, batch)
            loop = Sliced(loaded.model, SYSTEM, capacity_of(loaded.model, SYSTEM.cache, CACHE_FRAC))
            evicting = KV(loaded.model, KV_POLICY)
            plain_s = looped_s = evicting_s = float("inf")
            for turn in range(repeats + 1):
                plain, looped, evicted = (_cpu_s(loaded, requests, each) for each in ((), (loop,), (evicting,)))
                if turn:  # the first warms up
                    plain_s, looped_s, evicting_s = min(plain_s, plain), min(looped_s, looped), min(evicting_s, evicted)
            report[f"closed_loop_speed_frac_batch_{batch}"] = plain_s / looped_s
            report[f"closed_loop_tokens_per_cpu_s_batch_{batch}"] = batch * NEW_TOKENS / looped_s
            report[f"kv_closed_loop_speed_frac_batch_{batch}"] = plain_s / evicting_s
            report[f"kv_closed_loop_tokens_per_cpu_s_batch_{batch}"] = batch * NEW_TOKENS / evicting_s
    return report


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({name: round(value, 4) for name, value in measure().items()}))
