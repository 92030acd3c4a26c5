"""libCacheSim (PyPI: libcachesim) as the peer: the same lookups through its native reader, unit sizes."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tokentape.replay.exports.oracle import oracle_general

OTHERS = {"belady": "Belady", "sieve": "Sieve", "s3-fifo": "S3FIFO"}  # the others are called so in capitals


def peer_run(path: Path, policy: str, capacity: int) -> tuple[float, float]:
    """Miss ratio and CPU seconds of libCacheSim's native loop over an oracleGeneral file, hashpower 14."""
    import libcachesim

    reader = libcachesim.TraceReader(
        str(path), libcachesim.TraceType.ORACLE_GENERAL_TRACE, libcachesim.ReaderInitParam(ignore_obj_size=True)
    )
    cache = getattr(libcachesim, OTHERS.get(policy, policy.upper()))(capacity, hashpower=14)
    started = time.process_time()
    miss_ratio, _ = cache.process_trace(reader)
    return float(miss_ratio), time.process_time() - started


def peer_miss_ratio(keys: NDArray[np.int32], policy: str, capacity: int) -> float:
    """Miss ratio of `keys` at `capacity` experts, as libCacheSim counts it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.oracleGeneral"
        oracle_general(keys).tofile(path)
        return peer_run(path, policy, capacity)[0]
