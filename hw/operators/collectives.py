"""Time of a collective of values over the GPUs of a node: vLLM's own all-reduce, and NCCL's all-gather or reduce-scatter.

    own all-reduce = stages x launch + hop x (GPUs - 1) + bytes read from peers / (link_frac x link)  up to 8 MiB; NCCL's beyond
    of NCCL        = nccl_launch + nccl_hop x (GPUs - 1) + bytes sent / (nccl_link_frac x link)

- vLLM's kernel reads every peer's values whole (one stage) between two GPUs, and among more while they are small (512 KiB of
  four, 256 KiB of eight); else its share of each, and then the sums (two stages, the second as dear to begin as the kernel: GPUs
  wait for one another again; 4.0 and 5.5 us fitted on their own, for 4.3 and 4.9). It runs on NVLink, or between two GPUs.
- An all-reduce of NCCL sends 2 (n - 1) / n of the values from every GPU, an all-gather or a reduce-scatter half of that.
- link is the machine's peak between two GPUs in one direction (link_bytes_per_s), of tables that of the measured node. What is
  reached of NVLink 3 and 4 and of PCIe 5 is nearly one share: .56 to .65 of vLLM's own, .45 to .78 of NCCL's ring.

Sources: vLLM, csrc/custom_all_reduce.cuh (one and two stages), custom_all_reduce.py (8 MiB; two GPUs without NVLink);
Patarasuk and Yuan, 2009, doi 10.1016/j.jpdc.2008.09.002. Not covered: several nodes, NVSwitch's own
reductions, NCCL's choice of protocols.
"""

from typing import Any

import numpy as np

from tokentape.hw.operators.operator import Floats, Gpu, Operator, Parameter, Shapes, columns

COLUMNS = ("num_gpus", "message_size")  # values of 16 bits: of a reduction on every GPU, of a gather or a scatter of all together
LINK = "link_bytes_per_s"
_LAUNCH = Parameter("launch_s", "s", 4e-6, 5e-7, 1e-4, "start and end of the kernel, with nothing to move")
_HOP = Parameter("hop_s", "s", 5e-7, 1e-9, 2e-5, "a further GPU that takes part")
_RATE = Parameter("link_frac", "frac", 0.6, 0.02, 1.0, "share of the link that one GPU reads its peers at")
_OF_NCCL = (
    Parameter("nccl_launch_s", "s", 6e-6, 5e-7, 1e-3, "start and end of NCCL's kernel, with nothing to move"),
    Parameter("nccl_hop_s", "s", 1e-6, 1e-9, 1e-4, "a further GPU in NCCL's ring"),
    Parameter("nccl_link_frac", "frac", 0.6, 0.02, 1.0, "share of the link that NCCL's ring sends at"),
)
_OWN_BYTES = 8 * 2**20
_ONE_STAGE_BYTES = 2**21  # divided by the GPUs


def _reduce_terms(gpu: Gpu, constants: Floats, n: Floats, values: Floats, link_bytes_per_s: Floats) -> tuple[Floats, ...]:
    launch_s, hop_s, link_frac, nccl_launch_s, nccl_hop_s, nccl_link_frac = constants
    n_bytes, ring = 2.0 * values, 2.0 * (n - 1.0) / n
    is_whole = (n == 2) | (n_bytes < _ONE_STAGE_BYTES / n)
    has_nvlink = gpu.capability == 8.0 or (gpu.capability >= 9.0 and gpu.capability < 12.0)
    is_own = (n_bytes < _OWN_BYTES) & ((n == 2) | has_nvlink)
    read_s = n_bytes * np.where(is_whole, n - 1.0, ring) / (link_frac * link_bytes_per_s)
    ring_s = n_bytes * ring / (nccl_link_frac * link_bytes_per_s)
    own_s = np.where(is_whole, 1.0, 2.0) * launch_s + hop_s * (n - 1.0)
    fixed_s = np.where(is_own, own_s, nccl_launch_s + nccl_hop_s * (n - 1.0))
    return fixed_s, np.where(is_own, read_s, ring_s)


def _gather_terms(gpu: Gpu, constants: Floats, n: Floats, values: Floats, link_bytes_per_s: Floats) -> tuple[Floats, ...]:
    launch_s, hop_s, link_frac = constants
    return launch_s + hop_s * (n - 1.0), 2.0 * values * (n - 1.0) / n / (link_frac * link_bytes_per_s)


def _least(shapes: Shapes) -> tuple[Floats, Floats]:
    """Nothing of the GPU's own memory and arithmetic to speak of: what binds is the links between GPUs."""
    (n,) = columns(shapes, COLUMNS[:1])
    return 0.0 * n, 0.0 * n


_SHARED: dict[str, Any] = {
    "columns": COLUMNS,
    "arguments": (*COLUMNS, LINK),
    "grows": ("message_size",),
    "least": _least,
    "regimes": ("launch", "memory"),
}
ALL_REDUCE = Operator(name="all_reduce", parameters=(_LAUNCH, _HOP, _RATE, *_OF_NCCL), terms=_reduce_terms, **_SHARED)
GATHER = Operator(name="gather", parameters=(_LAUNCH, _HOP, _RATE), terms=_gather_terms, **_SHARED)
