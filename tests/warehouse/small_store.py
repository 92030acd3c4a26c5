"""One tape whose summaries can be counted on fingers, and results of replays with round numbers."""

import json
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from tokentape.capture.importers.rows import RoutedRows, no_widths, tables_of
from tokentape.warehouse import seals
from tokentape.warehouse.at_rest import at_rest
from tokentape.warehouse.sums import sums_of
from tokentape.warehouse.tables import TABLES, schema
from tokentape.warehouse.tape import Store

TRACE = "hand-made"
GEOMETRY = no_widths("tiny", 2, moe_layers=(1,), n_experts=4, top_k=2)
# Experts of layer 1 per position: three prompt tokens, two decoded ones. Overlaps with the token before: 1, 1 and then 2, 0 of 2.
IDS = [[0, 1], [1, 2], [3, 1], [1, 3], [0, 2]]


def hand_made() -> dict[str, pa.Table]:
    n = np.arange(len(IDS))
    rows = RoutedRows(n * 0, n, n * 0 + 1, np.maximum(n - 2, 0), n > 2, np.array(IDS), np.tile([0.6, 0.4], (n.size, 1)))
    return tables_of(rows, "hand", {}, {})


def write_tape(
    store: Store,
    trace_id: str = TRACE,
    change: Callable[[dict[str, pa.Table]], None] = lambda tables: None,
    tables: dict[str, pa.Table] | None = None,
    n_shards: int = 1,
    **fields: object,
) -> None:
    """The hand-made tape, finished, or one of `tables`; `change` is done to them first, `fields` are others of its manifest."""
    tables = tables or hand_made()
    change(tables)
    writer = store.writer(trace_id)
    writer.write_shard(0, tables)
    made = {"origin": "captured", "source": "hand", "model_id": "tiny", "dataset": "hand", "geometry": GEOMETRY}
    writer.finish(tables, n_shards, **{**made, "created_utc": "2026-01-01T00:00:00+00:00", **fields})


def summed_anew(store: Store, trace_id: str = TRACE) -> None:
    """The manifest names the shards as they lie: what a writer that went wrong leaves."""
    tape = store.open(trace_id)
    sums = {table: [sums_of(store.fs, path).file for path in tape.shard_paths(table)] for table in tape.manifest.tables}
    fields = tape.manifest.model_dump(mode="json") | {"sha256": sums, "seal": seals.PLACE}
    store.write_bytes(tape.path, seals.sealed(json.dumps(fields).encode()))


def result_tables(
    key: str, policy: str, capacity: int, hit: float, step_s: float, energy_j: float, **replay: object
) -> dict[str, pa.Table]:
    rules = {"scope": "global", "lookup": "atomic", "recency": "list-order", "prefill": "layer-major", "start": "persistent"}
    rules |= {"overflow": "evict", "fetching": "blocking", "expert_format": "int4", "policy_params": "{}", "origin": "captured"}
    size = {"capacity_bytes": capacity * 100, "capacity_experts": capacity, "capacity_frac": capacity / 4, "cycle_experts": 2}
    of = {"replay_id": key, "trace_id": TRACE, "study": "test", "policy": policy, "is_bound": policy == "belady"}
    of |= {"hardware": "phone", "hardware_sha256": "ab", "assumed": "engine.efficiency_frac"}
    curve = [{"capacity_experts": n, "n_lookups": 10, "n_hits": hits, "hit_frac": hits / 10} for n, hits in ((1, 0), (2, 4))]
    metrics = {"hit_frac": hit, "decode_step_s": step_s, "decode_energy_j_per_token": energy_j, "n_lookups": 10.0}
    steps = [
        {"kind": "prefill", "n_tokens": 3, "step_s": 1.0, "energy_j": 1.0, "n_lookups": 6, "n_hits": 2},
        {"kind": "decode", "n_tokens": 1, "step_s": step_s, "energy_j": energy_j, "n_lookups": 2, "n_hits": 1},
    ]
    return {
        **at_rest("replays", [row("replays", **of, **rules, **size) | replay]),
        **at_rest("lru_curves", [{"replay_id": key} | point for point in curve]),
        "metrics": stored("metrics", [{"run_id": key, "metric": name, "value": value} for name, value in metrics.items()]),
        "steps": stored("steps", [{"run_id": key, "pass_id": i, "start_s": i} | step for i, step in enumerate(steps)]),
        "request_metrics": stored(
            "request_metrics",
            [{"run_id": key, "request_id": 0, "ttft_s": 1.0, "tbt_mean_s": step_s, "request_energy_j": 2.0}],
        ),
    }


def row(name: str, **given: object) -> dict[str, object]:
    """A row of a table: what it may leave empty is, of all else what is not given is 0, false or no text."""
    table, none = TABLES[name], {pa.string(): "", pa.bool_(): False}
    needed = (column for column in table.columns if column not in table.nullable)
    return {column: none.get(table.column(column).type, 0) for column in needed} | given


def stored(name: str, rows: list[dict[str, object]]) -> pa.Table:
    return pa.Table.from_pylist([row(name, **given) for given in rows], schema(name))
