"""One forward pass of a replay as named operations on the machine's resources, layer by layer, as its cost has them."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tokentape.hw.profile import PHYSICAL
from tokentape.hw.spec import HardwareSpec
from tokentape.replay.operations import operations_of
from tokentape.replay.passes import pass_costs
from tokentape.replay.semantics import Semantics
from tokentape.replay.trace import Trace


def replay_step(
    trace: Trace,
    lookups: NDArray[np.int64],
    hardware: HardwareSpec,
    semantics: Semantics,
    weight_format: str,
    pass_id: int,
    profile: str = PHYSICAL,
) -> pl.DataFrame:
    """Operations of pass `pass_id` of a replay. lookups: what it found, as passes.costs_of takes it; weight_format: of all but
    the experts. Raises ValueError if the tape has no such pass."""
    found = np.flatnonzero(trace.pass_ids == pass_id)
    if not found.size:
        first, last = trace.pass_ids[0], trace.pass_ids[-1]
        raise ValueError(f"tape {trace.trace_id} has no pass {pass_id}; its passes run from {first} to {last}")
    at = int(found[0])
    part = trace.between(at, at + 1)
    work, cost = pass_costs(part, hardware, semantics, weight_format, profile, lookups[:, at : at + 1], by_layer=True)
    return operations_of(work, cost, hardware, 0)
