"""Reads weights out of safetensors checkpoints, a piece at a time: one file, a directory (sharded or not), or a cached hub model.

Written from the description of the format (https://github.com/huggingface/safetensors#format): eight bytes of header length,
little-endian; a JSON header of {name: {dtype, shape, data_offsets}}; the data. Needs numpy only. No file is mapped into
memory: the process never holds more of a checkpoint than the piece it works on.
"""

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

EMBEDDED = "embedded"
EMBEDDED_PATH = Path(__file__).resolve().parent / "embedded" / "model"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
LONGEST_HEADER_BYTES = 100_000_000  # as the format's own library
# How a stored value is read; bfloat16 is the upper half of a float32.
FLOATS: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies. dtype: the format's name for it (BF16, F8_E4M3, ...); begin: its first byte in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    begin: int
    n_bytes: int

    @property
    def n_values(self) -> int:
        return math.prod(self.shape)


def stored_tensors(model: str) -> list[StoredTensor]:
    """Every tensor of a checkpoint, in the order of its files.

    model: `embedded`, a .safetensors file, a directory, or a hub id owner/name in the local cache. Raises ValueError or OSError
    with one line for one that is not there, has no safetensors file, lacks a shard, or has a damaged or truncated file.
    """
    return [tensor for path in _files(model) for tensor in _header(path)]


def pieces(tensor: StoredTensor, is_input_first: bool, most_values: int) -> Iterator[np.ndarray]:
    """The tensor as f32 arrays (rows, inputs) of at most `most_values` values, or one row.

    Rows are outputs, in order over all leading axes. is_input_first: matrices stored as (..., inputs, outputs); each is read
    whole and turned. Raises ValueError for a dtype that is no plain float and for a value that is not finite.
    """
    if tensor.dtype not in FLOATS:
        raise ValueError(f"{tensor.path}: {tensor.name} is stored as {tensor.dtype}; give a checkpoint in {', '.join(FLOATS)}")
    *outer, height, width = tensor.shape
    n_rows, n_inputs = math.prod(outer) * height, width
    rows_per_read = height if is_input_first else max(1, most_values // n_inputs)
    with tensor.path.open("rb", buffering=0) as handle:
        handle.seek(tensor.begin)
        for first in range(0, n_rows, rows_per_read):
            n = min(rows_per_read, n_rows - first)
            values = _floats(handle, tensor, first * n_inputs, n * n_inputs).reshape(n, n_inputs)
            if not is_input_first:
                yield values
                continue
            step = max(1, most_values // height)
            for start in range(0, n_inputs, step):
                yield np.ascontiguousarray(values[:, start : start + step].T)


def _floats(handle: Any, tensor: StoredTensor, first: int, n: int) -> np.ndarray:
    """The next n values, f32, of which the first is number `first` of the tensor."""
    kind = FLOATS[tensor.dtype]
    values = np.fromfile(handle, kind, n)
    if values.size < n:
        raise ValueError(f"{tensor.path}: ends inside {tensor.name}; fetch the file again")
    values = (
        (values.astype(np.uint32) << 16).view(np.float32) if tensor.dtype == "BF16" else values.astype(np.float32, copy=False)
    )
    finite = np.isfinite(values)
    if not finite.all():
        flat = int(np.argmin(finite))
        at = [int(i) for i in np.unravel_index(first + flat, tensor.shape)]
        raise ValueError(f"{tensor.path}: {tensor.name} holds {values.flat[flat]} at {at}; weights must be finite")
    return values


def _files(model: str) -> list[Path]:
    path = EMBEDDED_PATH if model == EMBEDDED else Path(model)
    if path.is_file():
        return [path]
    if path.is_dir():
        return _files_of(path, model)
    if model.count("/") == 1 and not model.startswith((".", "/", "~")):
        return _files_of(_cached(model), model)
    raise ValueError(f"{model}: no such file or directory; give {EMBEDDED}, a .safetensors file, a directory or a hub id")


def _files_of(folder: Path, model: str) -> list[Path]:
    if (folder / INDEX).is_file():
        try:
            names = sorted(set(json.loads((folder / INDEX).read_bytes())["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{folder / INDEX}: not an index of shards; fetch the file again") from error
        absent = [name for name in names if not (folder / name).is_file()]
        if absent:
            raise ValueError(f"{model}: {len(absent)} of {len(names)} shards are missing, the first is {absent[0]}; fetch them")
        return [folder / name for name in names]
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    found = sorted(folder.glob("*.safetensors"))
    if not found:
        raise ValueError(f"{model}: no .safetensors file there; save the model with save_pretrained, or fetch its weights")
    return found


def _cached(model: str) -> Path:
    """The hub cache's directory of a model; nothing is downloaded."""
    from transformers.utils.hub import cached_file

    try:
        found = cached_file(model, "config.json", local_files_only=True)
    except (OSError, ValueError) as error:
        raise ValueError(f"{model}: not in the hub's local cache; fetch it with `hf download {model}`, or give a path") from error
    assert found is not None  # what is missing was raised
    return Path(found).parent


def _header(path: Path) -> list[StoredTensor]:
    size = path.stat().st_size
    with path.open("rb") as handle:
        start = handle.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else LONGEST_HEADER_BYTES + 1
        text = handle.read(length) if length <= min(size, LONGEST_HEADER_BYTES) else b""
    try:
        entries = json.loads(text)
        tensors = [_entry(name, entry, path, 8 + length) for name, entry in entries.items() if name != "__metadata__"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: not a safetensors file, or its header is cut off; fetch the file again") from error
    for tensor in tensors:
        if tensor.begin + tensor.n_bytes > size:
            needed = max(t.begin + t.n_bytes for t in tensors)
            raise ValueError(f"{path}: truncated, {size:,} of {needed:,} bytes; fetch the file again")
        item = FLOATS.get(tensor.dtype)
        if item is not None and tensor.n_bytes != tensor.n_values * item.itemsize:
            raise ValueError(f"{path}: {tensor.name} has {tensor.n_bytes:,} bytes for shape {list(tensor.shape)} {tensor.dtype}")
    return sorted(tensors, key=lambda tensor: tensor.begin)


def _entry(name: str, entry: dict[str, Any], path: Path, data: int) -> StoredTensor:
    begin, end = entry["data_offsets"]
    return StoredTensor(name, str(entry["dtype"]), tuple(map(int, entry["shape"])), path, data + begin, end - begin)
