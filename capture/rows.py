"""Arrow columns from flat arrays and offsets, as the tape's tables want them, and the rows of table `requests`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import torch

from tokentape.capture.live.loop import Outcome, Request


def request_rows(requests: Sequence[Request], outcomes: Sequence[Outcome], dataset: str) -> pa.Table:
    n = len(requests)
    return pa.table(
        {
            "request_id": np.array([r.request_id for r in requests], dtype=np.uint32),
            "dataset": pa.array([dataset] * n),
            "arrival_s": np.zeros(n),
            "n_prompt_tokens": np.array([len(r.prompt_ids) for r in requests], dtype=np.uint32),
            "n_output_tokens": np.array([len(o.output_ids) for o in outcomes], dtype=np.uint32),
            "prompt_sha256": pa.array([_sha256(r.prompt_ids) for r in requests]),
        }
    )


def _sha256(ids: Sequence[int]) -> str:
    return hashlib.sha256(np.array(ids, dtype="<i4").tobytes()).hexdigest()


def refuse_nan(values: np.ndarray, column: str, keys: dict[str, np.ndarray]) -> None:
    bad = np.isnan(values).any(axis=1)
    if bad.any():
        at = {name: keys[name][bad.argmax()] for name in ("request_id", "position", "layer")}
        raise ValueError(
            f"{column}: NaN at request {at['request_id']}, position {at['position']}, layer {at['layer']}; "
            "the model's numbers overflow: use --dtype bfloat16 or float32"
        )


def flat(tensors: Sequence[torch.Tensor]) -> np.ndarray:
    """(L, n, width) per pass -> (rows, width), ordered by pass, layer, token; floats as f32."""
    joined = torch.cat([t.flatten(0, 1) for t in tensors])
    return joined.float().numpy() if joined.is_floating_point() else joined.numpy()


def ranges(lengths: np.ndarray) -> np.ndarray:
    """0, 1, .. lengths[0]-1, 0, 1, .. lengths[1]-1, ..."""
    ends = np.cumsum(lengths)
    within: np.ndarray = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)
    return within


def rows_of(values: np.ndarray) -> pa.ListArray:
    n, width = values.shape
    return lists(np.ascontiguousarray(values).ravel(), np.full(n, width))


def lists(values: np.ndarray, lengths: Sequence[int] | np.ndarray, absent: np.ndarray | None = None) -> pa.ListArray:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    mask = None if absent is None else pa.array(absent)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values), mask=mask)
