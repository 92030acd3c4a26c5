"""Traces of when requests came and how long they were, without routing -> tapes that hold table `requests` alone.

    azure      CSV  TIMESTAMP,ContextTokens,GeneratedTokens     date and time: 7 decimals in 2023, a time zone in 2024
    mooncake   JSONL  timestamp (ms from the start), input_length, output_length, hash_ids     one id per 512 prompt tokens
    vllm       JSONL  queued_ts or arrival_time (s), input_toks, output_toks     a request log of a served engine
    csv        any CSV; the caller names the columns of arrival (seconds, or a date and time), prompt and output tokens

Rows come in any order; arrivals are counted from the earliest. Rows without a prompt or an output token cannot be served: they
are left out and counted in the manifest's flags. A name that ends in .gz is unpacked.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from tokentape.capture.importers.column_limits import Row, finite_column, refuse, span, whole_column
from tokentape.capture.importers.limits import DEFAULT_MAX_BYTES, BadImport, finite, json_lines, read, shown, text, whole
from tokentape.capture.importers.rows import NO_MODEL, Source, request_table, write_tape
from tokentape.capture.importers.table_files import csv_text, need
from tokentape.warehouse.tape import Store

AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MOONCAKE = ("timestamp", "input_length", "output_length", "hash_ids")
VLLM = ("input_toks", "output_toks")
MOONCAKE_BLOCK_TOKENS = 512
# 2023-11-16 18:17:03.9799600, 2024-05-10 00:00:00.009930+00:00 (whole seconds without the point), ISO 8601's T and Z
_MOMENT = r"^\s*(\d{4}-\d{2}-\d{2})[ T](\d{2}:\d{2}:\d{2})(?:\.(\d{1,9}))?\s*(Z|[+-](?:0\d|1[0-4]):?[0-5]\d)?\s*$"


def import_azure(path: str | Path, store: Store, max_bytes: int = DEFAULT_MAX_BYTES) -> str:
    """Imports an Azure LLM inference trace, of 2023 or 2024, and returns the trace id. Raises BadImport, OSError."""
    return import_request_csv(path, store, *AZURE, dataset="azure", max_bytes=max_bytes)


def import_request_csv(
    path: str | Path,
    store: Store,
    arrival: str,
    n_prompt: str,
    n_output: str,
    dataset: str = "unknown",
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> str:
    """Imports any CSV by the names of its columns and returns the trace id. Raises BadImport, OSError."""
    path = Path(path)
    raw = read(path, max_bytes)
    frame = csv_text(raw, path)
    for name in (arrival, n_prompt, n_output):
        need(frame, name, path)

    def where(row: int) -> str:
        return f"{path}: row {row + 1}"

    columns = {
        "arrival_s": _seconds(frame[arrival], path),
        "n_prompt_tokens": whole_column(frame[n_prompt], where),
        "n_output_tokens": whole_column(frame[n_output], where),
    }
    return _write(path, raw, store, pl.DataFrame(columns), dataset, {"importer": "csv", "columns": [arrival, n_prompt, n_output]})


def import_mooncake(path: str | Path, store: Store, max_bytes: int = DEFAULT_MAX_BYTES) -> str:
    """Imports a Mooncake trace, prefix blocks included, and returns the trace id. Raises BadImport naming the line, OSError."""
    path = Path(path)
    raw = read(path, max_bytes)
    rows = []
    for number, line in json_lines(text(raw, path), path):
        where = f"{path}: line {number}"
        if not isinstance(line, dict) or not set(MOONCAKE) <= set(line):
            raise BadImport(f"{where} is not an object of {', '.join(MOONCAKE)}; download the file again")
        stamp, n_prompt, n_output, blocks = (line[name] for name in MOONCAKE)
        arrival_s = finite(stamp, f"{where}: timestamp") / 1000.0
        lengths = whole(n_prompt, f"{where}: input_length"), whole(n_output, f"{where}: output_length")
        if not isinstance(blocks, list):
            raise BadImport(f"{where}: hash_ids is {shown(blocks)}, not a list; download the file again")
        if len(blocks) != -(-n_prompt // MOONCAKE_BLOCK_TOKENS):
            raise BadImport(f"{where}: {len(blocks)} hash_ids for {n_prompt} tokens, one per 512 is expected")
        rows.append((arrival_s, *lengths, [whole(block, f"{where}: a hash id") for block in blocks]))
    schema: dict[str, Any] = {
        "arrival_s": pl.Float64,
        "n_prompt_tokens": pl.Int64,
        "n_output_tokens": pl.Int64,
        "prefix_blocks": pl.List(pl.UInt32),
    }
    if not rows:
        raise BadImport(f"{path}: no lines; give a trace of requests")
    frame = pl.DataFrame(rows, schema, orient="row")
    frame = frame.with_columns(span(frame["arrival_s"], str(path)))
    settings = {"importer": "mooncake", "prefix_block_tokens": MOONCAKE_BLOCK_TOKENS}
    return _write(path, raw, store, frame, "mooncake", settings)


def import_vllm_log(path: str | Path, store: Store, max_bytes: int = DEFAULT_MAX_BYTES) -> str:
    """Imports the request log of a vLLM engine and returns the trace id. Raises BadImport naming the line, OSError."""
    path = Path(path)
    raw, rows = read(path, max_bytes), []
    for number, line in json_lines(text(raw, path), path):
        where = f"{path}: line {number}"
        stamp = next((name for name in ("queued_ts", "arrival_time") if isinstance(line, dict) and name in line), None)
        if stamp is None or not set(VLLM) <= set(line):
            raise BadImport(f"{where} is not an object of queued_ts or arrival_time, {', '.join(VLLM)}")
        rows.append((finite(line[stamp], f"{where}: {stamp}"), *(whole(line[name], f"{where}: {name}") for name in VLLM)))
    if not rows:
        raise BadImport(f"{path}: no lines; give a request log")
    frame = pl.DataFrame(rows, dict.fromkeys(("arrival_s", "n_prompt_tokens", "n_output_tokens"), pl.Float64), orient="row")
    frame = frame.with_columns(span(frame["arrival_s"], str(path)), pl.exclude("arrival_s").cast(pl.Int64))
    return _write(path, raw, store, frame, "vllm", {"importer": "vllm"})


def _seconds(column: pl.Series, path: Path) -> pl.Series:
    """Seconds from the first arrival on, from numbers or from dates with times. Raises BadImport naming the row."""

    def where(row: int) -> str:
        return f"{path}: row {row + 1}"

    wanted = "a number of seconds or a date and time"
    if column.str.contains(_MOMENT).any():
        return _since_first(column, path, where)
    return span(finite_column(column, where, wanted), str(path))


def _since_first(column: pl.Series, path: Path, where: Row) -> pl.Series:
    """The same of dates with times; all with a time zone or all without: one that is left out could be any."""
    names = dict(zip("1234", ("date", "time", "decimals", "zone"), strict=True))
    parts = column.str.extract_groups(_MOMENT).struct.unnest().rename(names)
    local = (parts["date"] + " " + parts["time"]).str.to_datetime("%Y-%m-%d %H:%M:%S", time_unit="ms", strict=False)
    refuse(local.is_null(), column, where, "a date and time")
    zones = parts["zone"].is_null()
    if zones.any() and not zones.all():
        row = int((zones != zones[0]).arg_max() or 0)
        raise BadImport(f"{where(row)}: some rows have a time zone and some do not; give all of them one, or none")
    zone = parts["zone"].str.replace(":", "", literal=True).str.replace("Z", "+0000", literal=True).fill_null("+0000")
    ahead_s = zone.str.slice(1, 2).cast(pl.Int64) * 3600 + zone.str.slice(3, 2).cast(pl.Int64) * 60
    whole_s = local.dt.epoch("s") - ahead_s * (1 - 2 * zone.str.starts_with("-").cast(pl.Int64))
    nanoseconds = parts["decimals"].fill_null("0").str.pad_end(9, "0").cast(pl.Int64)
    span((whole_s - whole_s.min()).cast(pl.Float64), str(path))
    since = (whole_s - whole_s.min()) * 10**9 + nanoseconds  # whole: nanoseconds since 1970 do not fit a double
    return ((since - since.min()).cast(pl.Float64) * 1e-9).rename(column.name)


def _write(path: Path, raw: bytes, store: Store, rows: pl.DataFrame, dataset: str, settings: dict[str, Any]) -> str:
    """One tape of the requests, in order of arrival. Raises BadImport where no request can be served."""
    served = rows.filter((pl.col("n_prompt_tokens") > 0) & (pl.col("n_output_tokens") > 0)).sort("arrival_s", maintain_order=True)
    if served.is_empty():
        raise BadImport(f"{path}: none of its {len(rows)} rows has prompt and output tokens; give a trace of requests")
    content = (raw, json.dumps(settings, sort_keys=True).encode())
    source = Source(path, content, "unknown", NO_MODEL, None, settings, dataset=dataset)
    n, since = len(served), (served["arrival_s"] - served["arrival_s"][0]).to_numpy()
    table = request_table(served["n_prompt_tokens"].to_numpy(), served["n_output_tokens"].to_numpy(), dataset, since)
    if "prefix_blocks" in served.columns:
        table["prefix_blocks"] = pa.array(served["prefix_blocks"].to_list(), pa.list_(pa.uint32()))
    left_out = {"empty_requests": {"left_out": len(rows) - n, "rows": len(rows)}} if n < len(rows) else {}
    return write_tape(store, source, {"requests": pa.table(table)}, left_out)
