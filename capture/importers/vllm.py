"""vLLM `--enable-return-routed-experts` -> tape: one request as an .npz of what the engine returned, geometry from config.json.

    prompt_routed_experts  [P, L, k] int16    the prompt's tokens
    routed_experts         [G, L, k] int16    the generated ones that became an input
    prompt_token_ids [P], token_ids [N]       optional

L counts MoE layers only; ids are logical (before expert-parallel load balancing). A row belongs to the pass whose input is that
token, so the last generated token has none: G is N - 1. Some versions return one row more; it is dropped and flagged.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from capture.importers.checks import BadImport
from capture.importers.rows import RoutedRows, Source, write_import
from warehouse.geometry import Geometry, from_config
from warehouse.tape import Store

PROMPT, OUTPUT = "prompt_routed_experts", "routed_experts"


def import_vllm(path: str | Path, config_path: str | Path, store: Store) -> str:
    """Imports one request and returns the trace id; importing it again changes nothing. Gate weights are not recorded: null.

    Top-k is the array's; where config.json says otherwise the tape is flagged. Raises BadImport, OSError.
    """
    path, config_path = Path(path), Path(config_path)
    arrays = _arrays(path)
    config, geometry = _config(config_path)
    prompt, output = (_ids(arrays, name, geometry, path, config_path) for name in (PROMPT, OUTPUT))
    if prompt.shape[1:] != output.shape[1:]:
        raise BadImport(
            f"{path}: {PROMPT} is {prompt.shape}, {OUTPUT} is {output.shape}; layers and top-k must agree: export again"
        )
    prompt_tokens, output_tokens = (_tokens(arrays, name, path) for name in ("prompt_token_ids", "token_ids"))
    if prompt_tokens is not None and len(prompt_tokens) != len(prompt):
        raise BadImport(f"{path}: prompt_token_ids has {len(prompt_tokens)} entries, {PROMPT} {len(prompt)} rows; export again")
    output, flags = _without_last(output, output_tokens, path)
    known = prompt_tokens is not None and (output_tokens is not None or not len(output))
    inputs = [part for part in (prompt_tokens, output_tokens) if part is not None]
    source = Source(
        path=path,
        content=(path.read_bytes(), config_path.read_bytes()),
        model_id=config.get("_name_or_path") or geometry.architecture,
        geometry=Geometry(**{**geometry.model_dump(), "top_k": prompt.shape[2]}),
        model_top_k=geometry.top_k,
        settings={"importer": "vllm", "config": config_path.name},
        token_ids={0: np.concatenate(inputs)} if known else None,
        n_output_tokens=None if output_tokens is None else {0: len(output_tokens)},
        flags=flags,
    )
    return write_import(store, source, _routed(prompt, output, np.array(geometry.moe_layers)))


def _arrays(path: Path) -> dict[str, np.ndarray]:
    """The file's arrays, read without pickle. Raises BadImport."""
    if not path.stat().st_size:
        raise BadImport(f"{path}: the file is empty; export it again")
    try:
        file = np.load(path, allow_pickle=False)
        if not isinstance(file, np.ndarray):
            with file:
                return {name: file[name] for name in file.files}
    except (zipfile.BadZipFile, ValueError, EOFError) as error:
        reason = str(error).splitlines()[0]
        raise BadImport(f"{path}: not a readable .npz of plain arrays ({reason}); export it again with numpy.savez") from error
    raise BadImport(f"{path}: one bare array; save {PROMPT} and {OUTPUT} by name with numpy.savez")


def _config(path: Path) -> tuple[dict[str, Any], Geometry]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        geometry = from_config(config)
    except (ValueError, AttributeError, TypeError) as error:
        raise BadImport(f"{path}: {str(error).splitlines()[0]}; give the model's Hugging Face config.json") from error
    if not geometry.moe_layers:
        raise BadImport(f"{path}: a model without routed experts; give the config.json of the model that was served")
    return config, geometry


def _ids(arrays: dict[str, np.ndarray], name: str, geometry: Geometry, path: Path, config_path: Path) -> np.ndarray:
    """(tokens, L, k) expert ids. Raises BadImport if absent, of another shape or not integers."""
    if name not in arrays:
        raise BadImport(f"{path}: array {name} is missing; found {', '.join(arrays) or 'none'}")
    ids = arrays[name]
    if ids.ndim != 3 or not np.issubdtype(ids.dtype, np.integer) or not ids.shape[2]:
        raise BadImport(f"{path}: {name} is {ids.dtype} of shape {ids.shape}; int16 [tokens, layers, top-k] is expected")
    if ids.shape[1] != len(geometry.moe_layers):
        there = f"{name} has {ids.shape[1]} layers, {config_path.name} {len(geometry.moe_layers)} MoE layers"
        raise BadImport(f"{path}: {there}; give the config.json of the model that was served")
    return ids.astype(np.int64)


def _tokens(arrays: dict[str, np.ndarray], name: str, path: Path) -> np.ndarray | None:
    if name not in arrays:
        return None
    ids = arrays[name]
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise BadImport(f"{path}: {name} is {ids.dtype} of shape {ids.shape}; a list of token ids is expected")
    return ids.astype(np.int64)


def _without_last(output: np.ndarray, tokens: np.ndarray | None, path: Path) -> tuple[np.ndarray, dict[str, Any]]:
    """The rows of tokens that were an input; flagged if one row is more than that: by the token count, else if it is unfilled."""
    if tokens is not None and len(output) not in (len(tokens), max(0, len(tokens) - 1)):
        raise BadImport(
            f"{path}: {OUTPUT} has {len(output)} rows for {len(tokens)} token_ids; one less is expected: export again"
        )
    if tokens is not None:
        too_many = len(output) > 0 and len(output) == len(tokens)
    else:
        too_many = len(output) > 0 and output.shape[2] > 1 and bool((output[-1] == output[-1, :, :1]).all())
    return (output[:-1], {"last_row_dropped": f"row {len(output) - 1} of {OUTPUT}"}) if too_many else (output, {})


def _routed(prompt: np.ndarray, output: np.ndarray, moe_layers: np.ndarray) -> RoutedRows:
    """Prefill as one layer-major pass, then one pass per generated token."""
    (n_prompt, n_layers, k), n_output = prompt.shape, len(output)
    is_decode = np.repeat([False, True], (n_prompt * n_layers, n_output * n_layers))
    step = np.repeat(np.arange(n_output), n_layers)
    return RoutedRows(
        request_id=np.zeros(len(is_decode), np.int64),
        position=np.concatenate((np.tile(np.arange(n_prompt), n_layers), n_prompt + step)),
        layer=np.concatenate((np.repeat(moe_layers, n_prompt), np.tile(moe_layers, n_output))),
        pass_id=np.concatenate((np.zeros(n_prompt * n_layers, np.int64), int(n_prompt > 0) + step)),
        is_decode=is_decode,
        expert_ids=np.concatenate((prompt.transpose(1, 0, 2).reshape(-1, k), output.reshape(-1, k))),
    )
