"""Attention tapes for tests and benchmarks: made-up causal attention in the tape's own columns."""

import numpy as np
import polars as pl
import pyarrow as pa
from tapes import GEOMETRY

from tokentape.replay.kv.tape import AttentionTape


def softmax_rows(rng, n_layers, n_heads, c, n, sharp=2.0):
    """(prompt (L, H, c), rows (L, H, n - c, n)) f32: column sums of the prompt, then one softmax row per decoded query."""
    prompt = np.zeros((n_layers, n_heads, c), np.float32)
    rows = np.zeros((n_layers, n_heads, n - c, n), np.float32)
    taste = rng.normal(size=(n_layers, n_heads, n)) * sharp
    for t in range(n):
        logits = taste[:, :, : t + 1] + rng.normal(size=(n_layers, n_heads, t + 1))
        mass = np.exp(logits - logits.max(axis=-1, keepdims=True))
        mass /= mass.sum(axis=-1, keepdims=True)
        if t < c:
            prompt[:, :, : t + 1] += mass.astype(np.float32)
        else:
            rows[:, :, t - c, : t + 1] = mass
    return prompt, rows


def batch(request_id, positions, layers, heads, reduction, masses, keys, rests):
    """A piece of table `attention`; masses, keys: lists of arrays, keys None for all positions."""
    n = len(masses)
    column = lambda values, kind: pa.array(values, kind)  # noqa: E731
    rows = pa.RecordBatch.from_pydict(
        {
            "request_id": column([request_id] * n, pa.uint32()),
            "pass_id": column(positions, pa.uint32()),
            "position": column(positions, pa.int32()),
            "layer": column(layers, pa.uint16()),
            "kv_head": column(heads, pa.uint16()),
            "reduction": column([reduction] * n, pa.string()),
            "n_queries": column([1] * n, pa.uint32()),
            "key_positions": column(keys, pa.list_(pa.int32())),
            "mass": column(masses, pa.list_(pa.float32())),
            "rest": column(rests, pa.float32()),
        }
    )
    return pl.DataFrame(rows)


def pieces_of(prompt, rows, request_id=0, top=None, rows_per_piece=None, first=0):
    """The record batches of one request; top: keep only so many of a row's masses; first: key position of a sliding row."""
    n_layers, n_heads, c = prompt.shape
    order = [(layer, head) for layer in range(n_layers) for head in range(n_heads)]
    yield batch(
        request_id, [c - 1] * len(order), [x for x, _ in order], [h for _, h in order], "column_sum",
        [prompt[x, h] for x, h in order], [None] * len(order), [0.0] * len(order),
    )  # fmt: skip
    waiting = []
    for step in range(rows.shape[2]):
        for layer, head in order:
            mass, keys, rest = rows[layer, head, step, : c + step + 1], None, 0.0
            if top and top < mass.size:
                keys = np.sort(np.argsort(-mass, kind="stable")[:top]).astype(np.int32)
                rest, mass = float(mass.sum() - mass[keys].sum()), mass[keys]
            waiting.append((c + step, layer, head, mass, keys, rest))
        if len(waiting) >= (rows_per_piece or 1 << 30):
            yield _made(request_id, waiting[:rows_per_piece])
            waiting = waiting[rows_per_piece:]
    if waiting:
        yield _made(request_id, waiting)


def _made(request_id, waiting):
    positions, layers, heads, masses, keys, rests = map(list, zip(*waiting, strict=True))
    return batch(request_id, positions, layers, heads, "row", masses, keys, rests)


def tape_of(requests, geometry=None, top=None, rows_per_piece=None, **notes):
    """A tape of [(prompt, rows), ...], as softmax_rows gives them."""
    n_layers, n_heads, _ = requests[0][0].shape
    widths = {"n_layers": n_layers, "n_heads": n_heads, "n_kv_heads": n_heads, "moe_layers": (), "n_experts": 0, "top_k": 0}
    geometry = geometry or GEOMETRY.model_copy(update=widths)
    notes = {"keep": f"top:{top}" if top else "full", "n_kv_heads": n_heads, "query_heads_per_kv_head": 1} | notes
    return AttentionTape(
        "made-up", "synthetic", geometry, notes,
        {i: (prompt.shape[2], prompt.shape[2] + rows.shape[2]) for i, (prompt, rows) in enumerate(requests)},
        lambda: (p for i, (prompt, rows) in enumerate(requests) for p in pieces_of(prompt, rows, i, top, rows_per_piece)),
    )  # fmt: skip
