"""Generated files for every importer: a good one, spoiled, and a plain second reading to compare what was accepted with.

A `Kind` makes a file from a generator, imports it, and says what a tape of it must hold. The readings share nothing with the
importers: csv, json and numpy.load, and numbers as Python reads them.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from importer_requests import (
    Rows,
    acceptance_rounds,
    acceptance_text,
    azure_text,
    csv_requests,
    found_requests,
    found_rounds,
    mooncake_requests,
    mooncake_text,
    seconds_text,
    vllm_requests,
    vllm_text,
)
from importer_routings import (
    bigmoe_routing,
    csv_table,
    found_routing,
    jsonl_table,
    npz_bytes,
    npz_routing,
    parquet_table,
    server_bytes,
    server_routing,
    table_csv,
    table_jsonl,
    table_parquet,
)
from importer_spoiling import spoiled_bytes, spoiled_text

from tokentape.capture.importers.acceptance import import_acceptance
from tokentape.capture.importers.bigmoe import import_bigmoe
from tokentape.capture.importers.request_traces import import_azure, import_mooncake, import_request_csv, import_vllm_log
from tokentape.capture.importers.routing_columns import Columns, Layout
from tokentape.capture.importers.routing_table import import_routing
from tokentape.capture.importers.vllm import import_vllm
from tokentape.warehouse.tape import Store, Tape

MAX_BYTES = 1 << 20
TINY = Path(__file__).resolve().parents[1] / "data" / "tiny.route.csv"
CONFIG = {
    "model_type": "qwen3_moe",
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 1000,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 32,
    "mlp_only_layers": [0],
}


@dataclass(frozen=True)
class Kind:
    """name of the file, its bytes from a generator, how it is imported, what its tape must hold, and what the tape holds."""

    file: str
    make: Callable[[random.Random], bytes]
    run: Callable[[Path, Store], str]
    expected: Callable[[bytes], Rows]
    found: Callable[[Tape], Rows]


def maybe_packed(kind: Kind, name: str) -> Kind:
    """The same files as .gz, sometimes damaged in the packing."""

    def make(rng: random.Random) -> bytes:
        packed = gzip.compress(kind.make(rng), mtime=0)
        return spoiled_bytes(packed, rng) if rng.random() < 0.3 else packed

    return Kind(name, make, kind.run, lambda raw: kind.expected(gzip.decompress(raw)), kind.found)


def config_of(path: Path) -> Path:
    config = path.with_name("config.json")
    config.write_text(json.dumps(CONFIG))
    return config


def run_routing(path: Path, store: Store) -> str:
    return import_routing([path], store, Layout(Columns(phase="decode")), config_of(path), max_bytes=MAX_BYTES)


def text_kind(file: str, make: Callable[[random.Random], str], *rest: Any) -> Kind:
    return Kind(file, lambda rng: spoiled_text(make(rng), rng), *rest)


def run_csv(path: Path, store: Store) -> str:
    return import_request_csv(path, store, "TIMESTAMP", "ContextTokens", "GeneratedTokens", max_bytes=MAX_BYTES)


MOONCAKE = text_kind(
    "trace.jsonl", mooncake_text, lambda path, store: import_mooncake(path, store, MAX_BYTES), mooncake_requests, found_requests
)
KINDS = {
    "azure": text_kind(
        "azure.csv", azure_text, lambda path, store: import_azure(path, store, MAX_BYTES), csv_requests, found_requests
    ),
    "csv": text_kind("requests.csv", seconds_text, run_csv, csv_requests, found_requests),
    "mooncake": MOONCAKE,
    "mooncake packed": maybe_packed(MOONCAKE, "trace.jsonl.gz"),
    "vllm": text_kind(
        "requests.jsonl", vllm_text, lambda path, store: import_vllm_log(path, store, MAX_BYTES), vllm_requests, found_requests
    ),
    "acceptance": text_kind(
        "responses.jsonl",
        acceptance_text,
        lambda path, store: import_acceptance(path, store, MAX_BYTES),
        acceptance_rounds,
        found_rounds,
    ),
    "bigmoe": text_kind(
        "tiny.csv",
        lambda rng: TINY.read_text(),
        lambda path, store: import_bigmoe(path, store, MAX_BYTES),
        bigmoe_routing,
        found_routing,
    ),
    "vllm npz": Kind(
        "one.npz", npz_bytes, lambda path, store: import_vllm(path, config_of(path), store, MAX_BYTES), npz_routing, found_routing
    ),
    "vllm server": Kind(
        "all.jsonl",
        server_bytes,
        lambda path, store: import_vllm(path, config_of(path), store, MAX_BYTES),
        server_routing,
        found_routing,
    ),
    "routing csv": text_kind("table.csv", table_csv, run_routing, csv_table, found_routing),
    "routing jsonl": text_kind("table.jsonl", table_jsonl, run_routing, jsonl_table, found_routing),
    "routing parquet": Kind("table.parquet", table_parquet, run_routing, parquet_table, found_routing),
}
