"""A small made-up tape with scores: two requests, each a prompt and its decode, of a model with 3 MoE layers of 4."""

import numpy as np
import tapes
from sliced_scores import made_up_scores

from tokentape.replay.trace import trace_from_tables

GEOMETRY = tapes.GEOMETRY.model_copy(update={"n_experts": 16, "top_k": 4})


def sliced_tables(seed=0, n_requests=2, n_prompt=8, n_decode=25, geometry=GEOMETRY, bias=0.5):
    """Polars `routing` (with gate weights), `scores` and `passes`; softmax rule, raw logits."""
    n_layers, n_tokens = len(geometry.moe_layers), n_prompt + n_decode
    _, logits, gates = made_up_scores(seed, n_requests * n_tokens, n_layers, geometry.n_experts, bias)

    def told(request, position, layer):
        row = (request * n_tokens + position) * n_layers + geometry.moe_layers.index(layer)
        ids = np.argsort(-logits[row], kind="stable")[: geometry.top_k]
        return {"expert_ids": ids.tolist(), "gate_weights": gates[row, ids].tolist(), "scores": logits[row].tolist()}

    routing, passes = tapes.tables_of(tapes.one_by_one(n_requests, n_prompt, n_decode), told, geometry)
    return routing.drop("scores"), routing.select("request_id", "position", "layer", "scores"), passes


def sliced_trace(**sizes):
    """The trace of the above, and its score table."""
    routing, scores, passes = sliced_tables(**sizes)
    geometry = sizes.get("geometry", GEOMETRY)
    return trace_from_tables("test", geometry, "synthetic", routing, passes), scores, routing
