"""A small made-up tape with scores: two requests, each a prompt and its decode, of a model with 3 MoE layers of 4."""

import numpy as np
import polars as pl
import tapes

from tokentape.replay.trace import trace_from_tables

GEOMETRY = tapes.GEOMETRY.model_copy(update={"n_experts": 16, "top_k": 4})


def sliced_tables(seed=0, n_requests=2, n_prompt=8, n_decode=25, geometry=GEOMETRY, bias=0.5):
    """Polars `routing` (with gate weights), `scores` and `passes`; softmax rule, raw logits."""
    rng = np.random.default_rng(seed)
    n_layers, n_experts = len(geometry.moe_layers), geometry.n_experts
    taste, drift = bias * rng.standard_t(4, (n_layers, n_experts)), rng.normal(size=(n_layers, n_experts))
    routing, scores, passes = [], [], []
    for request in range(n_requests):
        logits = np.empty((n_prompt + n_decode, n_layers, n_experts), np.float32)
        for token in logits:
            token[:] = 1.5 * (taste + 0.5 * drift + rng.normal(size=taste.shape))
            drift = 0.6 * drift + 0.8 * rng.normal(size=taste.shape)
        for first in (0, *range(n_prompt, n_prompt + n_decode)):
            positions = range(n_prompt) if first == 0 else [first]
            kind = "decode" if first else "prefill"
            passes.append({"pass_id": len(passes), "kind": kind, "n_tokens": len(positions), "request_ids": [request]})
            for i, layer in enumerate(geometry.moe_layers):
                for position in positions:
                    row = logits[position, i]
                    gates = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
                    ids = np.argsort(-row, kind="stable")[: geometry.top_k]
                    key = {"request_id": request, "position": position, "layer": layer}
                    routing.append(
                        {**key, "pass_id": len(passes) - 1, "expert_ids": ids.tolist(), "gate_weights": gates[ids].tolist()}
                    )
                    scores.append({**key, "scores": row.tolist()})
    return pl.DataFrame(routing), pl.DataFrame(scores), pl.DataFrame(passes)


def sliced_trace(**sizes):
    """The trace of the above, and its score table."""
    routing, scores, passes = sliced_tables(**sizes)
    geometry = sizes.get("geometry", GEOMETRY)
    return trace_from_tables("test", geometry, "synthetic", routing, passes), scores, routing
