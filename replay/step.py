"""One forward pass of a replay as named operations on the machine's resources, layer by layer, as its cost has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from tokentape.hw.profile import PHYSICAL
from tokentape.hw.spec import HardwareSpec
from tokentape.replay.experts import by_layer, look_up, make_cache
from tokentape.replay.operations import operations_of
from tokentape.replay.passes import pass_costs
from tokentape.replay.semantics import Semantics
from tokentape.replay.stream import stream
from tokentape.replay.trace import Trace


def replay_step(
    trace: Trace,
    policy: Any,
    hardware: HardwareSpec,
    semantics: Semantics,
    capacity_bytes: int,
    expert_format: str,
    seed: int,
    pass_id: int,
    profile: str = PHYSICAL,
) -> pl.DataFrame:
    """Operations of pass `pass_id` of the replay that these arguments give. Raises ValueError if the tape has no such pass."""
    found = np.flatnonzero(trace.pass_ids == pass_id)
    if not found.size:
        first, last = trace.pass_ids[0], trace.pass_ids[-1]
        raise ValueError(f"tape {trace.trace_id} has no pass {pass_id}; its passes run from {first} to {last}")
    looked_up = stream(trace, semantics)
    cache = make_cache(trace, policy, semantics, capacity_bytes, expert_format, seed)
    counts = by_layer(trace, looked_up, look_up(cache, looked_up, semantics), cache.sizes)
    work, cost = pass_costs(trace, hardware, semantics, expert_format, profile, counts)
    return operations_of(work, cost, hardware, int(found[0]))
