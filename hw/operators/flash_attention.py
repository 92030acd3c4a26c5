"""How FlashAttention cuts attention into tiles: what the prefill and the decode model share.

Facts of the software, not fitted. vLLM runs FlashAttention 3 on GPUs with Hopper's shared memory, FlashAttention 2 on the others:

|                              | FlashAttention 2        | FlashAttention 3                             |
|------------------------------|-------------------------|----------------------------------------------|
| query rows per tile          | 64                      | 128, or 192 where the head dimension is <= 64 |
| query heads of a group share | only single queries     | prompts of at most one tile too              |
| tiles resident on an SM      | 2                       | 1                                            |
| order of the tiles           | shortest first          | longest first                                |
| keys split over SMs          | single grouped queries  | wherever tiles are fewer than SMs            |

A tile walks its keys in blocks of 128. Sources: github.com/vllm-project/flash-attention, csrc/flash_attn/flash_api.cpp
(set_params_splitkv, mha_varlen_fwd: kBlockM 64, seqlenq_ngroups_swapped), hopper/tile_size.h (tile_size_fwd_sm90),
hopper/heuristics.h (should_pack_gqa), hopper/flash_prepare_scheduler.cu (num_splits_dynamic).
"""

from __future__ import annotations

import numpy as np

from tokentape.hw.operators.operator import Floats, Gpu, where

KEYS_PER_BLOCK = 128
BYTES_PER_VALUE = 2  # bf16 and fp16
NARROW_HEAD_DIM = 64
# Exponential, maximum and rescaling of one score take the SM as long as this many more head dimensions of multiply-adds.
SOFTMAX_DIMS = 32
# FlashAttention 3 plans for 10 % more blocks per SM than an even share before it splits (flash_prepare_scheduler.cu).
SPLIT_MARGIN = 1.1
# Splitting starts below this many tiles per place for one (num_splits_heuristic: batch_nheads_mblocks >= 0.8 num_SMs).
SPLIT_BELOW = 0.8
# FlashAttention 3's tiles need more shared memory than the 164 KiB of the GPUs before Hopper.
_FA3_SMEM_BYTES = 200 * 1024


def runs_fa3(gpu: Gpu) -> bool:
    """Whether vLLM runs FlashAttention 3 on this GPU, else FlashAttention 2."""
    return gpu.smem_bytes_per_sm > _FA3_SMEM_BYTES


def tiles_per_sm(gpu: Gpu) -> float:
    """How many tiles an SM holds at once: their fixed costs overlap, their blocks of keys share its arithmetic."""
    return 1.0 if runs_fa3(gpu) else 2.0


def window(window_size: Floats) -> Floats:
    """Tokens in sight, infinite where the window is 0: every key is visible."""
    return where(window_size > 0, window_size, np.inf)


def block_seconds(gpu: Gpu, efficiency_frac: float, rows: Floats, head_dim: Floats) -> Floats:
    """Seconds for one SM to take `rows` queries through one block of keys: scores, softmax, weighted sum. All (n,)."""
    ops = 4.0 * rows * KEYS_PER_BLOCK * (head_dim + SOFTMAX_DIMS)
    return ops / (gpu.peak_ops_per_s / gpu.n_sms * efficiency_frac)
