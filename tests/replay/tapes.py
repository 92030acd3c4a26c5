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


def tables_of(passes, told, geometry=GEOMETRY):
    """Polars `routing` and `passes` of (kind, [(request, position), ...]) each; told: what a row has, by request, position
    and layer, beside its keys."""
    routing, rows = [], []
    for pass_id, (kind, tokens) in enumerate(passes):
        requests = list(dict.fromkeys(request for request, _ in tokens))
        rows.append({"pass_id": pass_id, "kind": kind, "n_tokens": len(tokens), "request_ids": requests})
        for layer in geometry.moe_layers:
            for request, position in tokens:
                keys = {"request_id": request, "position": position, "layer": layer, "pass_id": pass_id}
                routing.append(keys | told(request, position, layer))
    return pl.DataFrame(routing), pl.DataFrame(rows)


def one_by_one(n_requests, n_prompt, n_decode):
    """Passes of requests that run back to back: one of prefill, then one per token."""
    for request in range(n_requests):
        if n_prompt:
            yield "prefill", [(request, position) for position in range(n_prompt)]
        yield from (("decode", [(request, n_prompt + step)]) for step in range(n_decode))


@cache
def make_tables(seed=0, n_requests=3, n_prompt=10, n_decode=20, geometry=GEOMETRY):
    rng = np.random.default_rng(seed)
    weights = 1.0 / np.arange(1, geometry.n_experts + 1)
    favourites = {layer: rng.permutation(geometry.n_experts) for layer in geometry.moe_layers}

    def chosen(request, position, layer):
        picks = rng.choice(geometry.n_experts, geometry.top_k, replace=False, p=weights / weights.sum())
        return {"expert_ids": favourites[layer][picks].tolist()}

    return tables_of(one_by_one(n_requests, n_prompt, n_decode), chosen, geometry)


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
