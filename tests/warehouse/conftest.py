"""A small store by hand: one tape whose summaries can be counted on fingers, and replays with round numbers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from tokentape.warehouse.at_rest import at_rest, filled
from tokentape.warehouse.geometry import Geometry
from tokentape.warehouse.results import write_replays
from tokentape.warehouse.tape import Manifest, Store

TRACE = "hand-made"
GEOMETRY = Geometry(
    architecture="tiny",
    n_layers=2,
    hidden=8,
    n_heads=2,
    n_kv_heads=1,
    head_dim=4,
    vocab=100,
    moe_layers=(1,),
    n_experts=4,
    top_k=2,
    expert_intermediate=8,
)
# Experts of layer 1 per position: three prompt tokens, two decoded ones. Overlaps with the token before: 1, 1 and then 2, 0 of 2.
IDS = [[0, 1], [1, 2], [3, 1], [1, 3], [0, 2]]


def write_tape(
    store: Store,
    trace_id: str = TRACE,
    change: Callable[[dict[str, pa.Table]], None] = lambda tables: None,
    **fields: object,
) -> None:
    """The tape, finished; `change` is done to its tables first, `fields` are others of its manifest."""
    n = len(IDS)
    passes = [0, 0, 0, 1, 2]
    tables = {
        "requests": pa.table(
            {
                "request_id": [0],
                "dataset": ["hand"],
                "arrival_s": [0.0],
                "n_prompt_tokens": [3],
                "n_output_tokens": [2],
                "prompt_sha256": pa.nulls(1, pa.string()),
            }
        ),
        "tokens": pa.table(
            {
                "request_id": [0] * n,
                "position": range(n),
                "token_id": range(n),
                "phase": ["prefill"] * 3 + ["decode"] * 2,
                "pass_id": passes,
                "nll": pa.nulls(n, pa.float32()),
            }
        ),
        "passes": pa.table(
            {
                "pass_id": [0, 1, 2],
                "kind": ["prefill", "decode", "decode"],
                "n_tokens": [3, 1, 1],
                "request_ids": [[0], [0], [0]],
                "policy_state": pa.nulls(3, pa.string()),
            }
        ),
        "routing": pa.table(
            {
                "request_id": [0] * n,
                "position": range(n),
                "layer": [1] * n,
                "pass_id": passes,
                "expert_ids": IDS,
                "gate_weights": [[0.6, 0.4]] * n,
            }
        ),
    }
    change(tables)
    writer = store.writer(trace_id)
    writer.write_shard(0, tables)
    made = {
        "trace_id": trace_id,
        "origin": "captured",
        "source": "hand",
        "model_id": "tiny",
        "dataset": "hand",
        "geometry": GEOMETRY,
        "tables": tuple(tables),
        "rows": {name: t.num_rows for name, t in tables.items()},
        "n_shards": 1,
        "created_utc": "2026-01-01T00:00:00+00:00",
    }
    writer.finish(Manifest(**{**made, **fields}))


def without_sums(store: Store, trace_id: str = TRACE) -> None:
    """Makes the tape one of an older version."""
    path = Path(store.trace_path(trace_id, "manifest.json"))
    fields = json.loads(path.read_text())
    del fields["sha256"], fields["seal"]
    path.write_text(json.dumps(fields, indent=1))


def result_tables(
    key: str, policy: str, capacity: int, hit: float, step_s: float, energy_j: float, **replay: object
) -> dict[str, pa.Table]:
    parameters: dict[str, object] = {
        "replay_id": key,
        "trace_id": TRACE,
        "study": "test",
        "policy": policy,
        "policy_params": "{}",
        "is_bound": policy == "belady",
        "hardware": "phone",
        "hardware_sha256": "ab",
        "scope": "global",
        "lookup": "atomic",
        "recency": "list-order",
        "prefill": "layer-major",
        "start": "persistent",
        "overflow": "evict",
        "fetching": "blocking",
        "expert_format": "int4",
        "capacity_bytes": capacity * 100,
        "capacity_experts": float(capacity),
        "capacity_frac": capacity / 4,
        "cycle_experts": 2,
        "seed": 0,
        "origin": "captured",
        "is_extrapolated": False,
        "outside_envelope": "",
        "assumed": "engine.efficiency_frac",
    }
    metrics = {
        "hit_frac": hit,
        "decode_step_s": step_s,
        "decode_energy_j_per_token": energy_j,
        "n_lookups": 10.0,
    }
    n = len(metrics)
    curve = {"capacity_experts": [1, 2], "n_lookups": [10, 10], "n_hits": [0, 4], "hit_frac": [0.0, 0.4]}
    points = [dict(zip(curve, point, strict=True)) for point in zip(*curve.values(), strict=True)]
    return {
        **at_rest("replays", [parameters | replay]),
        **at_rest("lru_curves", [{"replay_id": key} | point for point in points]),
        "metrics": pa.table(
            {
                "run_id": [key] * n,
                "metric": list(metrics),
                "value": list(metrics.values()),
                "low": pa.nulls(n, pa.float64()),
                "high": pa.nulls(n, pa.float64()),
                "denominator": pa.array(["unique lookups", None, None, None], pa.string()),
            }
        ),
        "steps": filled(
            "steps",
            pa.table(
                {
                    "run_id": [key] * 2,
                    "pass_id": [0, 1],
                    "kind": ["prefill", "decode"],
                    "n_tokens": [3, 1],
                    "start_s": [0.0, 1.0],
                    "step_s": [1.0, step_s],
                    "energy_j": [1.0, energy_j],
                    "n_lookups": [6, 2],
                    "n_hits": [2, 1],
                    "fast_bytes": [0, 0],
                    "backing_bytes": [400, 100],
                }
            ),
        ),
        "request_metrics": filled(
            "request_metrics",
            pa.table({"run_id": [key], "request_id": [0], "ttft_s": [1.0], "tbt_mean_s": [step_s], "request_energy_j": [2.0]}),
        ),
    }


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


@pytest.fixture
def add_tape() -> Callable[..., None]:
    return write_tape


@pytest.fixture
def make_older() -> Callable[..., None]:
    return without_sums


@pytest.fixture
def make_result() -> Callable[..., dict[str, pa.Table]]:
    return result_tables


@pytest.fixture(scope="session")
def small_template(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """One tape; LRU, LFU, random and Belady at two capacities. At 2 experts LFU beats random in both time and energy."""
    store = Store(str(tmp_path_factory.mktemp("template") / "store"))
    write_tape(store)
    cells = [
        ("lru", 1, 0.0, 4.0, 4.0),
        ("belady", 1, 0.5, 2.0, 2.0),
        ("lru", 2, 0.2, 3.0, 2.0),
        ("lfu", 2, 0.4, 2.0, 3.0),
        ("random", 2, 0.1, 3.5, 3.5),
        ("belady", 2, 0.6, 1.0, 1.0),
    ]
    for i, cell in enumerate(cells):
        write_replays(store, result_tables(f"r{i}", *cell))
    return store


@pytest.fixture
def small(small_template: Store, store: Store) -> Store:
    """A copy that a test may change."""
    shutil.copytree(small_template.root, store.root)
    return store
