"""Small traces for tests, made from a seed: the arrays a tape would give."""

import tracemalloc
from dataclasses import replace
from functools import cache

import numpy as np
import polars as pl

from tokentape.replay.trace import Trace, trace_from_tables
from tokentape.warehouse.geometry import Geometry

GEOMETRY = Geometry(
    architecture="test",
    n_layers=4,
    hidden=64,
    n_heads=4,
    n_kv_heads=2,
    head_dim=16,
    vocab=100,
    moe_layers=(1, 2, 3),
    n_experts=8,
    top_k=2,
    expert_intermediate=32,
    dense_intermediate=128,
)


@cache
def make_tables(seed=0, n_requests=3, n_prompt=10, n_decode=20, geometry=GEOMETRY):
    """Polars `routing` and `passes` of requests run back to back: one prefill pass, then one pass per token."""
    rng = np.random.default_rng(seed)
    weights = 1.0 / np.arange(1, geometry.n_experts + 1)
    favourites = {layer: rng.permutation(geometry.n_experts) for layer in geometry.moe_layers}
    routing, passes = [], []
    for request in range(n_requests):
        for step in range(n_decode + 1):
            positions = range(n_prompt) if step == 0 else [n_prompt + step - 1]
            kind = "prefill" if step == 0 else "decode"
            passes.append({"pass_id": len(passes), "kind": kind, "n_tokens": len(positions), "request_ids": [request]})
            for layer in geometry.moe_layers:
                for position in positions:
                    picks = rng.choice(geometry.n_experts, geometry.top_k, replace=False, p=weights / weights.sum())
                    routing.append(
                        {
                            "request_id": request,
                            "position": position,
                            "layer": layer,
                            "pass_id": len(passes) - 1,
                            "expert_ids": favourites[layer][picks].tolist(),
                        }
                    )
    return pl.DataFrame(routing), pl.DataFrame(passes)


def make_trace(seed=0, geometry=GEOMETRY, **sizes) -> Trace:
    routing, passes = make_tables(seed, geometry=geometry, **sizes)
    trace = trace_from_tables("test", geometry, "synthetic", routing, passes)
    return replace(trace, told={"gate": (np.arange(trace.ids.size) * 7 % 11 + 1).astype(np.float32)})


def long_prompt(n: int) -> tuple[Trace, np.ndarray]:
    """One prompt of n rows, each of which chooses every expert of its layer, and (n, E) which comes when."""
    row = np.arange(n, dtype=np.int32)
    ids = np.random.default_rng(0).permuted(np.tile(np.arange(GEOMETRY.n_experts, dtype=np.int32), (n, 1)), axis=1)
    layer, position = row % len(GEOMETRY.moe_layers), row // len(GEOMETRY.moe_layers)
    of_rows = {"row_pass": 0 * row, "row_layer": layer, "row_request": 0 * row, "row_position": position, "ids": ids.ravel()}
    return replace(make_trace(0, n_requests=1, n_decode=0), offsets=ids.shape[1] * np.arange(n + 1), **of_rows), ids


def peak_of(call):
    """What the call returns, and the most bytes of Python and numpy that were held at once while it ran."""
    tracemalloc.start()
    found, peak = call(), tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return found, peak
