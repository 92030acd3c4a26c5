"""A small made-up tape with scores: two requests, each a prompt and its decode, of a model with 3 MoE layers of 4."""

import numpy as np
import polars as pl
import tapes
from sliced_scores import made_up_scores

from tokentape.replay.trace import trace_from_tables

GEOMETRY = tapes.GEOMETRY.model_copy(update={"n_experts": 16, "top_k": 4})


def sliced_tables(seed=0, n_requests=2, n_prompt=8, n_decode=25, geometry=GEOMETRY, bias=0.5):
    """Polars `routing` (with gate weights), `scores` and `passes`; softmax rule, raw logits."""
    n_layers, n_experts, n_tokens = len(geometry.moe_layers), geometry.n_experts, n_prompt + n_decode
    _, logits, gates = made_up_scores(seed, n_requests * n_tokens, n_layers, n_experts, bias)
    routing, scores, passes = [], [], []
    for request in range(n_requests):
        for first in (0, *range(n_prompt, n_prompt + n_decode)):
            positions = range(n_prompt) if first == 0 else [first]
            kind = "decode" if first else "prefill"
            passes.append({"pass_id": len(passes), "kind": kind, "n_tokens": len(positions), "request_ids": [request]})
            for i, layer in enumerate(geometry.moe_layers):
                for position in positions:
                    row = (request * n_tokens + position) * n_layers + i
                    ids = np.argsort(-logits[row], kind="stable")[: geometry.top_k]
                    key = {"request_id": request, "position": position, "layer": layer}
                    chosen = {"expert_ids": ids.tolist(), "gate_weights": gates[row, ids].tolist()}
                    routing.append({**key, "pass_id": len(passes) - 1, **chosen})
                    scores.append({**key, "scores": logits[row].tolist()})
    return pl.DataFrame(routing), pl.DataFrame(scores), pl.DataFrame(passes)


def sliced_trace(**sizes):
    """The trace of the above, and its score table."""
    routing, scores, passes = sliced_tables(**sizes)
    geometry = sizes.get("geometry", GEOMETRY)
    return trace_from_tables("test", geometry, "synthetic", routing, passes), scores, routing
