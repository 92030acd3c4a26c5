"""Lookups as libCacheSim's oracleGeneral: what its readers, and caches that must know the future, take as they are.

Records of 24 bytes, little-endian, packed: u32 time, u64 object, u32 bytes, i64 number of the next request for it, the largest
i64 where there is none (1a1a11a/libCacheSim, libCacheSim/traceReader/customizedReader/oracle/oracleGeneralBin.h).
"""

import numpy as np
from numpy.typing import NDArray

from tokentape.replay.stream import Stream
from tokentape.replay.trace import Trace

RECORD = np.dtype([("time", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next", "<i8")])


def oracle_general(
    keys: NDArray[np.int32], sizes: NDArray[np.int64] | int = 1, times: NDArray[np.integer] | None = None
) -> NDArray[np.void]:
    """Records of `keys` in their order: ids from 1, bytes of each lookup, times (else its number).

    Raises ValueError for an object of 4 GiB or more, which the format cannot say.
    """
    if np.max(sizes) >= 1 << 32:
        raise ValueError(f"an expert of {np.max(sizes):,} bytes does not fit oracleGeneral's 32 bits; give --expert-format int4")
    records = np.zeros(keys.size, RECORD)
    records["time"] = np.arange(keys.size) if times is None else times
    records["id"] = keys.astype(np.int64) + 1
    records["size"] = sizes
    order = np.argsort(keys, kind="stable")
    again = keys[order][1:] == keys[order][:-1]
    records["next"] = np.iinfo(np.int64).max
    records["next"][order[:-1][again]] = order[1:][again]
    return records


def of_lookups(trace: Trace, looked_up: Stream, layer: int | None, expert_bytes: tuple[int, ...]) -> NDArray[np.void]:
    """Of a tape's lookups, or of one layer's (as the model numbers it): objects are layer x experts + expert + 1, times passes.

    Raises ValueError for a layer without experts.
    """
    of_layer = looked_up.keys // trace.geometry.n_experts
    taken = np.ones(of_layer.size, np.bool_)
    if layer is not None:
        if layer not in trace.geometry.moe_layers:
            raise ValueError(f"layer {layer} has no experts; those with are {', '.join(map(str, trace.geometry.moe_layers))}")
        taken = of_layer == trace.geometry.moe_layers.index(layer)
    passes = np.repeat(looked_up.event_pass, np.diff(looked_up.offsets))
    return oracle_general(looked_up.keys[taken], np.array(expert_bytes)[of_layer][taken], passes[taken])
