"""The datasheet numbers of one GPU that operator times follow from."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tokentape.hw.operators.shapes import Floats

# Fixed costs of kernels and tiles are cycles; constants state them in seconds at this clock, an H100's.
REFERENCE_HZ = 1.755e9
# The L2 cache feeds every SM with as many bytes in a cycle: a fifth of the 64 that its port takes. Chosen for all devices with
# the L40S and RTX PRO 6000 tables in view, as is the sharpness with which a footprint that outgrows the cache is missed.
_L2_BYTES_PER_CYCLE = 12.8
_L2_SHARPNESS = 6.0
COLD = 1e18  # a footprint that no cache holds


class Gpu(NamedTuple):
    """Datasheet numbers of one GPU that operator times follow from.

    n_sms: streaming multiprocessors; clock_hz: the clock at which the peaks hold; peak_ops_per_s: dense tensor throughput of
    the operands' dtype (a multiply-add is two); peak_bytes_per_s: off-chip memory; l2_bytes: last-level cache;
    smem_bytes_per_sm: shared memory that one SM's thread blocks can use together; capability: CUDA's compute capability (8.0:
    A100, 8.9: Ada, 9.0: Hopper, 10.x: data-centre Blackwell, 12.x: other Blackwell), which decides the kernels that run.
    """

    n_sms: float
    clock_hz: float
    peak_ops_per_s: float
    peak_bytes_per_s: float
    l2_bytes: float
    smem_bytes_per_sm: float
    capability: float


def slower(gpu: Gpu) -> float:
    """How much longer a cycle is than an H100's."""
    return REFERENCE_HZ / gpu.clock_hz


def s_per_byte(gpu: Gpu, efficiency_frac: float, footprint_bytes: Floats) -> Floats:
    """Seconds per byte that is read again after `footprint_bytes` of others, from L2 where they fit; (n,)."""
    memory = gpu.peak_bytes_per_s * efficiency_frac
    l2 = np.maximum(_L2_BYTES_PER_CYCLE * gpu.n_sms * gpu.clock_hz, memory)
    hit = 1.0 / (1.0 + (footprint_bytes / gpu.l2_bytes) ** _L2_SHARPNESS)
    return hit / l2 + (1.0 - hit) / memory
