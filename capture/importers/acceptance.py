"""Per-request speculative metrics of vLLM -> a tape of `requests` and `rounds`; any drafter's, an EAGLE head's too.

FILE holds responses of the OpenAI server, one JSON object per line or one JSON list, made under
`--per-request-spec-decode-metrics summary|detailed` (vLLM pull request 48915): `usage` with prompt_tokens and completion_tokens,
and `metrics.speculative_decoding` with acceptance_histogram (place j: steps that accepted exactly j), num_spec_steps,
num_accepted_draft_tokens, num_draft_tokens, num_spec_tokens, in `detailed` also per_step_accepted and per_step_drafted. A summary
does not say in which order its steps ran: its rounds stand by falling accepted length and the manifest's flags say so. Chunks of
a stream (`data`) are read too.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tokentape.capture.importers.limits import AS_SENT, DEFAULT_MAX_BYTES, U32, BadImport, read, responses, whole, within, words
from tokentape.capture.importers.rows import NO_MODEL, Source, write_tape
from tokentape.capture.rows import request_table
from tokentape.warehouse.tape import Store

COUNTS = ("num_spec_steps", "num_accepted_draft_tokens", "num_draft_tokens", "num_spec_tokens")
_MOST_DRAFTED = 65_535  # tokens in a round
_ROUND_BYTES = 64  # of one round as it is held


def import_acceptance(path: str | Path, store: Store, max_bytes: int = DEFAULT_MAX_BYTES) -> str:
    """Imports a file of responses and returns the trace id. Raises BadImport naming the response and the field, OSError."""
    path = Path(path)
    raw = read(path, max_bytes)
    found = [(where, body, stats) for where, body in responses(raw, path) if (stats := _stats(body)) is not None]
    if not found:
        raise BadImport(
            f"{path}: no response has metrics.speculative_decoding; start vLLM with --per-request-spec-decode-metrics detailed"
        )
    columns: dict[str, list[np.ndarray]] = {name: [] for name in ("request_id", "round", "n_drafted", "n_accepted")}
    lengths: dict[str, list[int]] = {"n_prompt_tokens": [], "n_output_tokens": []}
    unordered = uneven = n_rounds = 0
    for request, (where, body, stats) in enumerate(found):
        accepted, drafted, is_ordered, is_even = _steps(stats, where, max_bytes - n_rounds * _ROUND_BYTES)
        n_rounds += len(accepted)
        columns["request_id"].append(np.full(len(accepted), request))
        columns["round"].append(np.arange(len(accepted)))
        columns["n_drafted"].append(drafted)
        columns["n_accepted"].append(accepted)
        usage = body.get("usage")
        for name, field in (("n_prompt_tokens", "prompt_tokens"), ("n_output_tokens", "completion_tokens")):
            lengths[name].append(whole(usage.get(field) if isinstance(usage, dict) else None, f"{where}: usage.{field}"))
        unordered, uneven = unordered + (not is_ordered), uneven + (not is_even)
    flags = {"rounds_unordered": {"requests": unordered, "of": len(found)}} if unordered else {}
    flags |= {"drafts_shorter_than_stated": {"requests": uneven, "of": len(found)}} if uneven else {}
    where, body, _ = found[0]
    model = words(body.get("model") or "unknown", f"{where}: model")
    settings = {"importer": "acceptance", "model": model}
    source = Source(path, (raw, json.dumps(settings, sort_keys=True).encode()), model, NO_MODEL, None, settings)
    made = {name: np.concatenate(parts) for name, parts in columns.items()}
    none = {name: pa.nulls(n_rounds) for name in ("layer", "pool", "hotness", "next_pool", "entered", "bonus_token_id")}
    rounds = {**made, **none, "n_verified": made["n_drafted"], "is_clipped": pa.array(np.zeros(n_rounds, bool))}
    requests = request_table(lengths["n_prompt_tokens"], lengths["n_output_tokens"])
    return write_tape(store, source, {"requests": requests, "rounds": pa.table(rounds)}, flags)


def _stats(body: dict[str, Any]) -> dict[str, Any] | None:
    metrics = body.get("metrics")
    found = metrics.get("speculative_decoding") if isinstance(metrics, dict) else None
    return found if isinstance(found, dict) else None


def _steps(stats: dict[str, Any], where: str, max_bytes: int) -> tuple[np.ndarray, np.ndarray, bool, bool]:
    """(accepted, drafted) per step, whether they stand in the order run, and whether every step's draft length is known."""
    steps, n_accepted, n_drafted, per_step = (whole(stats.get(name), f"{where}: {name}") for name in COUNTS)
    within(steps * _ROUND_BYTES, max_bytes, where)
    whole(per_step, f"{where}: num_spec_tokens", _MOST_DRAFTED)
    is_ordered = stats.get("per_step_accepted") is not None  # what a server was not asked for may be null
    if is_ordered:
        accepted = _list(stats, "per_step_accepted", where)
    else:
        histogram = _list(stats, "acceptance_histogram", where)
        _same(where, "num_spec_steps", int(histogram.sum()), steps)
        accepted = np.repeat(np.arange(len(histogram)), histogram)[::-1]
    is_listed = is_ordered and stats.get("per_step_drafted") is not None
    drafted = _list(stats, "per_step_drafted", where) if is_listed else np.full(len(accepted), per_step)
    _same(where, "num_spec_steps", len(accepted), steps)
    _same(where, "num_accepted_draft_tokens", int(accepted.sum()), n_accepted)
    _same(where, "length of per_step_drafted", len(drafted), len(accepted))
    if (accepted > drafted).any():
        raise BadImport(f"{where}: a step accepted more tokens than were drafted; the response was changed")
    return accepted, drafted, is_ordered, int(drafted.sum()) == n_drafted


def _same(where: str, name: str, ours: int, theirs: int) -> None:
    if ours != theirs:
        raise BadImport(f"{where}: its steps give {ours}, {name} says {theirs}; the response is cut off or was changed")


def _list(stats: dict[str, Any], name: str, where: str) -> np.ndarray:
    values = stats.get(name)
    if not isinstance(values, list):
        raise BadImport(f"{where}: {name} is missing; {AS_SENT}")
    most = U32 if name == "acceptance_histogram" else _MOST_DRAFTED
    return np.array([whole(value, f"{where}: {name}", most) for value in values], np.int64)
