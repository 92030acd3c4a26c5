"""Agreement with an engine's own records: does a replay under the engine's semantics find the residency it measured?"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.lru import LRU
from tokentape.replay.experts import look_up, make_cache
from tokentape.replay.semantics import ENGINE_BIGMOE
from tokentape.replay.stream import stream
from tokentape.replay.trace import DECODE, Trace


@dataclass(frozen=True)
class Agreement:
    """Decode rows that agree with the recording, and the hit rates of the replay over unique lookups."""

    n_decode_rows: int
    n_agree: int
    n_hits: int
    n_lookups: int
    n_decode_hits: int
    n_prefill_misses: int
    backing_bytes: int
    first_difference: int | None  # index of the first decode lookup that differs

    @property
    def hit_frac(self) -> float:
        return self.n_hits / self.n_lookups

    @property
    def hit_frac_decode(self) -> float:
        return self.n_decode_hits / self.n_decode_rows if self.n_decode_rows else float("nan")


def verify(trace: Trace, residency: NDArray[np.uint8], budget_bytes: int) -> Agreement:
    """Replays `trace` under the recording engine's semantics and compares with its residency column.

    residency: (ids,) u8, one per recorded expert id in the order of trace.ids (list column `residency` exploded); only decode
    rows are compared, since engines write 0 for all of prefill. Sizes are the recorded ones.
    Raises ValueError if a decode event mentions an expert twice: its residency is then not one number.
    """
    looked_up = stream(trace, ENGINE_BIGMOE)
    cache = make_cache(trace, LRU(), ENGINE_BIGMOE, budget_bytes, "recorded", 0)
    hits = look_up(cache, looked_up, ENGINE_BIGMOE)
    is_decode = np.repeat(trace.pass_kind[looked_up.event_pass] == DECODE, np.diff(looked_up.offsets))
    decode_hits = hits[is_decode]
    recorded = residency[np.repeat(trace.pass_kind[trace.row_pass] == DECODE, np.diff(trace.offsets))]
    if recorded.size != decode_hits.size:
        raise ValueError(
            f"tape {trace.trace_id}: {recorded.size} recorded decode rows but {decode_hits.size} lookups: "
            "a decode event names an expert twice"
        )
    differing = np.flatnonzero(recorded != decode_hits)
    return Agreement(
        n_decode_rows=int(decode_hits.size),
        n_agree=int(decode_hits.size - differing.size),
        n_hits=int(hits.sum()),
        n_lookups=int(hits.size),
        n_decode_hits=int(decode_hits.sum()),
        n_prefill_misses=int((~is_decode & (hits == 0)).sum()),
        backing_bytes=int(np.where(hits, 0, cache.sizes[looked_up.keys]).sum()),
        first_difference=int(differing[0]) if differing.size else None,
    )
