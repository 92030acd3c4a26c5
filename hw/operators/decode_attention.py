"""Time of decode attention: one new query per sequence over its cached keys and values, as vLLM runs it.

    seconds = launch + further kernels + (compute^3 + memory^3)^(1/3)
    compute = waves over the SMs x (tile_s + blocks x block time)              tiles and blocks: hw/operators/flash_attention.py
    memory  = K, V, queries, outputs and partial outputs, at e_memory of the peak bandwidth

One tile is one KV head of one sequence; the queries of its group fill a few of the tile's 64 rows, the rest is computed for
nothing, so that an SM takes the same time over a block of keys whether 1 or 64 heads share it. Where tiles are few, the keys are
split: a further kernel combines the parts, 32 at a time. FlashAttention 2 splits grouped heads only (multi-head attention walks
the whole context on one SM per head) and transposes grouped queries in further kernels where there are several sequences and KV
heads; with a window it does neither, and every query head is a tile. Its grid goes head by head, so that one of the last tiles is
of the longest context (longest; 0 where all are alike) and goes on by itself when the others have ended. With prompts in the same
call (prompt_tokens) it walks the decodes as it does prompts: reading the cache is told here, what walking takes beyond it with
prefill attention. FlashAttention 3 splits everything. With a window it takes narrow heads (64) in tiles of 192 rows and does not
overlap their softmax with arithmetic (hopper/tile_size.h, IntraWGOverlap = !is_local): all 192 cost time. FlashInfer's kernels,
for caches of 8 bits where FlashAttention 2 would run, split everything, transpose nothing and leave prompts to another call.
Writing the new keys and values into the cache is one more kernel (stores_kv). Kernels count as 3 (FlashAttention 2, transposes
and combination) or 1.

Fixed costs and blocks are cycles. A benchmark that repeats one call (is_warm) finds in L2 what fits there; within a model the
cache comes from memory (the default). Times never fall as the context grows; they may as the batch grows past the point where
splitting ends.

Not covered: cascades, more than one query per sequence.
"""

import numpy as np
from numpy.typing import NDArray

from tokentape.hw.operators import flash_attention as flash
from tokentape.hw.operators.operator import COLD, Floats, Gpu, Operator, Parameter, Shapes, columns

# Sequences with a context of isl + step tokens, the new one included; window_size in tokens, 0: none.
COLUMNS = ("batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim", "window_size")
ARGUMENTS = (*COLUMNS, "stores_kv", "is_warm", "prompt_tokens", "kv_bits", "longest")
DEFAULTS = {"step": 0, "window_size": 0, "stores_kv": 1, "is_warm": 0, "prompt_tokens": 0, **flash.KV_BITS, "longest": 0}
PARAMETERS = (
    Parameter("launch_s", "s", 8e-6, 1e-6, 3e-5, "start and end of a kernel with nothing to do"),
    Parameter("further_kernel_s", "s", 1e-6, 1e-8, 1e-5, "a further kernel: the cache's write, combining up to 32 parts"),
    Parameter("tile_s", "s", 2e-6, 1e-8, 2e-5, "what a tile costs an SM before its first and after its last block of keys"),
    Parameter("block_s", "s", 1e-6, 1e-8, 2e-5, "64 queries of 128 dimensions through 128 keys in FlashAttention 2"),
    Parameter("e_memory", "frac", 0.8, 0.05, 1.0, "share of the peak bandwidth when reading the cache"),
)

_TILE_ROWS = 64.0
_WINDOWED_NARROW_ROWS = 192.0
_MAX_SPLITS = 128.0  # flash_api.cpp: "num_splits > 128 not supported"
_PARTS_PER_PASS = 32.0
_BYTES_PER_PARTIAL = 4  # partial outputs are f32


def least(shapes: Shapes) -> tuple[Floats, Floats]:
    """The keys and values in sight, read once for all heads that share them."""
    batch, isl, step, heads, kv_heads, head_dim, window_size, kv_bits = columns(shapes, (*COLUMNS, "kv_bits"), DEFAULTS)
    seen = np.minimum(isl + step, flash.window(window_size))
    return 4.0 * batch * heads * head_dim * seen, kv_bits / 4.0 * batch * kv_heads * head_dim * seen


def _terms(gpu: Gpu, constants: Floats, *arguments: Floats) -> tuple[Floats, ...]:
    batch, isl, step, heads, kv_heads, head_dim, window_size, stored, is_warm, prompt_tokens, kv_bits, longest = arguments
    launch_s, further_kernel_s, tile_s, block_s, e_memory = constants
    launch_s, further_kernel_s = launch_s * gpu.slower, further_kernel_s * gpu.slower
    tile_s, block_s = tile_s * gpu.slower, block_s * gpu.slower
    context, window_tokens, block = isl + step, flash.window(window_size), flash.keys_per_block(gpu, head_dim)
    cut = context > window_tokens
    keys = np.where(cut, window_tokens + 1.0, context)
    blocks = np.ceil(keys / block)
    group = heads / kv_heads
    shared = flash.runs_flashinfer(gpu, kv_bits)
    packs = (window_size == 0) | (not flash.runs_fa2(gpu)) | shared
    tiles = batch * np.where(packs, kv_heads * np.ceil(group / _TILE_ROWS), heads)
    splits, places = _splits(gpu, tiles, blocks, ((group > 1) & packs) | shared)

    rows = (
        np.where(cut & (head_dim <= flash.NARROW_HEAD_DIM) & flash.runs_fa3(gpu), _WINDOWED_NARROW_ROWS, _TILE_ROWS) / _TILE_ROWS
    )
    each_s = (
        block_s * flash.block_share(gpu) * rows * block / 128.0 * (head_dim + flash.SOFTMAX_DIMS) / (128.0 + flash.SOFTMAX_DIMS)
    )
    walk_s = np.ceil(blocks / splits) * each_s
    compute_s = np.ceil(places / gpu.n_sms) * walk_s + np.ceil(places / (gpu.n_sms * flash.tiles_per_sm(gpu))) * tile_s

    read = np.where(cut & flash.runs_fa2(gpu), blocks * block, keys)
    cache_bytes = kv_bits / 4.0 * batch * kv_heads * read * head_dim
    partial_bytes = np.where(splits > 1, 2.0 * _BYTES_PER_PARTIAL * splits, 0.0)
    query_bytes = (2.0 * flash.BYTES_PER_VALUE + partial_bytes) * batch * heads * head_dim
    memory_s = (cache_bytes + query_bytes) * gpu.s_per_byte(e_memory, np.where(is_warm > 0, cache_bytes, COLD))

    combining = np.where(splits > 1, 1.0 + splits / _PARTS_PER_PASS, 0.0)
    kernels = 0.0 if flash.runs_trtllm(gpu) else np.where(shared, 1.0, 3.0) if flash.runs_fa2(gpu) else 1.0
    further = stored + combining * kernels + 1.0 * flash.runs_fa3(gpu)
    start_s = launch_s + further * further_kernel_s
    if flash.runs_fa2(gpu):
        start_s = start_s + 3.0 * (packs & ~shared & (group > 1) & (batch > 1) & (kv_heads > 1)) * further_kernel_s
        more = np.maximum(np.ceil(np.minimum(longest, window_tokens + 1.0) / block) - blocks, 0.0)
        start_s = start_s + np.where(shared, 0.0, np.ceil(more / splits) * each_s)
    is_beside = (prompt_tokens > 0) & ~shared & flash.runs_fa2(gpu)
    own, read_s = np.where(is_beside, 0.0, 1.0), cache_bytes * gpu.s_per_byte(e_memory, COLD + 0.0 * cache_bytes)
    return own * start_s, own * compute_s, np.where(is_beside, read_s, memory_s)


def _splits(gpu: Gpu, tiles: Floats, blocks: Floats, may: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Parts into which each tile's keys are cut (1: not at all), and how many tiles or parts there are to place; (n,) each."""
    slots = gpu.n_sms * flash.tiles_per_sm(gpu)
    split = (tiles < flash.SPLIT_BELOW * slots) & (blocks > 1)
    if flash.runs_fa2(gpu):
        split = split & may
    parts = np.minimum(np.minimum(blocks, _MAX_SPLITS), slots / (flash.SPLIT_MARGIN * tiles))
    return np.where(split, np.maximum(parts, 1.0), 1.0), np.where(split, np.minimum(tiles * blocks, slots), tiles)


DECODE_ATTENTION = Operator(
    name="decode_attention",
    columns=COLUMNS,
    arguments=ARGUMENTS,
    parameters=PARAMETERS,
    grows=("batch_size", "step"),
    terms=_terms,
    least=least,
    of_table=flash.of_table,
    defaults=DEFAULTS,
    overlap=3.0,  # of compute and memory
)
