"""Time of decode attention: one new query per sequence over its cached keys and values, in vLLM with FlashAttention.

    seconds = launch + further kernels + (compute^3 + memory^3)^(1/3)
    compute = waves over the SMs x (tile_s + blocks x block time)              block time: hw/operators/flash_attention.py
    memory  = K, V, queries, outputs and partial outputs, at e_memory of the peak bandwidth

One tile is one KV head of one sequence; the queries of its group fill a few of the tile's 64 rows, the rest is computed for
nothing, so that an SM takes the same time over a block of keys whether 1 or 64 heads share it. Where tiles are few, the keys are
split: a further kernel combines the parts, 32 at a time. FlashAttention 2 plans two tiles per SM, splits grouped heads only
(multi-head attention walks the whole context on one SM per head) and transposes grouped queries in further kernels where there
are several sequences and KV heads. FlashAttention 3 splits everything. With a window it takes narrow heads (64) in tiles of 192
rows and does not overlap their softmax with arithmetic (hopper/tile_size.h, IntraWGOverlap = !is_local): all 192 cost time.

The L2 cache is left out. Measurements repeat one call and find in it what the call before has left, but a block of keys takes an
SM so long that reading faster than memory hardly shows; in a model, where other layers come in between, nothing would be left.

Not covered: sequences of unequal length in a batch (splitting balances them, single tiles do not), fp8, cascades, more than one
query per sequence.
"""

from __future__ import annotations

import numpy as np

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
from tokentape.hw.operators.operator import Floats, Gpu, Operator, Parameter, Shapes, Terms, columns, overlap, where

# Sequences with a context of isl + step tokens, the new one included; window_size in tokens, 0: none.
ARGUMENTS = ("batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim", "window_size")
DEFAULTS = {"step": 0, "window_size": 0}
PARAMETERS = (
    Parameter("launch_s", "s", 8e-6, 1e-6, 3e-5, "start and end of a kernel with nothing to do"),
    Parameter("further_kernel_s", "s", 3e-6, 1e-8, 2e-5, "a further kernel: combining up to 32 parts, transposing queries"),
    Parameter("tile_s", "s", 2e-6, 1e-8, 2e-5, "what a tile costs an SM before its first and after its last block of keys"),
    Parameter("e_compute", "frac", 0.5, 0.05, 1.2, "share of the tensor peak in a block of keys, empty query rows included"),
    Parameter("e_memory", "frac", 0.8, 0.05, 1.0, "share of the peak bandwidth when reading the cache"),
)

_TILE_ROWS = 64.0
_WINDOWED_NARROW_ROWS = 192.0
_MAX_SPLITS = 128.0  # flash_api.cpp: "num_splits > 128 not supported"
_PARTS_PER_PASS = 32.0
_BYTES_PER_PARTIAL = 4  # partial outputs are f32
# Sharpness of max(compute, memory): 1 would add them, infinity would take the larger.
_OVERLAP_POWER = 3.0


def time(gpu: Gpu, constants: Floats, *arguments: Floats) -> Floats:
    """Seconds of calls. They never fall as the context grows; they may fall as the batch grows past the point where splitting
    ends."""
    return _whole(_terms(gpu, constants, *arguments))


def _whole(terms: Terms) -> Floats:
    return terms.launch_s + overlap(terms.compute_s, terms.memory_s, _OVERLAP_POWER)


def least(shapes: Shapes) -> tuple[Floats, Floats]:
    """The keys and values in sight, read once for all heads that share them."""
    batch, isl, step, heads, kv_heads, head_dim, window_size = columns(shapes, ARGUMENTS, DEFAULTS)
    seen = np.minimum(isl + step, window(window_size))
    return 4.0 * batch * heads * head_dim * seen, BYTES_PER_VALUE * 2.0 * batch * kv_heads * head_dim * seen


def _terms(gpu: Gpu, constants: Floats, *arguments: Floats) -> Terms:
    batch, isl, step, heads, kv_heads, head_dim, window_size = arguments
    launch_s, further_kernel_s, tile_s, e_compute, e_memory = constants
    context, window_tokens = isl + step, window(window_size)
    cut = context > window_tokens
    keys = where(cut, window_tokens + 1.0, context)
    blocks = np.ceil(keys / KEYS_PER_BLOCK)
    group = heads / kv_heads
    tiles = batch * kv_heads * np.ceil(group / _TILE_ROWS)
    splits, places = _splits(gpu, tiles, blocks, group)

    rows = where(cut & (head_dim <= NARROW_HEAD_DIM) & runs_fa3(gpu), _WINDOWED_NARROW_ROWS, _TILE_ROWS)
    walk_s = np.ceil(blocks / splits) * block_seconds(gpu, e_compute, rows, head_dim)
    compute_s = np.ceil(places / gpu.n_sms) * walk_s + np.ceil(places / (gpu.n_sms * tiles_per_sm(gpu))) * tile_s

    cache_bytes = 2.0 * BYTES_PER_VALUE * batch * kv_heads * keys * head_dim
    partial_bytes = where(splits > 1, 2.0 * _BYTES_PER_PARTIAL * splits, 0.0)
    query_bytes = (2.0 * BYTES_PER_VALUE + partial_bytes) * batch * heads * head_dim
    memory_s = (cache_bytes + query_bytes) / (gpu.peak_bytes_per_s * e_memory)

    further = where(splits > 1, 1.0 + splits / _PARTS_PER_PASS, 0.0)
    if not runs_fa3(gpu):
        further = further + 1.0 * ((group > 1) & (batch > 1) & (kv_heads > 1))
    return Terms(launch_s + further * further_kernel_s, compute_s, memory_s)


def _splits(gpu: Gpu, tiles: Floats, blocks: Floats, group: Floats) -> tuple[Floats, Floats]:
    """Parts into which each tile's keys are cut (1: not at all), and how many tiles or parts there are to place; (n,) each."""
    slots = gpu.n_sms * tiles_per_sm(gpu)
    split = (tiles < SPLIT_BELOW * slots) & (blocks > 1)
    if not runs_fa3(gpu):
        split = split & (group > 1)
    parts = np.minimum(np.minimum(blocks, _MAX_SPLITS), slots / (SPLIT_MARGIN * tiles))
    return where(split, np.maximum(parts, 1.0), 1.0), where(split, np.minimum(tiles * blocks, slots), tiles)


DECODE_ATTENTION = Operator(
    name="decode_attention",
    arguments=ARGUMENTS,
    columns=ARGUMENTS,
    defaults=DEFAULTS,
    parameters=PARAMETERS,
    terms=_terms,
    whole=_whole,
    time=time,
    least=least,
)
