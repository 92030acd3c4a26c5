"""Seconds of one decode step in one layer on a GPU with near-data processing. Source: specification section 5, forms assumed.

    ndp(e, b) = max(bytes b / 16 / NDP bandwidth, c_e ops / (NDP ops 16 / b))        serial over the NDP's experts
    gpu(e)    = max(bytes / HBM bandwidth, c_e ops / GPU ops)                         serial over the GPU's experts
    other     = attention weights + KV of the batch + a fixed time
    step      = other + moved experts over the link + max(activations + sum ndp, sum gpu)

c_e tokens of the batch go to expert e; one without tokens costs nothing. Shared experts are the GPU's. HOBBIT's fetched experts
are the GPU's too. The compiled functions here are the kernel's (kernel.py).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokentape.hw.cxl_ndp_knobs import Knobs
from tokentape.policies.kernels import array, boolean, float64, int64, kernel, named_tuple, uint8, void
from tokentape.replay.cxl_ndp.system import FP16_BITS, Machine, Shape, System

Floats = NDArray[np.float64]
# Columns of a step: seconds, then counts. NDP without its activations, which are ACTIVATION; TRANSFER is the link's time for
# weights; WAIT, what ACTIVATION and NDP take beyond GPU; NDP_FP16, what the NDP's experts would take at 16 bits. MOVED: experts
# over the link. HITS, ON_NDP, TOKENS: token-experts. READS: experts that the NDP reads, in FP16 experts.
STEP, OTHER, GPU, NDP, ACTIVATION, TRANSFER, WAIT, NDP_FP16, MOVED, HITS, ON_NDP, TOKENS, READS = range(13)
N_PARTS = 13


class Unit(NamedTuple):
    """Seconds of a unit of work, of one model on one machine; all are floats so that a kernel takes them as they are."""

    ndp_read: float  # one expert, per bit of width
    ndp_token: float  # one token in one FP16 expert on the NDP
    ndp_scales: float  # 1: computing takes bits / 16 of it; 0: it does not
    activation: float  # one token on one expert, to the NDP and back
    exchange: float  # of a step that uses the NDP
    gpu_read: float  # one expert from HBM
    gpu_token: float
    shared_read: float
    shared_token: float
    fetch: float  # one expert over the link, per bit of width
    fixed: float  # a layer, attention weights read
    sequence: float  # KV of one sequence in a layer


UNIT = named_tuple(float64, Unit)
_F64, _I64, _U8 = (array(t, 1) for t in (float64, int64, uint8))


def unit_of(shape: Shape, machine: Machine, knobs: Knobs, system: System) -> Unit:
    """Seconds of every unit of work."""
    link = knobs.link_frac * machine.link_bytes_per_s
    gpu_ops = knobs.decode_ops_frac * machine.gpu_ops_per_s
    return Unit(
        ndp_read=shape.expert_bytes / FP16_BITS / machine.ndp_bytes_per_s,
        ndp_token=shape.expert_ops / machine.ndp_ops_per_s,
        ndp_scales=float(system.compute_scales),
        activation=shape.activation_bytes / link,
        exchange=machine.link_latency_s,
        gpu_read=shape.expert_bytes / machine.hbm_bytes_per_s,
        gpu_token=shape.expert_ops / gpu_ops,
        shared_read=2 * shape.shared_params / (knobs.attention_read_frac * machine.hbm_bytes_per_s),
        shared_token=2 * shape.shared_params / gpu_ops,
        fetch=shape.expert_bytes / FP16_BITS / link,
        fixed=knobs.fixed_s + shape.attention_bytes / (knobs.attention_read_frac * machine.hbm_bytes_per_s),
        sequence=shape.kv_bytes(knobs.context_tokens) / (knobs.kv_read_frac * machine.hbm_bytes_per_s),
    )


@kernel(float64(int64, float64, UNIT))
def ndp_s(n_tokens, bits, unit):  # type: ignore[no-untyped-def]
    """One expert of `bits` in the NDP."""
    if n_tokens == 0:
        return 0.0
    width = bits / 16.0 if unit.ndp_scales > 0.0 else 1.0
    return max(bits * unit.ndp_read, n_tokens * unit.ndp_token * width)


@kernel(float64(int64, UNIT))
def gpu_s(n_tokens, unit):  # type: ignore[no-untyped-def]
    """One FP16 expert on the GPU."""
    return max(unit.gpu_read, n_tokens * unit.gpu_token) if n_tokens > 0 else 0.0


@kernel(float64(int64, UNIT))
def other_s(batch, unit):  # type: ignore[no-untyped-def]
    """A layer without its experts: T_o."""
    return unit.fixed + batch * unit.sequence


@kernel(void(_I64, _U8, _F64, int64, int64, boolean, boolean, float64, UNIT, _F64))
def layer_step(  # type: ignore[no-untyped-def]
    counts, resident, bits, batch, n_migrated, fetches, overlaps, moved_bits, unit, parts
):
    """Adds one layer-step to `parts` (N_PARTS,). counts (E,) tokens, resident (E,) flags, bits (E,) of the NDP's experts.

    n_migrated: experts that crossed the link before the step. fetches: so do all active ones that are not resident, to compute
    on the GPU.
    """
    gpu = max(unit.shared_read, batch * unit.shared_token)
    ndp, full, on_ndp, n_moved = 0.0, 0.0, 0, n_migrated
    for e in range(counts.shape[0]):
        n = counts[e]
        parts[TOKENS] += n
        if n == 0:
            continue
        if resident[e]:
            parts[HITS] += n
            gpu += gpu_s(n, unit)
        elif fetches:
            n_moved += 1
            gpu += gpu_s(n, unit)
        else:
            on_ndp += n
            ndp += ndp_s(n, bits[e], unit)
            full += ndp_s(n, 16.0, unit)
            parts[READS] += bits[e] / 16.0
    activation = on_ndp * unit.activation + unit.exchange if on_ndp else 0.0
    transfer = n_moved * moved_bits * unit.fetch
    wait = max(0.0, activation + ndp - gpu)
    other, compute = other_s(batch, unit), gpu + wait
    parts[STEP] += other + (max(transfer, compute) if overlaps else transfer + compute)
    parts[OTHER] += other
    parts[GPU] += gpu
    parts[NDP] += ndp
    parts[ACTIVATION] += activation
    parts[TRANSFER] += transfer
    parts[WAIT] += wait
    parts[NDP_FP16] += full
    parts[MOVED] += n_moved
    parts[ON_NDP] += on_ndp


def dense_s(shape: Shape, machine: Machine, knobs: Knobs, unit: Unit, batch: NDArray[np.integer]) -> Floats:
    """Seconds of all layers without experts in a decode step of `batch` sequences each (any shape); 0 where none decodes."""
    read = 2 * shape.dense_params / (knobs.attention_read_frac * machine.hbm_bytes_per_s)
    compute = batch * (2 * shape.dense_params / (knobs.decode_ops_frac * machine.gpu_ops_per_s))
    seconds = unit.fixed + batch * unit.sequence + np.maximum(read, compute)
    return np.where(batch > 0, shape.n_dense_layers * seconds, 0.0)
