"""libCacheSim (PyPI: libcachesim) as the peer: the same lookups through its native reader, unit sizes."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

RECORD = np.dtype([("time", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next", "<i8")])  # its oracleGeneral format
POLICIES = {"lru": "LRU", "lfu": "LFU", "belady": "Belady"}


def write_trace(keys: NDArray[np.int32], path: Path) -> None:
    """oracleGeneral file of `keys`: ids from 1, unit sizes, next-access times filled in (Belady needs them)."""
    records = np.zeros(keys.size, RECORD)
    records["time"], records["id"], records["size"] = np.arange(keys.size), keys + 1, 1
    order = np.argsort(keys, kind="stable")
    again = keys[order][1:] == keys[order][:-1]
    records["next"] = np.iinfo(np.int64).max
    records["next"][order[:-1][again]] = order[1:][again]
    records.tofile(path)


def peer_run(path: Path, policy: str, capacity: int) -> tuple[float, float]:
    """Miss ratio and CPU seconds of libCacheSim's native loop over an oracleGeneral file, hashpower 14."""
    import libcachesim

    reader = libcachesim.TraceReader(
        str(path), libcachesim.TraceType.ORACLE_GENERAL_TRACE, libcachesim.ReaderInitParam(ignore_obj_size=True)
    )
    cache = getattr(libcachesim, POLICIES[policy])(capacity, hashpower=14)
    started = time.process_time()
    miss_ratio, _ = cache.process_trace(reader)
    return float(miss_ratio), time.process_time() - started


def peer_miss_ratio(keys: NDArray[np.int32], policy: str, capacity: int) -> float:
    """Miss ratio of `keys` at `capacity` experts, as libCacheSim counts it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.oracleGeneral"
        write_trace(keys, path)
        return peer_run(path, policy, capacity)[0]
