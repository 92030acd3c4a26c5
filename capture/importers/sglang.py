"""Routed experts of SGLang -> tape: responses of a server, and dumps of its expert distribution recorder.

    responses   --enable-return-routed-experts, and return_routed_experts in the request: base64 of int32 [P + N - 1, layers, k],
                all layers, dense ones zeros, under meta_info (/generate) or sglext (OpenAI). sgl-project/sglang,
                python/sglang/srt/layers/moe/routed_experts_capturer.py (the buffers' shape), and `_routing_rows` of its tests.
    recorder    --expert-distribution-recorder-mode per_token: a torch file per rank, {records, last_physical_to_logical_map}.
                python/sglang/srt/eplb/expert_distribution.py, _DetailSinglePassGatherer.collect and _DetailAccumulator.dump.

A dump is read as plain tensors, never as a pickle (arrays.py). Its experts are physical and become logical
by the dump's last map; -1 pads. It names no requests: a token goes on with the first request of the batch, in its order, that
ended one position before, else it begins one; where several might go on, the flag requests_inferred counts it. What a prefix
cache held, or came before the recording, is missing_prefill. How requests were batched is not kept: they stand one after another.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tokentape.capture.importers.arrays import base64_bytes, int_lists, is_torch, plain_values
from tokentape.capture.importers.limits import AS_SENT, DEFAULT_MAX_BYTES, BadImport, reason, responses, whole
from tokentape.capture.importers.vllm import OUTPUT, Request, import_requests, request_of
from tokentape.warehouse.geometry import Geometry
from tokentape.warehouse.tape import Store

AGAIN = "record with --expert-distribution-recorder-mode per_token and dump it again"
UNMIXED = "serve without --enable-mixed-chunk and without drafts, and record again"
_EXTEND, _DECODE = 1, 2  # forward_mode, python/sglang/srt/model_executor/forward_batch_info.py


def import_sglang(paths: Sequence[str | Path], config_path: str | Path, store: Store, max_bytes: int = DEFAULT_MAX_BYTES) -> str:
    """Imports every request of the files and returns the trace id; importing them again changes nothing.

    Raises BadImport, OSError.
    """
    return import_requests(paths, config_path, store, max_bytes, "sglang", _requests_of)


def _requests_of(raw: bytes, path: Path, geometry: Geometry, config: str, max_bytes: int) -> tuple[list[Request], dict[str, int]]:
    if is_torch(raw):
        return _of_dump(raw, path, geometry)
    found = [list(_returned(where, body, geometry, config, max_bytes)) for where, body in responses(raw, path)]
    return [one for of_body in found for one in of_body], {"without_experts": sum(not of_body for of_body in found)}


# --------------------------------------------------------------------------------------------------------------- responses


def _returned(where: str, body: dict[str, Any], geometry: Geometry, config: str, max_bytes: int) -> Iterator[Request]:
    """Every answer of a response that has experts."""
    choices = body["choices"] if isinstance(body.get("choices"), list) else [body]
    for number, choice in enumerate(choices):
        place = f"{where}, choice {number}" if len(choices) > 1 else where
        of_body = {} if number else body  # the first answer's, where it stands beside the answers
        holders = [of.get(name) for of in (choice, of_body) if isinstance(of, dict) for name in ("meta_info", "sglext")]
        meta: dict[str, Any] = next((of for of in holders if isinstance(of, dict) and of.get(OUTPUT) is not None), {})
        if not meta:
            continue
        is_counted = "completion_tokens" in meta or not isinstance(body.get("usage"), dict)
        usage = meta if is_counted else body["usage"]  # of all answers
        n_prompt, n_output = (whole(usage.get(name), f"{place}: {name}") for name in ("prompt_tokens", "completion_tokens"))
        ids = meta[OUTPUT]
        if isinstance(ids, str):
            flat, n_rows = base64_bytes(ids, f"{place}: {OUTPUT}", max_bytes), n_prompt + n_output - 1
            shape = n_rows, geometry.n_layers, geometry.top_k
            if n_rows < 1 or len(flat) != 4 * int(np.prod(shape)):
                raise BadImport(
                    f"{place}: {OUTPUT} has {len(flat)} bytes, not int32 of {n_rows} tokens in {shape[1]} layers, {shape[2]} "
                    "each; give the config.json that was served, and responses without routed_experts_start_len"
                )
            experts = np.frombuffer(flat, "<i4").reshape(shape)
        else:
            experts = int_lists(ids, 3, f"{place}: {OUTPUT}")
        prompt, output = (_token_ids(meta, f"{name}_token_logprobs", place) for name in ("input", "output"))
        is_whole = prompt is not None and output is not None and (len(prompt), len(output)) == (n_prompt, n_output)
        known = (prompt, output) if is_whole else (None, None)
        yield request_of(place, geometry, config, experts, None, *known, n_prompt, n_output)


def _token_ids(meta: dict[str, Any], name: str, where: str) -> np.ndarray | None:
    """Second of each [log-probability, token id, text]; None where they were not asked for."""
    rows = meta.get(name)
    if not rows:
        return None
    if not isinstance(rows, list) or not all(isinstance(row, list) and len(row) > 1 for row in rows):
        raise BadImport(f"{where}: {name} is no list of [log-probability, id, text]; {AS_SENT}")
    return np.array([whole(row[1], f"{where}: {name}", (1 << 31) - 1) for row in rows], np.int64)


# ---------------------------------------------------------------------------------------------------------------- recorder


@dataclass(eq=False)
class _Live:
    """A request as far as the records have come."""

    first: int  # position of its first row
    experts: list[np.ndarray] = field(default_factory=list)  # (n, MoE layers, k)
    ids: list[int] = field(default_factory=list)
    n_decoded: int = 0


def _of_dump(raw: bytes, path: Path, geometry: Geometry) -> tuple[list[Request], dict[str, int]]:
    """The requests of a recorder's file, and what was inferred of it. Raises BadImport."""
    dump = plain_values(raw, str(path), AGAIN)
    if "logical_count" in dump:
        raise BadImport(f"{path}: counts per expert, no tokens; draw routing from them with `tokentape synthesize --counts`")
    if not isinstance(dump.get("records"), list) or not dump["records"]:
        raise BadImport(f"{path}: no records; {AGAIN}")
    requests: list[_Live] = []
    live: list[_Live] = []
    counted = {"requests_inferred": 0, "padded_tokens": 0}
    for number, record in enumerate(dump["records"], 1):
        where = f"{path}, record {number}"
        try:
            positions, tokens = (np.array(record[name], np.int64) for name in ("positions", "input_ids"))
            lengths, mode, chosen = record["extend_seq_lens"], int(record["forward_mode"]), record["topk_ids_of_layer"].numpy()
            logical = dump["last_physical_to_logical_map"].numpy()
            lengths = np.ones(len(tokens), np.int64) if mode == _DECODE else np.array(lengths or [], np.int64)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError) as error:
            raise BadImport(f"{where}: not a pass of per_token mode ({reason(error)}); {AGAIN}") from None
        if not len(tokens):
            continue
        if mode not in (_EXTEND, _DECODE) or lengths.sum() != len(tokens) or positions.shape != tokens.shape:
            raise BadImport(f"{where}: forward_mode {mode} of {lengths.sum()} tokens, {len(tokens)} inputs; {UNMIXED}")
        experts, is_real = _logical(chosen, logical, len(tokens), geometry, where)
        counted["padded_tokens"] += int((~is_real).sum())
        goes_on: list[_Live] = []
        for begin, end in zip(np.cumsum(lengths) - lengths, np.cumsum(lengths), strict=True):
            start = int(positions[begin])
            if not is_real[begin:end].any():
                continue
            if not is_real[begin:end].all() or (positions[begin:end] != np.arange(start, start + end - begin)).any():
                raise BadImport(f"{where}: tokens of a request do not follow each other, or lack experts; {AGAIN}")
            fits = [one for one in live if one.first + len(one.ids) == start > 0 and one not in goes_on]
            waiting = [one for one in fits if mode == _DECODE or not one.n_decoded]  # what decodes gets no more of its prompt
            counted["requests_inferred"] += len(waiting) > 1
            one = waiting[0] if waiting else _Live(start)
            requests += [] if waiting else [one]
            goes_on.append(one)
            one.experts.append(experts[begin:end])
            one.ids += tokens[begin:end].tolist()
            one.n_decoded += mode == _DECODE
        others = [one for one in live if one not in goes_on and (mode == _EXTEND or not one.n_decoded)]
        live = others + goes_on if mode == _EXTEND else goes_on + others  # prompts' requests join behind those that decode
    return [_request(one, f"{path}, request {number}") for number, one in enumerate(requests)], counted


def _logical(
    chosen: np.ndarray, logical: np.ndarray, n_tokens: int, geometry: Geometry, where: str
) -> tuple[np.ndarray, np.ndarray]:
    """(tokens, MoE layers, k) logical experts, and which tokens are no padding."""
    if chosen.ndim != 3 or logical.ndim != 2 or chosen.shape[:2] != (geometry.n_layers, n_tokens) or len(logical) != len(chosen):
        told = f"topk_ids_of_layer is {chosen.shape}, the map {logical.shape}"
        raise BadImport(f"{where}: {told}, for {n_tokens} tokens in {geometry.n_layers} layers; give the model that was served")
    layers = np.array(geometry.moe_layers)
    ids = chosen[layers].transpose(1, 0, 2).astype(np.int64)
    is_real, k = (ids >= 0).any(axis=(1, 2)), geometry.top_k
    if ids.shape[2] < k or (ids[is_real][:, :, :k] < 0).any() or (ids[:, :, k:] >= 0).any() or ids.max() >= logical.shape[1]:
        raise BadImport(f"{where}: a token has not {k} experts in every MoE layer, or one past the map; {AGAIN}")
    return logical[layers[:, None], ids[:, :, :k]], is_real


def _request(one: _Live, where: str) -> Request:
    n_prompt, known = len(one.ids) - one.n_decoded, None if one.first else np.array(one.ids, np.int64)
    return Request(where, np.concatenate(one.experts), n_prompt, one.n_decoded, known, first=one.first)
