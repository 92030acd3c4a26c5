"""Importing routed rows: CPU seconds for 2,000 requests of a million rows, checks, tables and Parquet included.

And a server's responses, 400 of a million rows, beside the least that reads them and writes their rows, unchecked: the peer.
"""

from __future__ import annotations

import base64
import io
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from tokentape.capture.importers.rows import RoutedRows, Source, no_widths, write_import
from tokentape.capture.importers.vllm import import_vllm
from tokentape.warehouse.tape import PARQUET, Store

N_REQUESTS, N_PROMPT, N_DECODED, N_LAYERS, TOP_K, N_EXPERTS = 2000, 14, 6, 25, 8, 128
N_RESPONSES, N_TOKENS = 400, 100
CONFIG = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_hidden_layers": N_LAYERS,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_experts": N_EXPERTS,
    "num_experts_per_tok": TOP_K,
    "moe_intermediate_size": 256,
    "intermediate_size": 1024,
    "vocab_size": 32000,
}


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


def write_responses(path: Path) -> None:
    """Responses as vLLM sends them: a .npy of u8 [tokens, layers, top-k] in base64, with the token ids."""
    rng = np.random.default_rng(0)
    strip = N_EXPERTS // TOP_K
    with path.open("w") as file:
        for _ in range(N_RESPONSES):
            ids = rng.integers(0, strip, (N_TOKENS, N_LAYERS, TOP_K)) + np.arange(TOP_K) * strip
            np.save(stream := io.BytesIO(), ids.astype(np.uint8))
            tokens = rng.integers(0, 32000, N_TOKENS + 1).tolist()
            choice = {"token_ids": tokens[40:], "routed_experts": base64.b64encode(stream.getvalue()).decode()}
            file.write(json.dumps({"prompt_token_ids": tokens[:40], "choices": [choice]}) + "\n")


def unchecked(path: Path, written: Path) -> None:
    """Rows as they stand in the responses, token by token: the peer."""
    with path.open() as file:
        coded = [json.loads(line)["choices"][0]["routed_experts"] for line in file]
    ids = np.concatenate([np.load(io.BytesIO(base64.b64decode(one))) for one in coded]).astype(np.uint16)
    n = ids.size // TOP_K
    row = np.arange(n, dtype=np.uint32)
    columns = {
        "request_id": row // (N_TOKENS * N_LAYERS),
        "position": row // N_LAYERS % N_TOKENS,
        "layer": row % N_LAYERS,
        "expert_ids": pa.ListArray.from_arrays(np.arange(0, ids.size + 1, TOP_K, dtype=np.int32), ids.ravel()),
    }
    pq.write_table(pa.table(columns), written, **PARQUET)


def of_responses() -> float:
    """CPU seconds of the import of a server's responses, over those of the peer."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path, config, written = (folder / one for one in ("responses.jsonl", "config.json", "peer.parquet"))
        write_responses(path)
        config.write_text(json.dumps(CONFIG))
        ours_s, peer_s = [], []
        for number in range(3):
            store, started = Store(str(folder / str(number))), time.process_time()
            trace_id = import_vllm(path, config, store)
            imported = time.process_time()
            unchecked(path, written)
            ours_s.append(imported - started)
            peer_s.append(time.process_time() - imported)
        ours = store.open(trace_id).read("routing").sort("request_id", "position", "layer")
        same = pl.read_parquet(written)
        assert ours["expert_ids"].equals(same["expert_ids"]), "the peer wrote other rows"
    ratio = min(ours_s) / min(peer_s)
    print(f"import of {N_RESPONSES} responses of vLLM {min(ours_s):.2f} s, unchecked {min(peer_s):.2f} s, ratio {ratio:.2f}")
    return ratio


def bench() -> dict[str, float]:
    rows = routed(N_REQUESTS)
    geometry = no_widths("bench", N_LAYERS, moe_layers=tuple(range(N_LAYERS)), n_experts=N_EXPERTS, top_k=TOP_K)
    with tempfile.TemporaryDirectory() as folder:
        started = time.process_time()
        write_import(Store(folder), Source(Path("bench.npz"), (b"",), "bench", geometry, None, {}), rows)
        rate = len(rows) / (time.process_time() - started)
    print(f"import {rate / 1e6:.2f} M routed rows/s, of {N_REQUESTS} requests")
    return {"import_rows_per_cpu_s": round(rate), "import_vllm_ratio_vs_unchecked": round(of_responses(), 2)}
