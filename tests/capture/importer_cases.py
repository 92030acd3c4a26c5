"""Generated files for every importer: a good one, spoiled, and a plain second reading to compare what was accepted with.

A `Kind` makes a file from a generator, imports it, and says what a tape of it must hold. The readings share nothing with the
importers: csv, json and numpy.load, and numbers as Python reads them.
"""

import gzip
import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import importer_requests as requests
import importer_routings as routings
import pytest
from importer_requests import Rows
from importer_spoiling import spoiled_bytes, spoiled_text

from tokentape.capture.importers.acceptance import import_acceptance
from tokentape.capture.importers.bigmoe import import_bigmoe
from tokentape.capture.importers.limits import BadImport
from tokentape.capture.importers.request_traces import Form, import_requests
from tokentape.capture.importers.routing_columns import Layout
from tokentape.capture.importers.routing_table import import_routing
from tokentape.capture.importers.sglang import import_sglang
from tokentape.capture.importers.vllm import import_vllm
from tokentape.warehouse.tape import Store, Tape

MAX_BYTES = 1 << 20
TINY = Path(__file__).resolve().parents[1] / "data" / "tiny.route.csv"
CONFIG = {"model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 1000}
CONFIG |= {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 32, "mlp_only_layers": [0]}
CONFIG |= {"intermediate_size": 256}


@contextmanager
def refused(store: Store, *said: str) -> Iterator[None]:
    """The import inside is refused in one line that says so, and leaves no store."""
    with pytest.raises(BadImport) as caught:
        yield
    assert [part for part in said if part not in str(caught.value)] == []
    assert "\n" not in str(caught.value)
    assert not Path(store.root).exists()


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
    return import_routing([path], store, Layout({"phase": "decode"}), config_of(path), max_bytes=MAX_BYTES)


def run_csv(path: Path, store: Store) -> str:
    return import_requests(path, store, Form(("TIMESTAMP", "ContextTokens", "GeneratedTokens")), max_bytes=MAX_BYTES)


def of_form(form: str) -> Callable[[Path, Store], str]:
    return lambda path, store: import_requests(path, store, form, max_bytes=MAX_BYTES)


def run_vllm(path: Path, store: Store) -> str:
    return import_vllm(path, config_of(path), store, MAX_BYTES)


def run_sglang(path: Path, store: Store) -> str:
    return import_sglang([path], config_of(path), store, MAX_BYTES)


def plain(convert: Callable[[Path, Store, int], str]) -> Callable[[Path, Store], str]:
    return lambda path, store: convert(path, store, MAX_BYTES)


def text_kind(file: str, make: Callable[[random.Random], str], *rest: Any) -> Kind:
    return Kind(file, lambda rng: spoiled_text(make(rng), rng), *rest)


def served(file: str, make: Callable[[random.Random], str], run: Any, expected: Callable[[bytes], Rows]) -> Kind:
    return text_kind(file, make, run, expected, requests.found_requests)


def tiny(rng: random.Random) -> str:
    return TINY.read_text()


MOONCAKE = served("trace.jsonl", requests.mooncake_text, of_form("mooncake"), requests.mooncake_requests)
ROUNDS = (plain(import_acceptance), requests.acceptance_rounds, requests.found_rounds)
FOUND = routings.found_routing
KINDS = {
    "azure": served("azure.csv", requests.azure_text, of_form("azure"), requests.csv_requests),
    "csv": served("requests.csv", requests.seconds_text, run_csv, requests.csv_requests),
    "mooncake": MOONCAKE,
    "mooncake packed": maybe_packed(MOONCAKE, "trace.jsonl.gz"),
    "vllm": served("requests.jsonl", requests.vllm_text, of_form("vllm"), requests.vllm_requests),
    "acceptance": text_kind("responses.jsonl", requests.acceptance_text, *ROUNDS),
    "bigmoe": text_kind("tiny.csv", tiny, plain(import_bigmoe), routings.bigmoe_routing, FOUND),
    "vllm npz": Kind("one.npz", routings.npz_bytes, run_vllm, routings.npz_routing, FOUND),
    "vllm server": Kind("all.jsonl", routings.server_bytes, run_vllm, routings.server_routing, FOUND),
    "sglang server": Kind("all.jsonl", routings.sglang_bytes, run_sglang, routings.sglang_routing, FOUND),
    "routing csv": text_kind("table.csv", routings.table_csv, run_routing, routings.csv_table, FOUND),
    "routing jsonl": text_kind("table.jsonl", routings.table_jsonl, run_routing, routings.jsonl_table, FOUND),
    "routing parquet": Kind("table.parquet", routings.table_parquet, run_routing, routings.parquet_table, FOUND),
}
