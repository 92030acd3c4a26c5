"""The datasheet numbers of one GPU that operator times follow from."""

from __future__ import annotations

from typing import NamedTuple


class Gpu(NamedTuple):
    """Datasheet numbers of one GPU that operator times follow from.

    n_sms: streaming multiprocessors; clock_hz: the clock at which the peaks hold; peak_ops_per_s: dense tensor throughput of
    the operands' dtype (a multiply-add is two); peak_bytes_per_s: off-chip memory; l2_bytes: last-level cache;
    smem_bytes_per_sm: shared memory that one SM's thread blocks can use together.
    """

    n_sms: float
    clock_hz: float
    peak_ops_per_s: float
    peak_bytes_per_s: float
    l2_bytes: float
    smem_bytes_per_sm: float
