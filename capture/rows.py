"""Arrow columns from flat arrays and offsets, as the tape's tables want them, and table `requests`.

From buffers: pa.array imports pandas where that is installed, a fifth of a second, only to ask whether it was given any of it.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, DTypeLike, NDArray


def request_table(
    n_prompt: ArrayLike,
    n_output: ArrayLike,
    dataset: str = "unknown",
    arrival_s: NDArray[np.float64] | None = None,
    ids: ArrayLike | None = None,
    prompts: Sequence[ArrayLike | None] | None = None,
    blocks: Sequence[list[int]] | None = None,
) -> pa.Table:
    """Table `requests`. prompts: token ids of each prompt, where they are known; blocks: of the prompt's prefix. Without arrivals
    they came one after another."""
    n = np.size(n_prompt)
    hashes = (
        [None] * n
        if prompts is None
        else [None if of is None else hashlib.sha256(np.asarray(of, "<i4").tobytes()).hexdigest() for of in prompts]
    )
    columns: dict[str, pa.Array] = {
        "request_id": numbers(np.arange(n) if ids is None else ids, np.uint32),
        "dataset": words([dataset] * n),
        "arrival_s": numbers(np.zeros(n) if arrival_s is None else arrival_s, np.float64),
        "n_prompt_tokens": numbers(n_prompt, np.uint32),
        "n_output_tokens": numbers(n_output, np.uint32),
        "prompt_sha256": words(hashes),
    }
    return pa.table(columns | ({} if blocks is None else {"prefix_blocks": pa.array(blocks, pa.list_(pa.uint32()))}))


def ranges(lengths: np.ndarray) -> np.ndarray:
    """0, 1, .. lengths[0]-1, 0, 1, .. lengths[1]-1, ..."""
    ends = np.cumsum(lengths)
    within: np.ndarray = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)
    return within


def rows_of(values: np.ndarray, kind: DTypeLike | None = None) -> pa.ListArray:
    """(n, k) array -> n lists of k; kind: of the numbers, None: as they are."""
    n, k = values.shape
    return pa.ListArray.from_arrays(numbers(np.arange(n + 1) * k, np.int32), numbers(values.ravel(), kind))


def lists(values: np.ndarray, lengths: Sequence[int] | np.ndarray, absent: np.ndarray | None = None) -> pa.ListArray:
    offsets = numbers(np.concatenate([[0], np.cumsum(lengths)]), np.int32)
    return pa.ListArray.from_arrays(offsets, numbers(values), mask=None if absent is None else pa.array(absent))


def numbers(values: ArrayLike, kind: DTypeLike | None = None, is_known: np.ndarray | None = None) -> pa.Array:
    """(n,) numbers of a type, in the same memory where they have it already; null where they are not known."""
    values = np.ascontiguousarray(values, kind)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [_valid(is_known), pa.py_buffer(values)])


def words(values: Sequence[str | None] | np.ndarray) -> pa.StringArray:
    encoded = [b"" if value is None else value.encode() for value in values]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    valid = _valid(np.array([value is not None for value in values], bool))
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded)), valid)


def _valid(is_known: np.ndarray | None) -> pa.Buffer | None:
    """Arrow's bits of what is not null."""
    return None if is_known is None or is_known.all() else pa.py_buffer(np.packbits(is_known, bitorder="little"))
