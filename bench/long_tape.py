"""What a tape weighs by token and layer; a replay of a long one from Parquet in its own process: CPU seconds and memory."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench.replay import in_new_process
from tokentape.capture.importers.rows import RoutedRows, tables_of
from tokentape.capture.rows import rows_of
from tokentape.policies.compact import compacted
from tokentape.warehouse import models
from tokentape.warehouse.tape import Store, Tape

MODEL, N_SHARDS, N_TOKENS = "qwen3-30b-a3b", 16, 16_384  # of each shard, one request: 100 M lookups
REPLAY = """
import json, sys, time
from bench.memory import peak_bytes
from tokentape.flows.cli import main
how = "--policy lru --capacity 25% --scope global --hardware gh200 --quiet"
sys.argv = ["tokentape", "replay", "long", "--store", sys.argv[1], *how.split()]
try:
    main()
except SystemExit as end:
    assert not end.code
print(json.dumps([time.process_time(), peak_bytes()]))
"""


def bench(tape: Tape) -> dict[str, Any]:
    """All figures. tape: a captured one, with scores."""
    report: dict[str, Any] = {}
    for table in ("routing", "scores"):
        n_bytes = sum(tape.store.fs.size(path) for path in tape.files(table))
        report[f"{table}_bytes_per_token_layer"] = round(n_bytes / tape.manifest.rows[table], 1)
    with tempfile.TemporaryDirectory() as folder:
        report["compact_scores_bytes_per_token_layer"] = round(compact_bytes(tape, Store(folder)), 1)
        n_lookups = write(Store(folder))
        runs = [_replayed(Path(folder), f"run{n}") for n in range(3)]
    cpu_s, peak = min(cpu for cpu, _ in runs), max(peak for _, peak in runs)
    report |= {"parquet_replay_lookups_per_cpu_s": round(n_lookups / cpu_s), "parquet_replay_peak_gib": round(peak / 2**30, 2)}
    print(f"replay of {n_lookups / 1e6:.0f} M lookups from Parquet {cpu_s:.1f} CPU s, {report['parquet_replay_peak_gib']} GiB")
    return report


def _replayed(folder: Path, name: str) -> tuple[float, int]:
    """CPU seconds and bytes of memory of a process that replays the tape in `folder` and writes what it finds beside it."""
    own = folder / name
    own.mkdir()
    (own / "traces").symlink_to(folder / "traces")
    cpu_s, peak = json.loads(in_new_process("-c", REPLAY, str(own))[0].splitlines()[-1])
    return cpu_s, peak


def compact_bytes(tape: Tape, store: Store) -> float:
    """What a row of `scores` takes in a capture with --compact-scores."""
    of, rows = tape.manifest, tape.read("scores").to_arrow()
    exact = rows["scores"].combine_chunks().values.to_numpy().reshape(rows.num_rows, -1)
    scores = compacted(exact, rows["layer"].to_numpy(), of.score_rule, of.score_params, of.geometry.top_k)
    table = rows.set_column(rows.schema.get_field_index("scores"), "scores", rows_of(scores))
    store.write_shard(store.path("scores.parquet"), table)
    return float(store.fs.size(store.path("scores.parquet")) / rows.num_rows)


def write(store: Store) -> int:
    """A tape of drawn routing, a request per shard; how many lookups it has."""
    geometry, rng, writer = models.load(MODEL).geometry, np.random.default_rng(0), store.writer("long")
    layers, n_rows = np.array(geometry.moe_layers), 0
    for shard in range(N_SHARDS):
        position = np.repeat(np.arange(N_TOKENS), layers.size)
        first, step = (
            rng.integers(0, geometry.n_experts, position.size),
            1 + 2 * rng.integers(0, geometry.n_experts // 2, position.size),
        )
        ids = (first[:, None] + np.arange(geometry.top_k) * step[:, None]) % geometry.n_experts
        made = RoutedRows(
            position * 0 + shard, position, np.tile(layers, N_TOKENS), shard * N_TOKENS + position, position > 0, ids,
            np.full(ids.shape, 1 / geometry.top_k, np.float32),
        )  # fmt: skip
        tables = tables_of(made, "drawn", {}, {})
        writer.write_shard(shard, tables)
        n_rows += tables["routing"].num_rows
    writer.finish(
        tables, N_SHARDS, origin="synthetic", source="bench", model_id=MODEL, dataset="drawn", geometry=geometry,
        created_utc="2026-01-01T00:00:00+00:00",
    )  # fmt: skip
    return n_rows * geometry.top_k
