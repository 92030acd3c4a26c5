"""How the attention kernels cut attention into tiles: what the prefill and the decode model share.

Facts of the software, not fitted. vLLM runs FlashAttention 3 on Hopper, TensorRT-LLM's kernels (by FlashInfer) on data-centre
Blackwell, FlashAttention 2 on the others, but FlashInfer's own there where the cache is of 8 bits. Those are taken as
FlashAttention 2, with tiles of 16, 64 or 128 rows (128 where heads are < 256) by the rows of a group's heads, which always share
them, single queries of any group split, one kernel that combines them, and no transposes. The others:

|                              | FlashAttention 2                  | FlashAttention 3                      | TensorRT-LLM      |
|------------------------------|-----------------------------------|---------------------------------------|-------------------|
| query rows per tile          | 64                                | 128, or 192 where heads are <= 64     | 128               |
| keys per block, heads of     | 256 (<= 64), 128 (<= 128), 64     | 128                                   | 128               |
| query heads of a group share | only single queries, no window    | prompts of at most one tile too       | single queries    |
| tiles resident on an SM      | 2 where shared memory >= 160 KiB  | 1                                     | 2                 |
| order of the tiles           | shortest first                    | longest first                         | longest first     |
| keys split over SMs          | single grouped queries, no window | wherever tiles are fewer than SMs     | likewise          |
| time of a block of keys      | 1                                 | 1/2                                   | 1/4               |

Sources: github.com/vllm-project/flash-attention, csrc/flash_attn/flash_api.cpp (set_params_splitkv, mha_varlen_fwd: kBlockM 64,
seqlenq_ngroups_swapped), hopper/tile_size.h (tile_size_fwd_sm90), hopper/heuristics.h (should_pack_gqa),
hopper/flash_prepare_scheduler.cu (num_splits_dynamic); github.com/flashinfer-ai/flashinfer, include/flashinfer/utils.cuh
(FA2DetermineCtaTileQ). TensorRT-LLM's column is assumed: its kernels are closed.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.hw.operators.operator import Floats, Gpu, Shapes, release

BYTES_PER_VALUE = 2  # bf16 and fp16
KV_BITS = {"kv_bits": 16}  # of a cached value
NARROW_HEAD_DIM = 64
# Exponential, maximum and rescaling of one score take the SM as long as this many more head dimensions of multiply-adds.
SOFTMAX_DIMS = 32
# FlashAttention 3 plans for 10 % more blocks per SM than an even share before it splits (flash_prepare_scheduler.cu).
SPLIT_MARGIN = 1.1
# Splitting starts below this many tiles per place for one (num_splits_heuristic: batch_nheads_mblocks >= 0.8 num_SMs).
SPLIT_BELOW = 0.8
_TWO_TILES_SMEM_BYTES = 160 * 1024


def runs_fa3(gpu: Gpu) -> bool:
    """Whether vLLM runs FlashAttention 3 on this GPU."""
    return gpu.capability >= 9.0 and gpu.capability < 10.0


def runs_trtllm(gpu: Gpu) -> bool:
    """Whether vLLM runs TensorRT-LLM's attention on this GPU; where neither, FlashAttention 2."""
    return gpu.capability >= 10.0 and gpu.capability < 12.0


def runs_fa2(gpu: Gpu) -> bool:
    return not runs_fa3(gpu) and not runs_trtllm(gpu)


def runs_flashinfer(gpu: Gpu, kv_bits: Floats) -> NDArray[np.bool_]:
    """Where vLLM runs FlashInfer's kernels in place of FlashAttention 2, which reads no cache of 8 bits, (n,)."""
    return kv_bits < (8.0 * BYTES_PER_VALUE if runs_fa2(gpu) else 0.0)


def tiles_per_sm(gpu: Gpu) -> float:
    """How many tiles an SM holds at once: their fixed costs overlap, their blocks of keys share its arithmetic."""
    return 2.0 if runs_trtllm(gpu) or (runs_fa2(gpu) and gpu.smem_bytes_per_sm >= _TWO_TILES_SMEM_BYTES) else 1.0


def keys_per_block(gpu: Gpu, head_dim: Floats) -> Floats:
    """Keys that a tile takes at a time, (n,)."""
    if not runs_fa2(gpu):
        return 128.0 + 0.0 * head_dim
    return np.where(head_dim <= NARROW_HEAD_DIM, 256.0, np.where(head_dim <= 128.0, 128.0, 64.0))


def block_share(gpu: Gpu) -> float:
    """Time of a block of keys, in that of FlashAttention 2 on an SM of the same clock."""
    return 0.25 if runs_trtllm(gpu) else 0.5 if runs_fa3(gpu) else 1.0


def window(window_size: Floats) -> Floats:
    """Tokens in sight, infinite where the window is 0: every key is visible."""
    return np.where(window_size > 0, window_size, np.inf)


def of_table(version: str, kernels: NDArray[np.str_], shapes: Shapes) -> dict[str, NDArray[Any]]:
    """Arguments that a measured table has no column for: one call is repeated (is_warm), and in which versions of vLLM it also
    writes the paged cache (stores_kv): outside from 0.16 on (github.com/vllm-project/vllm/pull/25954), while the tables of 0.24
    time both again. Raises ValueError if the version is none."""
    stored = not (0, 16) <= release(version) < (0, 24)
    return {"stores_kv": np.full(kernels.size, float(stored)), "is_warm": np.ones(kernels.size)}
