"""Importing routed rows: CPU seconds for 2,000 requests of a million rows, checks, tables and Parquet included."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

from tokentape.capture.importers.rows import RoutedRows, Source, write_import
from tokentape.warehouse.geometry import Geometry
from tokentape.warehouse.tape import Store

N_REQUESTS, N_PROMPT, N_DECODED, N_LAYERS, TOP_K, N_EXPERTS = 2000, 14, 6, 25, 8, 128


def routed(n_requests: int) -> RoutedRows:
    """Requests one after another, each prefill layer by layer, then a pass per token."""
    rng = np.random.default_rng(0)
    step = np.repeat(np.arange(N_DECODED), N_LAYERS)
    position = np.concatenate((np.tile(np.arange(N_PROMPT), N_LAYERS), N_PROMPT + step))
    layer = np.concatenate((np.repeat(np.arange(N_LAYERS), N_PROMPT), np.tile(np.arange(N_LAYERS), N_DECODED)))
    of_request = np.concatenate((np.zeros(N_PROMPT * N_LAYERS, np.int64), 1 + step))
    n, strip = len(position), N_EXPERTS // TOP_K
    return RoutedRows(
        request_id=np.repeat(np.arange(n_requests), n),
        position=np.tile(position, n_requests),
        layer=np.tile(layer, n_requests),
        pass_id=(np.arange(n_requests)[:, None] * (N_DECODED + 1) + of_request).ravel(),
        is_decode=np.tile(of_request > 0, n_requests),
        expert_ids=rng.integers(0, strip, (n * n_requests, TOP_K)) + np.arange(TOP_K) * strip,
    )


def bench() -> dict[str, float]:
    rows = routed(N_REQUESTS)
    geometry = Geometry(
        architecture="bench",
        n_layers=N_LAYERS,
        hidden=0,
        n_heads=0,
        n_kv_heads=0,
        head_dim=0,
        vocab=0,
        moe_layers=tuple(range(N_LAYERS)),
        n_experts=N_EXPERTS,
        top_k=TOP_K,
    )
    with tempfile.TemporaryDirectory() as folder:
        started = time.process_time()
        write_import(Store(folder), Source(Path("bench.npz"), (b"",), "bench", geometry, None, {}), rows)
        rate = len(rows) / (time.process_time() - started)
    print(f"import {rate / 1e6:.2f} M routed rows/s, of {N_REQUESTS} requests")
    return {"import_rows_per_cpu_s": round(rate)}
