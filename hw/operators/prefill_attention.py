"""Time of prefill attention: causal self-attention over whole prompts, in vLLM with FlashAttention.

    seconds  = launch + compute + (1 - OVERLAP) x memory + cache write
    compute  = the busiest SM: tiles of queries, each walking the key blocks that it may see (hw/operators/flash_attention.py)
    tile     = tile_s + blocks x block time                  block time = tensor operations and softmax of one block on one SM
    memory   = Q, K, V and O once, at e_memory of the peak bandwidth

Tiles are dealt to SMs: an even share, plus what the last, partly filled wave leaves idle, never less than the longest tile.
FlashAttention 2 starts each head's shortest tile first and so ends on a longest one. FlashAttention 3 starts with the longest,
packs the query heads of a group into one tile while the prompt fits in it, and splits the keys where tiles are too few for the
SMs: that takes a second kernel, hence a second launch. FlashAttention 2 transposes grouped single queries: again one more.

Up to vLLM 0.15 the operator also stored K and V in the paged cache; from 0.16 on (github.com/vllm-project/vllm/pull/25954) it is
written outside. Shapes say so by `stores_kv` (of_version gives it for a version of vLLM); without it the write is counted.

Not covered: chunked prefill over an existing cache, prompts of unequal length in a batch, fp8.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokentape.hw.operators.flash_attention import (
    BYTES_PER_VALUE,
    KEYS_PER_BLOCK,
    NARROW_HEAD_DIM,
    SPLIT_BELOW,
    SPLIT_MARGIN,
    block_seconds,
    runs_fa3,
    tiles_per_sm,
    window,
)
from tokentape.hw.operators.operator import Floats, Gpu, Operator, Parameter, Shapes, Terms, columns, release, where

# Prompts of isl tokens; window_size in tokens, 0: none; stores_kv: 0 or 1, which no measured table says.
COLUMNS = ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "window_size")
ARGUMENTS = (*COLUMNS, "stores_kv")
DEFAULTS = {"window_size": 0, "stores_kv": 1}
PARAMETERS = (
    Parameter("launch_s", "s", 7e-6, 1e-6, 3e-5, "start and end of a kernel with nothing to do"),
    Parameter("tile_s", "s", 2e-6, 1e-8, 2e-5, "what a tile costs an SM before its first and after its last block of keys"),
    Parameter(
        "e_compute", "frac", 0.6, 0.05, 1.2, "share of the tensor peak in a block of keys, softmax counted as 32 head dimensions"
    ),
    Parameter("e_memory", "frac", 0.7, 0.05, 1.0, "share of the peak bandwidth when reading Q, K, V and writing O"),
)

# Half of the memory time hides behind the arithmetic of other tiles.
_OVERLAP = 0.5
# First vLLM that writes the KV cache outside of the attention operator.
_CACHE_WRITTEN_OUTSIDE_FROM = (0, 16)


def of_version(version: str) -> dict[str, float]:
    """Arguments that follow from the version of vLLM: stores_kv, 1 or 0. Raises ValueError if the text is not a version."""
    return {"stores_kv": float(release(version) < _CACHE_WRITTEN_OUTSIDE_FROM)}


def time(gpu: Gpu, constants: Floats, *arguments: Floats) -> Floats:
    """Seconds of calls."""
    return _whole(_terms(gpu, constants, *arguments))


def _whole(terms: Terms) -> Floats:
    return terms.launch_s + terms.compute_s + terms.memory_s


def least(shapes: Shapes) -> tuple[Floats, Floats]:
    """The pairs that a causal window lets see each other; Q, K, V and O once."""
    batch, isl, heads, kv_heads, head_dim, window_size, _ = columns(shapes, ARGUMENTS, DEFAULTS)
    seen = np.minimum(isl, window(window_size))
    pairs = seen * (seen + 1.0) / 2.0 + (isl - seen) * seen
    return 4.0 * batch * heads * head_dim * pairs, BYTES_PER_VALUE * batch * isl * head_dim * 2.0 * (heads + kv_heads)


def _terms(gpu: Gpu, constants: Floats, *arguments: Floats) -> Terms:
    batch, isl, heads, kv_heads, head_dim, window_size, stores_kv = arguments
    launch_s, _, _, e_memory = constants
    compute_s, launches = _compute(gpu, constants, batch, isl, heads, kv_heads, head_dim, window(window_size))
    bytes_per_s = gpu.peak_bytes_per_s * e_memory
    moved_bytes = BYTES_PER_VALUE * batch * isl * head_dim * 2.0 * (heads + kv_heads)
    stored_bytes = BYTES_PER_VALUE * batch * isl * head_dim * 4.0 * kv_heads * stores_kv
    memory_s = ((1.0 - _OVERLAP) * moved_bytes + stored_bytes) / bytes_per_s
    return Terms(launch_s * launches, compute_s, memory_s)


def _compute(
    gpu: Gpu,
    constants: NDArray[np.float64],
    batch: Floats,
    isl: Floats,
    heads: Floats,
    kv_heads: Floats,
    head_dim: Floats,
    window_tokens: Floats,
) -> tuple[Floats, Floats]:
    """Seconds of the busiest SM and the number of kernel launches, both (n,)."""
    launch_s, tile_s, e_compute, _ = constants
    fa3 = runs_fa3(gpu)
    group = heads / kv_heads
    tile_rows = where(head_dim <= NARROW_HEAD_DIM, 192.0, 128.0) if fa3 else 64.0 + 0.0 * isl
    packed = isl <= tile_rows if fa3 else isl == 1
    tiles_per_head = where(packed, np.ceil(isl * group / tile_rows), np.ceil(isl / tile_rows))
    tiles = batch * where(packed, kv_heads, heads) * tiles_per_head
    ramp = (tiles_per_head > 1) & ~packed  # packed tiles and lone tiles all see the same keys
    longest, mean = _key_blocks(isl, tile_rows, window_tokens, ramp)

    rows = where(isl * group <= 64, 64.0, tile_rows)
    block_s = block_seconds(gpu, e_compute, rows, head_dim)
    longest_s = tile_s + longest * block_s
    shortest_s = tile_s + where(ramp, 1.0, longest) * block_s
    waves = tiles / gpu.n_sms
    share_s = waves * (tile_s / tiles_per_sm(gpu) + mean * block_s)
    idle_s = (np.ceil(waves) - waves) * shortest_s
    launches = 1.0 + 0.0 * isl
    if not fa3:
        last_s = where(ramp & (waves > 1), longest_s - shortest_s, 0.0)
        transposed = (isl == 1) & (batch > 1) & (group > 1) & (kv_heads > 1)
        return np.maximum(longest_s, share_s + idle_s + last_s), launches + 1.0 * transposed
    whole_s = np.maximum(longest_s, share_s + idle_s)
    split_s = tile_s + (SPLIT_MARGIN * waves * mean + 1.0) * block_s
    split = (waves < SPLIT_BELOW) & (longest > 4) & (split_s + launch_s < whole_s)
    return where(split, split_s, whole_s), launches + 1.0 * split


def _key_blocks(isl: Floats, tile_rows: Floats, window_tokens: Floats, ramp: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Key blocks of a head's longest tile and of its mean tile, both (n,): causal tiles see a ramp up to the window."""
    reach = np.minimum(isl, window_tokens + np.minimum(tile_rows, isl))
    longest = np.ceil(reach / KEYS_PER_BLOCK)
    mean_keys = reach - reach**2 / (2.0 * isl) + tile_rows / 2.0
    rounding = np.maximum(0.0, 0.5 * (1.0 - tile_rows / KEYS_PER_BLOCK))  # a tile narrower than a block pays for whole blocks
    mean = np.minimum(np.maximum(mean_keys / KEYS_PER_BLOCK + rounding, 1.0), longest)
    return longest, where(ramp, mean, longest)


PREFILL_ATTENTION = Operator(
    name="prefill_attention",
    arguments=ARGUMENTS,
    defaults=DEFAULTS,
    columns=COLUMNS,
    parameters=PARAMETERS,
    terms=_terms,
    whole=_whole,
    time=time,
    least=least,
    of_version=of_version,
)
