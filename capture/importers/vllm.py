"""vLLM `--enable-return-routed-experts` -> tape: requests as the engine returned them, geometry from config.json.

    .npz, one request       routed_experts [P + N - 1, L, k] with prompt_token_ids [P] or token_ids [N], or both
                            or (v0.21) prompt_routed_experts [P, L, k] beside routed_experts [N - 1, L, k]
    responses of a server   one JSON object per line, or a list: `choices`, each with routed_experts as a .npy in base64 or as
                            lists; lengths from prompt_token_ids and token_ids (`return_token_ids`), else from `usage`

One integer array per request or two, prompt first. L counts MoE layers, or all layers, the dense ones filled with zeros; ids are
logical (before expert-parallel load balancing). A row belongs to the pass whose input is that token, so the last generated token
has none. Some versions return one row more; it is dropped and flagged. Several files, and all requests in them, become one tape;
how the engine batched them is not recorded, so they stand one after another, each with its prefill as one pass.
"""

from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tokentape.capture.importers.arrays import MAGIC, base64_bytes, int_lists, npy, npz
from tokentape.capture.importers.limits import AS_SENT, DEFAULT_MAX_BYTES, BadImport, read_all, responses, whole, within
from tokentape.capture.importers.model_config import moe_config
from tokentape.capture.importers.rows import RoutedRows, Source, in_order, write_import
from tokentape.warehouse.geometry import Geometry
from tokentape.warehouse.tape import Store

PROMPT, OUTPUT = "prompt_routed_experts", "routed_experts"
ORDER = "requests one after another, each prefill one pass, layer by layer, then one pass per token"


@dataclass(frozen=True)
class Request:
    """A request's routing; rows begin at position `first`, and n_prompt counts the prompt's from there."""

    where: str
    experts: np.ndarray  # (rows, MoE layers, k), of the prompt first
    n_prompt: int
    n_output: int
    token_ids: np.ndarray | None  # from position 0
    has_last: bool = False  # the engine returned a row for the last token, which was dropped
    first: int = 0


def import_vllm(
    paths: str | Path | Sequence[str | Path], config_path: str | Path, store: Store, max_bytes: int = DEFAULT_MAX_BYTES
) -> str:
    """Imports every request of the files and returns the trace id; importing them again changes nothing.

    Gate weights are not recorded: null. Top-k is the arrays'; where config.json says otherwise the tape is flagged. Raises
    BadImport, OSError.
    """
    paths = [paths] if isinstance(paths, (str, Path)) else paths
    return import_requests(paths, config_path, store, max_bytes, "vllm", _requests_of)


def import_requests(
    paths: Sequence[str | Path],
    config_path: str | Path,
    store: Store,
    max_bytes: int,
    importer: str,
    requests_of: Callable[[bytes, Path, Geometry, str, int], tuple[list[Request], dict[str, int]]],
) -> str:
    """One tape of the requests that `requests_of` (bytes, path, geometry, name of the config, most bytes) finds in the files, and
    of what it counts: flags of the manifest."""
    files = [Path(path) for path in paths]
    config_raw, model_id, geometry = moe_config(Path(config_path))
    requests, counted = list[Request](), Counter[str]()
    contents, config = read_all(files, max_bytes), Path(config_path).name
    for raw, path in zip(contents, files, strict=True):
        found, counts = requests_of(raw, path, geometry, config, max_bytes)
        requests += found
        counted.update(counts)
    if not requests:
        raise BadImport(f"{files[0]}: no response has {OUTPUT}; start the server with --enable-return-routed-experts")
    top_k = requests[0].experts.shape[2]
    for one in requests:
        if one.experts.shape[2] != top_k:
            raise BadImport(f"{one.where}: top-k {one.experts.shape[2]}, {top_k} in {requests[0].where}; one model has one")
    dropped = sum(one.has_last for one in requests)
    flags: dict[str, Any] = {"last_row_dropped": {"requests": dropped, "of": len(requests)}} if dropped else {}
    flags |= {name: n for name, n in counted.items() if n}
    source = Source(
        path=files[0],
        content=(*contents, config_raw),
        model_id=model_id,
        geometry=Geometry(**{**geometry.model_dump(), "top_k": top_k}),
        model_top_k=geometry.top_k,
        settings={
            "importer": importer,
            "config": config,
            "files": [path.name for path in files],
            "order": ORDER,
        },
        token_ids={i: one.token_ids for i, one in enumerate(requests) if one.token_ids is not None},
        n_output_tokens={i: one.n_output for i, one in enumerate(requests)},
        flags=flags,
        origins=tuple(one.where for one in requests),
    )
    return write_import(store, source, _routed(requests, np.array(geometry.moe_layers, np.int32)))


def _requests_of(raw: bytes, path: Path, geometry: Geometry, config: str, max_bytes: int) -> tuple[list[Request], dict[str, int]]:
    """The requests of a file, and how many of its choices have no experts. Raises BadImport."""
    if not raw:
        raise BadImport(f"{path}: the file is empty; export it again")
    if raw.startswith(b"PK"):
        arrays = npz(raw, path, max_bytes)
        if OUTPUT not in arrays:
            raise BadImport(f"{path}: array {OUTPUT} is missing; found {', '.join(arrays) or 'none'}")
        prompt_ids, output_ids = (_token_ids(arrays.get(name), f"{path}: {name}") for name in ("prompt_token_ids", "token_ids"))
        return [request_of(str(path), geometry, config, arrays[OUTPUT], arrays.get(PROMPT), prompt_ids, output_ids)], {}
    if raw.startswith(MAGIC):
        raise BadImport(f"{path}: one bare array; save {OUTPUT} and prompt_token_ids by name with numpy.savez")
    if raw.removeprefix(BOM_UTF8).lstrip()[:1] not in (b"{", b"["):
        raise BadImport(f"{path}: neither a readable .npz nor JSON; export it with numpy.savez, or give the server's responses")
    found = [*_choices(raw, path, geometry, config, max_bytes)]
    return [one for one in found if one is not None], {"without_experts": found.count(None)}


def _choices(raw: bytes, path: Path, geometry: Geometry, config: str, max_bytes: int) -> Iterator[Request | None]:
    """Every choice of every response; None for one without experts."""
    n_bytes = 0
    for where, body in responses(raw, path):
        choices = body.get("choices")
        if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
            raise BadImport(f"{where}: choices is missing; {AS_SENT}")
        usage = body["usage"] if isinstance(body.get("usage"), dict) else {}
        prompt = _experts(body.get(PROMPT), f"{where}: {PROMPT}", max_bytes)
        is_batch = len(choices) > 1 and body.get("object") == "text_completion"  # of several prompts, whose sum usage has
        n_output = _stated(usage, "completion_tokens", where) if len(choices) == 1 else None  # the sum of all
        for number, choice in enumerate(choices):
            place = f"{where}, choice {number}" if len(choices) > 1 else where
            output = _experts(choice.get(OUTPUT), f"{place}: {OUTPUT}", max_bytes)
            output_ids = _listed(choice.get("token_ids"), f"{place}: token_ids")
            if output is None and prompt is not None and (n_output if output_ids is None else len(output_ids)) == 1:
                output = prompt[:0]  # an answer's one token is no pass's input
            if output is None:
                yield None
                continue
            within(n_bytes := n_bytes + output.nbytes, max_bytes, str(path))
            prompt_ids = _listed(choice.get("prompt_token_ids") or body.get("prompt_token_ids"), f"{place}: prompt_token_ids")
            n_prompt = None if is_batch else _stated(usage, "prompt_tokens", where)
            yield request_of(place, geometry, config, output, prompt, prompt_ids, output_ids, n_prompt, n_output)


def _experts(value: Any, where: str, max_bytes: int) -> np.ndarray | None:
    if value is None or value == []:
        return None
    return npy(base64_bytes(value, where, max_bytes), where) if isinstance(value, str) else int_lists(value, 3, where)


def _listed(value: Any, where: str) -> np.ndarray | None:
    return None if value is None else _token_ids(int_lists(value, 1, where), where)


def _stated(usage: dict[str, Any], field: str, where: str) -> int | None:
    return None if usage.get(field) is None else whole(usage[field], f"{where}: usage.{field}")


def _token_ids(ids: np.ndarray | None, where: str) -> np.ndarray | None:
    if ids is None:
        return None
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise BadImport(f"{where} is {ids.dtype} of shape {ids.shape}; a list of token ids is expected")
    if len(ids) and not 0 <= ids.min() <= ids.max() < 1 << 31:
        raise BadImport(f"{where} has ids outside 0..2147483647; the file is damaged")
    return ids.astype(np.int64)


def request_of(
    where: str,
    geometry: Geometry,
    config: str,
    output: np.ndarray,
    prompt: np.ndarray | None = None,
    prompt_ids: np.ndarray | None = None,
    output_ids: np.ndarray | None = None,
    n_prompt: int | None = None,
    n_output: int | None = None,
) -> Request:
    """A request as the engine returned it, without the last token's row, and the lengths that follow; None: it did not say.
    output: all rows, or those of generated tokens where `prompt` has the others. Raises BadImport if they do not add up."""
    output = _of_moe_layers(output, OUTPUT, geometry, where, config)
    for name, ids, stated in (("prompt_token_ids", prompt_ids, n_prompt), ("token_ids", output_ids, n_output)):
        if ids is not None and stated not in (None, len(ids)):
            raise BadImport(f"{where}: usage says {stated} tokens, {name} has {len(ids)} entries; {AS_SENT}")
    n_prompt = n_prompt if prompt_ids is None else len(prompt_ids)
    n_output = n_output if output_ids is None else len(output_ids)
    if prompt is not None:
        prompt = _of_moe_layers(prompt, PROMPT, geometry, where, config)
        if prompt.shape[1:] != output.shape[1:]:
            told = f"{PROMPT} is {prompt.shape}, {OUTPUT} is {output.shape}"
            raise BadImport(f"{where}: {told}; layers and top-k must agree: export again")
        if n_prompt not in (None, len(prompt)):
            raise BadImport(f"{where}: {n_prompt} prompt tokens, {PROMPT} has {len(prompt)} rows; {AS_SENT}")
        n_prompt, output = len(prompt), np.concatenate((prompt, output))
    if n_prompt is None and n_output is None:
        raise BadImport(f"{where}: {OUTPUT} does not say where the prompt ends; give prompt_token_ids or token_ids with it")
    n_rows = len(output)
    if n_prompt is None:
        n_prompt = n_rows - max(0, (n_output or 0) - 1)
    if n_output is not None:
        has_last = n_output > 0 and n_rows == n_prompt + n_output
    else:
        has_last = n_rows > n_prompt and output.shape[2] > 1 and bool((output[-1] == output[-1, :, :1]).all())
    n_passed = n_rows - has_last - n_prompt  # generated tokens that became an input
    if n_prompt <= 0 or n_passed < 0 or (n_output is not None and n_passed != max(0, n_output - 1)):
        raise BadImport(
            f"{where}: {OUTPUT} has {n_rows} rows for {n_prompt} prompt and {n_output} output tokens; one less than all is "
            "expected: export again, without routed_experts_prompt_start"
        )
    is_known = prompt_ids is not None and (output_ids is not None or not n_passed)
    known = np.concatenate([ids for ids in (prompt_ids, output_ids) if ids is not None]) if is_known else None
    return Request(where, output[: n_rows - has_last], n_prompt, n_passed + 1 if n_output is None else n_output, known, has_last)


def _of_moe_layers(ids: np.ndarray, name: str, geometry: Geometry, where: str, config: str) -> np.ndarray:
    """(rows, MoE layers, k) ids. Raises BadImport for another shape or type, and for layers that are not the config's."""
    if ids.ndim != 3 or ids.dtype.kind not in "iu" or not ids.shape[2]:
        raise BadImport(f"{where}: {name} is {ids.dtype} of shape {ids.shape}; int16 [tokens, layers, top-k] is expected")
    moe, n_layers = list(geometry.moe_layers), ids.shape[1]
    wanted = "give the config.json of the model that was served"
    if n_layers == geometry.n_layers:
        dense = sorted(set(range(n_layers)) - set(moe))
        is_empty = ~np.bitwise_or.reduce(ids, axis=0).any(axis=1)  # over tokens first: whole rows at a time
        for layer in dense:
            if not is_empty[layer]:
                raise BadImport(f"{where}: {name} has experts in layer {layer}, which {config} says is dense; {wanted}")
        if ids.shape[2] > 1 and len(ids) and is_empty[moe].any():
            layer = moe[int(np.argmax(is_empty[moe]))]
            raise BadImport(f"{where}: {name} has only zeros in layer {layer}, a MoE layer by {config}; {wanted}")
        return ids[:, moe] if dense else ids
    if n_layers != len(moe):
        there = f"{name} has {n_layers} layers, {config} {len(moe)} MoE layers of {geometry.n_layers}"
        raise BadImport(f"{where}: {there}; {wanted}")
    return ids


def _routed(requests: list[Request], moe_layers: np.ndarray) -> RoutedRows:
    """Per request its prefill as one layer-major pass, then one pass per generated token."""
    n_layers, k = requests[0].experts.shape[1:]
    # The types of the tape where the ids allow it: what is never copied again costs its memory once, and memory is the time here.
    kinds = (np.uint16, np.int16, np.int64)
    kind = next((kind for kind in kinds if all(np.can_cast(one.experts.dtype, kind) for one in requests)), np.int64)
    ids = np.empty((sum(len(one.experts) for one in requests) * n_layers, k), kind)
    columns, begin, n_passes = list[dict[str, np.ndarray]](), 0, 0
    for number, one in enumerate(requests):
        n_tokens, n_prompt = len(one.experts), one.n_prompt
        columns.append(in_order(number, n_prompt, n_tokens, moe_layers, n_passes, one.first))
        decoded, end = begin + n_prompt * n_layers, begin + n_tokens * n_layers
        ids[begin:decoded].reshape(n_layers, n_prompt, k)[:] = one.experts[:n_prompt].transpose(1, 0, 2)
        ids[decoded:end].reshape(-1, n_layers, k)[:] = one.experts[n_prompt:]
        begin, n_passes = end, n_passes + 1 + n_tokens - n_prompt
    return RoutedRows(**{name: np.concatenate([of[name] for of in columns]) for name in columns[0]}, expert_ids=ids)
