"""Per-request speculative metrics of vLLM -> a tape of `requests` and `rounds`; any drafter's, an EAGLE head's too.

FILE holds responses of the OpenAI server, one JSON object per line or one JSON list, made under
`--per-request-spec-decode-metrics summary|detailed` (vLLM pull request 48915): `usage` with prompt_tokens and completion_tokens,
and `metrics.speculative_decoding` with acceptance_histogram (place j: steps that accepted exactly j), num_spec_steps,
num_accepted_draft_tokens, num_draft_tokens, num_spec_tokens, in `detailed` also per_step_accepted and per_step_drafted. A summary
does not say in which order its steps ran: its rounds stand by falling accepted length and the manifest's flags say so. Chunks of
a stream (`data`) are read too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from capture.importers.checks import BadImport
from capture.importers.request_traces import NO_MODEL
from capture.importers.rows import Source
from warehouse.tape import Manifest, Store

COUNTS = ("num_spec_steps", "num_accepted_draft_tokens", "num_draft_tokens", "num_spec_tokens")


def import_acceptance(path: str | Path, store: Store) -> str:
    """Imports a file of responses and returns the trace id. Raises BadImport naming the response and the field, OSError."""
    path = Path(path)
    raw = path.read_bytes()
    found = [(number, body) for number, body in _responses(path, raw) if _stats(body) is not None]
    if not found:
        raise BadImport(
            f"{path}: no response has metrics.speculative_decoding; start vLLM with --per-request-spec-decode-metrics detailed"
        )
    columns: dict[str, list[Any]] = {name: [] for name in ("request_id", "round", "n_drafted", "n_accepted")}
    lengths: dict[str, list[int]] = {"n_prompt_tokens": [], "n_output_tokens": []}
    unordered = uneven = 0
    for request, (number, body) in enumerate(found):
        where = f"{path}, response {number}"
        accepted, drafted, is_ordered, is_even = _steps(_stats(body) or {}, where)
        columns["request_id"] += [request] * len(accepted)
        columns["round"] += range(len(accepted))
        columns["n_drafted"] += drafted
        columns["n_accepted"] += accepted
        for name, field in (("n_prompt_tokens", "prompt_tokens"), ("n_output_tokens", "completion_tokens")):
            lengths[name].append(_whole((body.get("usage") or {}).get(field), f"{where}: usage.{field}"))
        unordered, uneven = unordered + (not is_ordered), uneven + (not is_even)
    flags = {"rounds_unordered": {"requests": unordered, "of": len(found)}} if unordered else {}
    flags |= {"drafts_shorter_than_stated": {"requests": uneven, "of": len(found)}} if uneven else {}
    model = str(found[0][1].get("model") or "unknown")
    settings = {"importer": "acceptance", "model": model}
    source = Source(path, (raw, json.dumps(settings, sort_keys=True).encode()), model, NO_MODEL, None, settings)
    return _write(source, store, columns, lengths, flags)


def _responses(path: Path, raw: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number from 1, response) of a list, of one object, or of lines."""
    try:
        text = raw.decode()
        bodies = (
            json.loads(text)
            if text.lstrip().startswith("[")
            else [json.loads(line) for line in text.splitlines() if line.strip()]
        )
    except json.JSONDecodeError as first:
        try:
            bodies = [json.loads(text)]
        except json.JSONDecodeError:
            raise BadImport(f"{path}: not JSON, nor JSON lines ({first}); give the server's responses as they came") from None
    except UnicodeDecodeError as error:
        raise BadImport(f"{path}: not text ({error.reason}); give the server's responses as they came") from None
    for number, body in enumerate(bodies, 1):
        if not isinstance(body, dict):
            raise BadImport(
                f"{path}, response {number}: {type(body).__name__} in place of an object; give the server's responses"
            )
        yield number, body["data"] if isinstance(body.get("data"), dict) else body


def _stats(body: dict[str, Any]) -> dict[str, Any] | None:
    metrics = body.get("metrics")
    found = metrics.get("speculative_decoding") if isinstance(metrics, dict) else None
    return found if isinstance(found, dict) else None


def _steps(stats: dict[str, Any], where: str) -> tuple[list[int], list[int], bool, bool]:
    """(accepted, drafted) per step, whether they stand in the order run, and whether every step's draft length is known."""
    steps, n_accepted, n_drafted, per_step = (_whole(stats.get(name), f"{where}: {name}") for name in COUNTS)
    is_ordered = "per_step_accepted" in stats
    if is_ordered:
        accepted = _list(stats, "per_step_accepted", where)
        drafted = _list(stats, "per_step_drafted", where) if "per_step_drafted" in stats else [per_step] * len(accepted)
    else:
        histogram = _list(stats, "acceptance_histogram", where)
        accepted = [j for j in reversed(range(len(histogram))) for _ in range(histogram[j])]
        drafted = [per_step] * len(accepted)
    said = {"num_spec_steps": (len(accepted), steps), "num_accepted_draft_tokens": (sum(accepted), n_accepted)}
    said |= {"length of per_step_drafted": (len(drafted), len(accepted))}
    for name, (ours, theirs) in said.items():
        if ours != theirs:
            raise BadImport(f"{where}: its steps give {ours}, {name} says {theirs}; the response is cut off or was changed")
    if any(a > d for a, d in zip(accepted, drafted, strict=True)):
        raise BadImport(f"{where}: a step accepted more tokens than were drafted; the response was changed")
    return accepted, drafted, is_ordered, sum(drafted) == n_drafted


def _list(stats: dict[str, Any], name: str, where: str) -> list[int]:
    values = stats.get(name)
    if not isinstance(values, list):
        raise BadImport(f"{where}: {name} is missing; give the server's responses as they came")
    return [_whole(value, f"{where}: {name}") for value in values]


def _whole(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadImport(f"{where} is {value!r}, not a number of tokens or steps; give the server's responses as they came")
    return value


def _write(
    source: Source, store: Store, columns: dict[str, list[Any]], lengths: dict[str, list[int]], flags: dict[str, Any]
) -> str:
    writer = store.writer(source.trace_id)
    if writer.is_finished:
        return source.trace_id
    n, n_rounds = len(lengths["n_prompt_tokens"]), len(columns["round"])
    requests = {
        "request_id": np.arange(n, dtype=np.uint32),
        "dataset": ["unknown"] * n,
        "arrival_s": np.zeros(n),
        **lengths,
        "prompt_sha256": pa.nulls(n, pa.string()),
    }
    none = {name: pa.nulls(n_rounds) for name in ("layer", "pool", "hotness", "next_pool", "entered", "bonus_token_id")}
    rounds = {**columns, **none, "n_verified": columns["n_drafted"], "is_clipped": [False] * n_rounds}
    writer.discard()
    try:
        writer.write_shard(0, {"requests": pa.table(requests), "rounds": pa.table(rounds)})
        writer.finish(
            Manifest(
                trace_id=source.trace_id,
                origin="imported",
                source=source.path.name,
                model_id=str(source.settings["model"]),
                dataset="unknown",
                geometry=NO_MODEL,
                tables=("requests", "rounds"),
                rows={"requests": n, "rounds": n_rounds},
                n_shards=1,
                settings=source.settings,
                flags=flags,
                versions={"pyarrow": pa.__version__},
                created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
            )
        )
    except BaseException:
        writer.discard()
        raise
    return source.trace_id
