"""Traces of when requests came and how long they were, without routing -> tapes that hold table `requests` alone.

    azure      CSV  TIMESTAMP,ContextTokens,GeneratedTokens                   date and time with 7 decimals
    mooncake   JSONL  timestamp (ms from the start), input_length, output_length, hash_ids     one id per 512 prompt tokens
    csv        any CSV; the caller names the columns of arrival (seconds, or a date and time), prompt and output tokens

Rows come in any order; arrivals are counted from the earliest. Rows without a prompt or an output token cannot be served: they
are left out and counted in the manifest's flags. A name that ends in .gz is unpacked.
"""

from __future__ import annotations

import gzip
import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from capture.importers.checks import BadImport
from capture.importers.rows import Source
from warehouse.geometry import Geometry
from warehouse.tape import Manifest, Store

AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MOONCAKE = ("timestamp", "input_length", "output_length", "hash_ids")
MOONCAKE_BLOCK_TOKENS = 512
# Such a trace says nothing of the model.
NO_MODEL = Geometry(architecture="unknown", n_layers=0, hidden=0, n_heads=0, n_kv_heads=0, head_dim=0, vocab=0)


def import_azure(path: str | Path, store: Store) -> str:
    """Imports an Azure LLM inference trace (2023 form) and returns the trace id. Raises BadImport, OSError."""
    return import_request_csv(path, store, *AZURE, dataset="azure")


def import_request_csv(
    path: str | Path, store: Store, arrival: str, n_prompt: str, n_output: str, dataset: str = "unknown"
) -> str:
    """Imports any CSV by the names of its columns and returns the trace id. Raises BadImport, OSError."""
    path = Path(path)
    raw = _bytes(path)
    try:
        frame = pl.read_csv(io.BytesIO(raw), infer_schema_length=None)
    except pl.exceptions.PolarsError as error:
        raise BadImport(f"{path}: cannot be read as CSV ({str(error).splitlines()[0]}); download it again") from None
    missing = [name for name in (arrival, n_prompt, n_output) if name not in frame.columns]
    if missing:
        raise BadImport(f"{path}: no column {missing[0]!r}; it has {', '.join(frame.columns)}: name the right ones")
    if frame.is_empty():
        raise BadImport(f"{path}: a header and no rows; give a trace of requests")
    columns = {
        "arrival_s": _seconds(frame[arrival], path),
        "n_prompt_tokens": _numbers(frame[n_prompt], path),
        "n_output_tokens": _numbers(frame[n_output], path),
    }
    return _write(path, raw, store, pl.DataFrame(columns), dataset, {"importer": "csv", "columns": [arrival, n_prompt, n_output]})


def import_mooncake(path: str | Path, store: Store) -> str:
    """Imports a Mooncake trace, prefix blocks included, and returns the trace id. Raises BadImport naming the line, OSError."""
    path = Path(path)
    raw = _bytes(path)
    rows = []
    for number, line in enumerate(raw.decode(errors="replace").splitlines(), 1):
        if not line.strip():
            continue
        try:
            stamp, n_prompt, n_output, blocks = (json.loads(line)[name] for name in MOONCAKE)
            rows.append((stamp / 1000.0, int(n_prompt), int(n_output), [int(block) for block in blocks]))
        except (ValueError, TypeError, KeyError) as error:
            wanted = f"an object of {', '.join(MOONCAKE)}"
            raise BadImport(f"{path}: line {number} is not {wanted} ({error!r}); download the file again") from None
        if len(blocks) != -(-n_prompt // MOONCAKE_BLOCK_TOKENS) or min(blocks, default=0) < 0:
            raise BadImport(f"{path}: line {number}: {len(blocks)} hash_ids for {n_prompt} tokens, one per 512 is expected")
    schema = {
        "arrival_s": pl.Float64,
        "n_prompt_tokens": pl.Int64,
        "n_output_tokens": pl.Int64,
        "prefix_blocks": pl.List(pl.UInt32),
    }
    settings = {"importer": "mooncake", "prefix_block_tokens": MOONCAKE_BLOCK_TOKENS}
    return _write(path, raw, store, pl.DataFrame(rows, schema, orient="row"), "mooncake", settings)


def _bytes(path: Path) -> bytes:
    raw = path.read_bytes()
    if path.suffix != ".gz":
        return raw
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError) as error:
        raise BadImport(f"{path}: cannot be unpacked ({error}); download it again") from None


def _seconds(column: pl.Series, path: Path) -> pl.Series:
    """Seconds from the first arrival on, from numbers or from dates with times. Raises BadImport naming the row."""
    if column.dtype == pl.String:
        moments = column.str.strip_chars().str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="ns", strict=False)
        seconds = moments.dt.epoch("ns").cast(pl.Float64) * 1e-9
        if not moments.null_count():  # differences first: nanoseconds since 1970 do not fit a double
            seconds = (moments - moments.min()).dt.total_nanoseconds().cast(pl.Float64) * 1e-9
    else:
        seconds = column.cast(pl.Float64, strict=False)
    _refuse(seconds.is_null() | ~seconds.is_finite(), column, path, "a number of seconds or a date and time")
    return seconds


def _numbers(column: pl.Series, path: Path) -> pl.Series:
    """Whole numbers of tokens. Raises BadImport naming the row."""
    tokens = column.cast(pl.Float64, strict=False)
    is_whole = (tokens >= 0) & (tokens < 2**32) & (tokens % 1 == 0)
    _refuse(~is_whole.fill_null(False), column, path, "a number of tokens")
    return tokens.cast(pl.Int64)


def _refuse(is_wrong: pl.Series, column: pl.Series, path: Path, wanted: str) -> None:
    if is_wrong.any():
        row = int(is_wrong.arg_max() or 0)
        raise BadImport(f"{path}: row {row + 1}: {column.name} is {column[row]!r}, not {wanted}; the file is damaged")


def _write(path: Path, raw: bytes, store: Store, rows: pl.DataFrame, dataset: str, settings: dict[str, Any]) -> str:
    """One tape of the requests, in order of arrival. Raises BadImport where no request can be served."""
    served = rows.filter((pl.col("n_prompt_tokens") > 0) & (pl.col("n_output_tokens") > 0)).sort("arrival_s", maintain_order=True)
    if served.is_empty():
        raise BadImport(f"{path}: none of its {len(rows)} rows has prompt and output tokens; give a trace of requests")
    source = Source(path, (raw, json.dumps(settings, sort_keys=True).encode()), "unknown", NO_MODEL, None, settings)
    writer = store.writer(source.trace_id)
    if writer.is_finished:
        return source.trace_id
    n = len(served)
    table = {
        "request_id": np.arange(n, dtype=np.uint32),
        "dataset": [dataset] * n,
        "arrival_s": (served["arrival_s"] - served["arrival_s"][0]).to_numpy(),
        "n_prompt_tokens": served["n_prompt_tokens"].to_numpy(),
        "n_output_tokens": served["n_output_tokens"].to_numpy(),
        "prompt_sha256": pa.nulls(n, pa.string()),
    }
    if "prefix_blocks" in served.columns:
        table["prefix_blocks"] = pa.array(served["prefix_blocks"].to_list(), pa.list_(pa.uint32()))
    dropped = len(rows) - n
    writer.discard()
    try:
        writer.write_shard(0, {"requests": pa.table(table)})
        writer.finish(
            Manifest(
                trace_id=source.trace_id,
                origin="imported",
                source=path.name,
                model_id="unknown",
                dataset=dataset,
                geometry=NO_MODEL,
                tables=("requests",),
                rows={"requests": n},
                n_shards=1,
                settings=settings,
                flags={"empty_requests": {"left_out": dropped, "rows": len(rows)}} if dropped else {},
                versions={"polars": pl.__version__, "pyarrow": pa.__version__},
                created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
            )
        )
    except BaseException:
        writer.discard()
        raise
    return source.trace_id
