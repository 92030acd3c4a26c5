"""Time of prefill attention: causal self-attention over whole prompts, as vLLM runs it.

    seconds  = launch + further kernels + compute + (1 - OVERLAP) x memory + cache write
    compute  = the busiest SM: tiles of queries, each walking the key blocks that it may see (hw/operators/flash_attention.py)
    tile     = tile_s + blocks x block time                  block time = tensor operations and softmax of one block on one SM
    memory   = Q, K, V and O once, at e_memory of the peak bandwidth

Tiles are dealt to SMs: an even share, plus what the last, partly filled wave leaves idle, never less than the longest tile.
FlashAttention 2 starts each head's shortest tile first and so ends on a longest one. FlashAttention 3 starts with the longest,
packs the query heads of a group into one tile while the prompt fits in it, and splits the keys where tiles are too few for the
SMs: that takes a second kernel. FlashAttention 2 transposes grouped single queries: again one more.

Decodes in the same call (`decodes`, of `context` tokens each) are walked like prompts by FlashAttention 2: every query head of
each is a tile of its own, in whole waves over the SMs, and one of the last is of the longest context. The heads of a group start
far apart, so that those of another wave read the group's keys again, from L2 where one KV head's keys of all decodes fit. Reading
them once is decode attention's time; here is what walking and reading again, as long as the cube root of their cubes' sum, take
beyond it.

Fixed costs are cycles. FlashAttention 3 plans its tiles in a kernel of its own. Where the call also stores K and V in the paged
cache (stores_kv; without it the write is counted), that takes a kernel, and its bytes at the memory's rate or at 6 in a cycle of
every SM (2.25 where it rounds them to 8 bits), whichever is slower. A benchmark that repeats one call (is_warm) finds in L2 what
fits there; within a model operands come from memory (the default).

Every tile of a slice of a prompt walks the keys of the `before` tokens that are in the cache, too.

Not covered: prompts of unequal length in a batch.
"""

import numpy as np
from numpy.typing import NDArray

from tokentape.hw.operators import flash_attention as flash
from tokentape.hw.operators.operator import COLD, Floats, Gpu, Operator, Parameter, Shapes, columns

# Prompts of isl tokens; window_size in tokens, 0: none.
COLUMNS = ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "window_size")
ARGUMENTS = (*COLUMNS, "stores_kv", "is_warm", "kv_bits", "decodes", "context", "longest", "before")
DEFAULTS = {
    "window_size": 0,
    "stores_kv": 1,
    "is_warm": 0,
    **flash.KV_BITS,
    "decodes": 0,
    "context": 0,
    "longest": 0,
    "before": 0,
}
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
_FURTHER_KERNEL_S = 2e-6
_STORED_BYTES_PER_CYCLE = 6.0  # read and written by an SM that copies values
_ROUNDED_BYTES_PER_CYCLE = 2.25  # and by one that rounds them to 8 bits: half as many values


def least(shapes: Shapes) -> tuple[Floats, Floats]:
    """The pairs that a causal flash.window lets see each other; Q, K, V and O once."""
    batch, isl, heads, kv_heads, head_dim, window_size = columns(shapes, COLUMNS, DEFAULTS)
    seen = np.minimum(isl, flash.window(window_size))
    pairs = seen * (seen + 1.0) / 2.0 + (isl - seen) * seen
    return 4.0 * batch * heads * head_dim * pairs, flash.BYTES_PER_VALUE * batch * isl * head_dim * 2.0 * (heads + kv_heads)


def _terms(gpu: Gpu, constants: Floats, *arguments: Floats) -> tuple[Floats, ...]:
    batch, isl, heads, kv_heads, head_dim, window_size, stored, is_warm, kv_bits, decodes, context, longest, before = arguments
    launch_s, tile_s, e_compute, e_memory = constants
    compute_s, further = _compute(gpu, tile_s * gpu.slower, e_compute, *arguments[:5], flash.window(window_size), kv_bits, before)
    queried, seen = 2.0 * heads * isl, 2.0 * kv_heads * (isl + before * kv_bits / (8.0 * flash.BYTES_PER_VALUE))
    moved_bytes = flash.BYTES_PER_VALUE * batch * head_dim * (queried + seen)
    stored_bytes = flash.BYTES_PER_VALUE * batch * isl * head_dim * (2.0 + kv_bits / 8.0) * kv_heads * stored
    each_s = gpu.s_per_byte(e_memory, np.where(is_warm > 0, moved_bytes + 0.5 * stored_bytes, COLD))
    per_cycle = np.where(kv_bits < 8.0 * flash.BYTES_PER_VALUE, _ROUNDED_BYTES_PER_CYCLE, _STORED_BYTES_PER_CYCLE)
    storing_s = stored_bytes * np.maximum(each_s, 1.0 / (per_cycle * gpu.n_sms * gpu.clock_hz))
    kernels_s = (launch_s + (further + stored) * _FURTHER_KERNEL_S) * gpu.slower
    if flash.runs_fa2(gpu):
        walked, most = np.minimum(context, flash.window(window_size)), np.minimum(longest, flash.window(window_size))
        beside_s = _beside(gpu, tile_s * gpu.slower, e_compute, e_memory, decodes, walked, most, heads, kv_heads, head_dim)
        compute_s = compute_s + np.where(flash.runs_flashinfer(gpu, kv_bits), 0.0, beside_s)
    return kernels_s, compute_s, (1.0 - _OVERLAP) * moved_bytes * each_s + storing_s


def _beside(gpu: Gpu, tile_s: float, e_compute: float, e_memory: float, *arguments: Floats) -> Floats:
    """Seconds that FlashAttention 2 takes for decodes in a call of prompts, beyond reading their keys and values once; (n,)."""
    decodes, walked, most, heads, kv_heads, head_dim = arguments
    group, of_head_bytes = heads / kv_heads, 2.0 * flash.BYTES_PER_VALUE * decodes * walked * head_dim
    each_s = _tile_s(gpu, tile_s, e_compute, walked, head_dim)
    walk_s = np.ceil(decodes * heads / gpu.n_sms) * each_s
    last_s = np.maximum(_tile_s(gpu, tile_s, e_compute, most, head_dim) - each_s, 0.0)
    once_s = kv_heads * of_head_bytes * gpu.s_per_byte(e_memory, COLD + 0.0 * walked)
    again = np.minimum(group - 1.0, group * decodes / gpu.n_sms)
    read_s = once_s + again * kv_heads * of_head_bytes * gpu.s_per_byte(e_memory, of_head_bytes)
    beyond_s: Floats = (walk_s**3 + read_s**3) ** (1.0 / 3.0) - once_s + np.where(decodes > 0, last_s, 0.0)
    return beyond_s


def _tile_s(gpu: Gpu, tile_s: float, e_compute: float, keys: Floats, head_dim: Floats) -> Floats:
    """Seconds of an SM for a tile of 64 queries that walks so many keys."""
    block = flash.keys_per_block(gpu, head_dim)
    block_ops = 4.0 * 64.0 * block * (head_dim + flash.SOFTMAX_DIMS)
    return tile_s / flash.tiles_per_sm(gpu) + np.ceil(keys / block) * block_ops / (gpu.peak_ops_per_s / gpu.n_sms * e_compute)


def _compute(gpu: Gpu, tile_s: float, e_compute: float, *arguments: Floats) -> tuple[Floats, Floats]:
    """Seconds of the busiest SM and the number of further kernels, both (n,)."""
    batch, isl, heads, kv_heads, head_dim, window_tokens, kv_bits, before = arguments
    fa2 = flash.runs_fa2(gpu)
    group, block = heads / kv_heads, flash.keys_per_block(gpu, head_dim)
    tile_rows = np.where((head_dim <= flash.NARROW_HEAD_DIM) & flash.runs_fa3(gpu), 192.0, 64.0 if fa2 else 128.0)
    packed = (isl == 1) & (window_tokens == np.inf) if fa2 else isl <= tile_rows
    shared = flash.runs_flashinfer(gpu, kv_bits)
    of_group = np.where((isl * group > 64) & (head_dim < 256), 128.0, np.where(isl * group > 16, 64.0, 16.0))
    tile_rows, packed = np.where(shared, of_group, tile_rows), packed | shared
    tiles_per_head = np.where(packed, np.ceil(isl * group / tile_rows), np.ceil(isl / tile_rows))
    tiles = batch * np.where(packed, kv_heads, heads) * tiles_per_head
    ramp = (tiles_per_head > 1) & (~packed | shared)  # packed tiles and lone tiles all see the same keys
    queries = np.where(shared, np.maximum(tile_rows / group, 1.0), tile_rows)
    longest, mean = _key_blocks(isl, before, queries, window_tokens, block, ramp)

    rows = np.where((isl * group <= 64) & ~shared, 64.0, tile_rows)
    block_s = 4.0 * rows * block * (head_dim + flash.SOFTMAX_DIMS) / (gpu.peak_ops_per_s / gpu.n_sms * e_compute)
    longest_s = tile_s + longest * block_s
    shortest_s = tile_s + np.where(ramp, np.minimum(1.0 + np.floor(before / block), longest), longest) * block_s
    waves = tiles / gpu.n_sms
    share_s = waves * (tile_s / flash.tiles_per_sm(gpu) + mean * block_s)
    idle_s = (np.ceil(waves) - waves) * shortest_s
    if fa2:
        last_s = np.where(ramp & (waves > 1), longest_s - shortest_s, 0.0)
        transposed = packed & ~shared & (batch > 1) & (group > 1) & (kv_heads > 1)
        return np.maximum(longest_s, share_s + idle_s + last_s), np.where(transposed, 1.0, 0.0)
    whole_s = np.maximum(longest_s, share_s + idle_s)
    split_s = tile_s + (flash.SPLIT_MARGIN * waves * mean + 1.0) * block_s
    split = (waves < flash.SPLIT_BELOW) & (longest > 4) & (split_s + _FURTHER_KERNEL_S * gpu.slower < whole_s)
    return np.where(split, split_s, whole_s), 1.0 * flash.runs_fa3(gpu) + np.where(split, 1.0, 0.0)


def _key_blocks(
    isl: Floats, before: Floats, tile_rows: Floats, window_tokens: Floats, block: Floats, ramp: NDArray[np.bool_]
) -> tuple[Floats, Floats]:
    """Key blocks of a head's longest tile and of its mean tile, both (n,): causal tiles see what is cached and a ramp of the
    slice, up to the window."""
    reach = np.minimum(before + isl, window_tokens + np.minimum(tile_rows, isl))
    longest = np.ceil(reach / block)
    mean_keys = reach - np.maximum(reach - before, 0.0) ** 2 / (2.0 * isl) + tile_rows / 2.0
    rounding = np.maximum(0.0, 0.5 * (1.0 - tile_rows / block))  # a tile narrower than a block pays for whole blocks
    mean = np.minimum(np.maximum(mean_keys / block + rounding, 1.0), longest)
    return longest, np.where(ramp, mean, longest)


PREFILL_ATTENTION = Operator(
    name="prefill_attention",
    columns=COLUMNS,
    arguments=ARGUMENTS,
    parameters=PARAMETERS,
    grows=("batch_size", "isl"),
    terms=_terms,
    least=least,
    of_table=flash.of_table,
    defaults=DEFAULTS,
)
