"""Time of a dense matrix product (m, k) x (k, n) on a GPU: output tiles in waves over the SMs, as cuBLAS runs it and, of operands
of 8 bits, vLLM's CUTLASS kernels.

    seconds = launch + (compute^2.5 + memory^2.5)^(1/2.5) + sums + rounding
    compute = the longer of tiles and operations / (sustained_frac x peak)
    tiles   = least over tile shapes, whole or split along k, of waves x (k of a part + tile_overhead_k) x operations per k / rate
    waves   = ceil(output tiles x parts / SMs): a last wave that is not full costs a full one
    memory  = (m k + k n + m n), each by its bits, at bandwidth_frac of the peak, or from the L2 cache

- Five tile shapes, 128x256 to 64x64, stand for the library's many; it is taken to choose the fastest, as its heuristics aim to.
  Small tiles fill waves and fit few rows better, but load more per multiply-add: one k of a tile costs rows x columns
  multiply-adds and 15 for each operand it loads, in the measure of the largest tile, for which tensor_frac is stated.
- tile_overhead_k is what a tile costs beside its k loop (filling the pipeline, storing the output), as a length of k: products
  with a short k, which write more than they multiply, come out slow.
- All SMs together multiply no faster than the GPU's power allows: on an H100 .80 of the peak, whatever the shape, while waves
  that leave SMs idle run at a clock above the one that the peak is stated at (tensor_frac 1.11 of 1,755 MHz; it boosts to
  1,980). Products of 8 bits do not get there: their one tile reaches .46 to .63 of the peak.
- Where tiles are fewer than SMs, k may be split into as many parts as fill one wave, of at least two 64-deep steps. Adding the
  partial sums is a further kernel that begins when the product has ended: split_launches x launch, and f32 traffic within L2 at
  three times the memory's rate. Whether to split is chosen with the memory's time by squares, which takes no powers.
- Operands of 8 bits: a kernel of its own reads the activations and writes them rounded, in memory or L2. The product takes the
  one tile of vLLM's ladder for so many rows on this generation, and splits no k.
- A tile is computed whole: below 64 rows, time hardly depends on m. Times never rise with more bandwidth or a higher tensor rate;
  with the shape they may fall by a few percent where another tile or split begins to fit.
- Fixed costs are cycles. Weights are met again after weight_copies others of their size: in a benchmark that cycles few copies
  from L2 where these fit, within a model from memory (the default). Activations were written just before.

Sources: NVIDIA, "Matrix Multiplication Background User's Guide" (tiles, tile and wave quantisation) and "GPU Performance
Background User's Guide"; NVIDIA CUTLASS, "Efficient GEMM in CUDA" (k loop, epilogue, split-k); vLLM, csrc/quantization/w8a8,
scaled_mm_*_fp8_dispatch.cuh (the ladders; where a tile hangs on n too, that of narrow products). The tile list, the 15, the three
and the 2.5 are ours, chosen once for all devices with the A100 and H100 tables in view. Not covered: batched products.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.hw.operators.operator import COLD, OPERANDS, OUTPUT_BITS, PLAIN, Floats, Gpu, Operator, Parameter, Shapes, columns

COLUMNS = ("m", "n", "k")
ARGUMENTS = (*COLUMNS, "weight_copies", *OPERANDS)
DEFAULTS = {"weight_copies": COLD, **PLAIN}
PARAMETERS = (
    Parameter("launch_s", "s", 2.5e-6, 5e-7, 1e-5, "start and end of a kernel with nothing to do"),
    Parameter("tensor_frac", "frac", 0.9, 0.3, 1.2, "share of the tensor peak inside the k loop of a 128x256 tile"),
    Parameter("bandwidth_frac", "frac", 0.85, 0.3, 1.0, "share of the peak bandwidth when operands stream"),
    Parameter("tile_overhead_k", "elements", 130.0, 1.0, 1000.0, "what a tile costs beside its k loop, as a length of k"),
    Parameter("split_launches", "launches", 1.0, 0.05, 4.0, "cost of the kernel that adds split sums, in launches"),
    Parameter("sustained_frac", "frac", 0.85, 0.2, 1.3, "share of the tensor peak that all SMs reach together"),
)

TILES = ((128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
# Of rounded operands, before a compute capability: up to so many rows, the rows and columns of the tile.
_LADDERS: tuple[tuple[float, tuple[tuple[float, int, int], ...]], ...] = (
    (9.0, ((16, 16, 64), (32, 32, 64), (64, 64, 64), (256, 64, 128), (np.inf, 128, 128))),
    (10.0, ((16, 16, 64), (64, 64, 64), (128, 64, 128), (np.inf, 128, 128))),
    (12.0, ((16, 32, 128), (64, 64, 128), (256, 128, 128), (np.inf, 256, 128))),
    (np.inf, ((16, 16, 64), (32, 32, 64), (256, 64, 64), (np.inf, 128, 128))),
)
# Multiply-adds that take as long as loading one operand element of a tile.
_LOAD_MACS = 15.0
_STEP_K = 64
_STEPS_PER_PART = 2
_L2_SPEEDUP = 3.0
_BYTES_PER_PARTIAL = 4


def of_table(version: str, kernels: NDArray[np.str_], shapes: Shapes) -> dict[str, NDArray[Any]]:
    """Arguments that a measured table has no column for: aiconfigurator's collect_gemm.py cycles six copies of the weights."""
    return {"weight_copies": np.full(kernels.size, 6.0)}


def least(shapes: Shapes) -> tuple[Floats, Floats]:
    """Operands read and the result written once."""
    m, n, k, weight_bits, value_bits = columns(shapes, (*COLUMNS, *OPERANDS[:2]), DEFAULTS)
    return 2.0 * m * n * k, (value_bits * m * k + weight_bits * k * n + OUTPUT_BITS * m * n) / 8.0


def _terms(gpu: Gpu, constants: Floats, *arguments: Floats) -> tuple[Floats, ...]:
    m, n, k, weight_copies, weight_bits, value_bits, speedup = arguments
    launch_s, tensor_frac, bandwidth_frac, tile_overhead_k, split_launches, sustained_frac = constants
    launch_s = launch_s * gpu.slower
    bytes_per_s = gpu.peak_bytes_per_s * bandwidth_frac
    macs_per_s = gpu.peak_ops_per_s * speedup / 2.0 * tensor_frac / gpu.n_sms
    steps = np.ceil(k / _STEP_K)
    overhead_steps = tile_overhead_k / _STEP_K
    partial_s = 2.0 * m * n * _BYTES_PER_PARTIAL / (bytes_per_s * _L2_SPEEDUP)  # written and read again, per part

    def walked(rows: Floats | float, width: Floats | float) -> tuple[Floats, Floats, Floats]:
        tiles = np.ceil(m / rows) * np.ceil(n / width)
        step_s = _STEP_K * _tile_macs(rows, width) / macs_per_s
        return tiles, step_s, np.ceil(tiles / gpu.n_sms) * (steps + overhead_steps) * step_s

    weights, others = weight_bits / 8.0 * k * n, m * (value_bits / 8.0 * k + OUTPUT_BITS / 8.0 * n)
    memory_s = weights * gpu.s_per_byte(bandwidth_frac, weight_copies * weights + others)
    memory_s = memory_s + others * gpu.s_per_byte(bandwidth_frac, weights + others)

    whole_s, split_s, sums_s = np.inf * m, np.inf * m, 0.0 * m
    for tile in TILES:
        tiles, step_s, of_tile_s = walked(*tile)
        whole_s = np.minimum(whole_s, of_tile_s)
        parts = np.minimum(np.maximum(np.floor(gpu.n_sms / tiles), 1.0), np.maximum(1.0, np.floor(steps / _STEPS_PER_PART)))
        part_s = np.where(parts > 1.0, (np.ceil(steps / parts) + overhead_steps) * step_s, np.inf)
        added_s = split_launches * launch_s + parts * partial_s
        is_faster = part_s + added_s < split_s + sums_s
        split_s, sums_s = np.where(is_faster, part_s, split_s), np.where(is_faster, added_s, sums_s)
    is_plain, squared = value_bits >= OUTPUT_BITS, memory_s * memory_s
    is_split = is_plain & (np.sqrt(split_s * split_s + squared) + sums_s < np.sqrt(whole_s * whole_s + squared))
    together_s = 2.0 * m * n * k / (gpu.peak_ops_per_s * sustained_frac)
    of_tiles_s = np.maximum(np.where(is_split, split_s, whole_s), together_s)
    compute_s = np.where(is_plain, of_tiles_s, walked(*_of_ladder(gpu, m))[2])
    rounded = np.where(is_plain, 0.0, m * k * (OUTPUT_BITS + value_bits) / 8.0)
    rounding_s = rounded * gpu.s_per_byte(bandwidth_frac, rounded)
    return launch_s + 0.0 * m, compute_s, memory_s, np.where(is_split, sums_s, 0.0), rounding_s


def _of_ladder(gpu: Gpu, m: Floats) -> tuple[Floats, Floats]:
    """Rows and columns of the one tile that vLLM's CUTLASS kernels take for so many rows, (n,) each."""
    rows, width = np.inf * m, np.inf * m
    for most, of_rows, of_width in reversed(next(ladder for before, ladder in _LADDERS if gpu.capability < before)):
        rows, width = np.where(m <= most, of_rows, rows), np.where(m <= most, of_width, width)
    return rows, width


def _tile_macs(rows: Floats | float, width: Floats | float) -> Floats | float:
    """Multiply-adds of a tile per element of k, its operand loads counted as such, in the measure of the largest tile."""
    largest = TILES[0]
    load_share = _LOAD_MACS * (largest[0] + largest[1]) / (largest[0] * largest[1])
    return (rows * width + _LOAD_MACS * (rows + width)) / (1.0 + load_share)


GEMM = Operator(
    name="gemm",
    columns=COLUMNS,
    arguments=ARGUMENTS,
    parameters=PARAMETERS,
    grows=("m",),
    terms=_terms,
    regimes=("launch", "compute", "memory", "sums", "rounding"),
    least=least,
    of_table=of_table,
    defaults=DEFAULTS,
    overlap=2.5,  # of tiles and memory
)
