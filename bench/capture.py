"""What capture costs on the embedded model: 256-token prompts, 128 new tokens, one request at a time, CPU time.

Variants run interleaved, so that a busy machine slows them alike, and the fastest of the repeats counts. Routing and scores are
compared with transformers' own greedy `generate` and with the same decode loop without hooks; attention column mass with the same
loop under eager attention. A captured run includes making the Arrow tables, not writing them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import torch

from tokentape.capture import models
from tokentape.capture.attention import AttentionCapture
from tokentape.capture.checkpoint import EMBEDDED
from tokentape.capture.embedded.texts import SHIPPED
from tokentape.capture.live.loop import Request, Sampling, decode
from tokentape.capture.routing import RoutingCapture
from tokentape.capture.shard import AttentionKeep, ShardRecorder

PROMPT_TOKENS, NEW_TOKENS, N_PROMPTS = 256, 128, 1
GREEDY = Sampling()


def _requests(loaded: models.Loaded) -> list[Request]:
    texts = [item.prompt for item in SHIPPED["code"](N_PROMPTS)]
    ids = [tuple(loaded.tokenizer(text)["input_ids"][:PROMPT_TOKENS]) for text in texts]
    return [Request(i, prompt, NEW_TOKENS) for i, prompt in enumerate(ids)]


def _generate(loaded: models.Loaded, requests: list[Request]) -> None:
    for request in requests:
        ids = torch.tensor([request.prompt_ids])
        mask = torch.ones_like(ids)
        loaded.model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS)


def _loop(loaded: models.Loaded, requests: list[Request], recorder: ShardRecorder | None, with_nll: bool = False) -> None:
    """No stop ids: every variant makes exactly NEW_TOKENS tokens."""
    outcomes = []
    for request in requests:
        sinks = {"before_pass": recorder.before, "on_pass": recorder.record} if recorder else {}
        outcomes += decode(loaded.model, [request], GREEDY, frozenset(), 0, **sinks, with_nll=with_nll)
    if recorder:
        wanted = ["requests", "passes", *(["tokens"] if with_nll else [])]
        wanted += ["routing", "scores"] if recorder.routing else ["attention"]
        recorder.tables(requests, outcomes, "code", wanted)


def _routing(loaded: models.Loaded, requests: list[Request], with_nll: bool) -> None:
    with RoutingCapture(loaded.model) as routing:
        _loop(loaded, requests, ShardRecorder(routing, None, AttentionKeep(), 0), with_nll)


def _attention(loaded: models.Loaded, requests: list[Request]) -> None:
    with AttentionCapture(loaded.model) as attention:
        _loop(loaded, requests, ShardRecorder(None, attention, AttentionKeep(), 0))


def _eager(loaded: models.Loaded, requests: list[Request]) -> None:
    former = loaded.model.config._attn_implementation
    loaded.model.set_attn_implementation("eager")
    try:
        _loop(loaded, requests, None)
    finally:
        loaded.model.set_attn_implementation(former)


def _best_cpu_s(variants: dict[str, Callable[[], None]], repeats: int) -> dict[str, float]:
    best = dict.fromkeys(variants, float("inf"))
    for run in variants.values():
        run()  # warm up
    for _ in range(repeats):
        for name, run in variants.items():
            started = time.process_time()
            run()
            best[name] = min(best[name], time.process_time() - started)
    return best


def measure(model: str = EMBEDDED, repeats: int = 15) -> dict[str, float]:
    """Overheads as shares of the plain run: capture_routing_overhead_frac against `generate`, its `_same_loop_` twin against the
    same loop without hooks, `_with_tokens_` with the tokens table's nll as well, and capture_attention_overhead_frac."""
    torch.set_num_threads(1)
    loaded = models.load(models.find(model), device="cpu")
    requests = _requests(loaded)
    cpu_s = _best_cpu_s(
        {
            "generate": lambda: _generate(loaded, requests),
            "loop": lambda: _loop(loaded, requests, None),
            "routing": lambda: _routing(loaded, requests, with_nll=False),
            "routing_tokens": lambda: _routing(loaded, requests, with_nll=True),
            "eager": lambda: _eager(loaded, requests),
            "attention": lambda: _attention(loaded, requests),
        },
        repeats,
    )
    new = N_PROMPTS * NEW_TOKENS
    return {
        "capture_routing_overhead_frac": cpu_s["routing"] / cpu_s["generate"] - 1,
        "capture_routing_same_loop_overhead_frac": cpu_s["routing"] / cpu_s["loop"] - 1,
        "capture_routing_with_tokens_overhead_frac": cpu_s["routing_tokens"] / cpu_s["generate"] - 1,
        "capture_attention_overhead_frac": cpu_s["attention"] / cpu_s["eager"] - 1,
        "generate_tokens_per_cpu_s": new / cpu_s["generate"],
        "capture_tokens_per_cpu_s": new / cpu_s["routing_tokens"],
    }


if __name__ == "__main__":
    print(json.dumps({name: round(value, 4) for name, value in measure().items()}))
