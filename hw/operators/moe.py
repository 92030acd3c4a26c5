"""Time of a fused MoE layer (routed experts) on a GPU, as vLLM runs it: two grouped matrix products.

    seconds     = launch + (weights^2.5 + tiles^2.5)^(1/2.5) + activations
    weights     = active experts x (2i (h + 64) + h (i + 64)) x its bytes at bandwidth_frac of the peak, or from the L2 cache
    tiles       = sum over gate-and-up (n = 2i, k = h) and down (n = h, k = i) of
                  wave quantisation x (2 x padded rows x n + tile_load_ops x elements loaded per k) x k / (tensor_frac x peak)
    activations = traffic of the selections at bandwidth_frac of the peak, or from the L2 cache

- Tokens are sorted by expert and each expert's rows padded to whole blocks. Which kernel runs follows from GPU and version
  (`kernel`): Triton's of vLLM before 0.16 takes blocks of 16 rows by 64 columns where tokens are at most the experts of the rank,
  else 128 by 128 (get_default_config: M <= E); from 0.16 on 16, 32, 64, 128 rows to 32, 96, 512 and more tokens, 64 columns to 64
  tokens. FlashInfer's CUTLASS kernels on Blackwell, and TensorRT-LLM's on its data-centre parts, take the power of two
  that holds an expert's rows, 16 (8) to 128. Weights of 4 bits run in Marlin everywhere: blocks of 8, 16, 32, 48 or 64 rows, the
  first that an expert's share of the selections fills to less than nine tenths. It deals its steps out over the SMs, so that no
  wave is half empty, and multiplies no faster than _MARLIN_OPS_PER_CYCLE. MXFP4's are stored with h filled up to a multiple of
  256 and i to one of 128, each rank's part by itself.
- Triton's layer is six kernels: two that sort, two products, the activation, the sum over top-k; two more round to 8 bits. From
  0.16 on nothing is sorted where four times the selections are no more than the experts, all on one rank and of 8 bits or more.
- Inside a tile an element that is loaded takes as long as so many tensor operations. Per step of k a tile loads its
  real rows (padding is masked) and its weight columns. Rows are gathered: where the tokens' hidden states outgrow the L2 cache,
  the missing share of their loads counts twice.
- The first loads of a tile overlap with nothing: reading a column of weights takes as long as if it were 64 elements longer.
- Activations: gate and up written and read, the activation's result written, the down product's written and read, of every
  selection whichever rank computes it (Triton; others' as zeros), or of this rank's alone (CUTLASS). For those of this rank also
  the gather and the down product's operand; once per token the output.
- Activations are read just after they were written: from L2 where vLLM's two buffers of them (one for what either product writes,
  one for the activation's result) fit there beside the weights that are read in between.
- Experts without a gate (`matrices` 2) have one matrix of n = i instead of gate and up.
- Fixed costs are cycles. A benchmark that repeats one call (is_warm) finds weights in L2 where they and the buffers fit there;
  within a model they come from memory (the default).
- Active experts and blocks: hw/operators/expert_load.py. Tensor parallelism divides i, expert parallelism the experts.

Sources: vLLM, vllm/model_executor/layers/fused_moe: fused_moe.py (fused_experts_impl, moe_align_block_size, get_default_config,
_prepare_expert_assignment), experts/marlin_moe.py (block_size_m), oracle/mxfp4.py (widths filled up); NVIDIA, "Matrix
Multiplication Background User's Guide" (tile and wave quantisation). Block heights, 64 and 2.5 are chosen once for all devices
with their tables in view. Not covered: the router's own product, shared experts, collectives between ranks, and widths that are
no multiple of 16, whose down product Triton loads value by value.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokentape.hw.operators.expert_load import BALANCED, POWER_LAW, ExpertLoad, even_load, expert_load
from tokentape.hw.operators.operator import (
    COLD,
    OPERANDS,
    OUTPUT_BITS,
    PLAIN,
    Floats,
    Gpu,
    Operator,
    Parameter,
    Shapes,
    columns,
    release,
)

SIZES = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")
COLUMNS = (*SIZES, "distribution")
KINDS = ("matrices", "kernel", "is_warm", *OPERANDS)
ARGUMENTS = (*SIZES, "active_experts", *KINDS)  # where the active experts are known, as a tape or a curve tells them
TRITON_BEFORE_16, TRITON, CUTLASS, TRTLLM, MARLIN = range(1, 6)
# kernel 0: today's vLLM's on this GPU
DEFAULTS = {"moe_tp_size": 1, "moe_ep_size": 1, "matrices": 3, "kernel": 0, "is_warm": 0, **PLAIN}
PARAMETERS = (
    Parameter("launch_s", "s", 2e-5, 1e-6, 2e-4, "start and end of the layer's kernels with nothing to do, sorting included"),
    Parameter("bandwidth_frac", "frac", 0.9, 0.3, 1.0, "share of the peak bandwidth when weights and activations stream"),
    Parameter("tile_load_ops", "ops/element", 100.0, 5.0, 1000.0, "tensor operations in the time of loading one element"),
    Parameter("tensor_frac", "frac", 0.9, 0.2, 1.2, "share of the tensor peak inside a tile"),
)

_COLUMN_OVERHEAD_K = 64.0
_KERNELS, _ROUNDING_KERNELS, _SORTING_KERNELS, _SORTED_ABOVE = 6.0, 2.0, 2.0, 4.0
# Nemotron's experts have no gate (relu2): hidden, inter, experts, top-k; the tables time them so from 0.24 on. As three matrices
# they would read up to 1.4 times the peak bandwidth.
_TWO_MATRICES, _TWO_MATRICES_FROM = ((2688, 1856, 128, 6), (2048, 5120, 512, 22)), (0, 24)
# First measured tables whose generator deals leftovers out rank by rank; between 0.14 and 0.19, which is all there is to tell.
_DEALT_OUT_FROM = (0, 16)
# Marlin: bits of the weights that it is for, and what an SM multiplies in a cycle with instructions of one warp, while it unpacks
# weights: about as much on Ada, Hopper and Blackwell, whatever their tensor cores reach with those of four.
_MARLIN_BELOW_BITS = 8.0
_MARLIN_OPS_PER_CYCLE = 1536.0
_FILLED_BELOW_BITS, _FILLED_HIDDEN, _FILLED_INTER = 4.5, 256.0, 128.0  # MXFP4 has 4.25 with its scales, INT4 4.5


class _Layer(NamedTuple):
    """One rank's part of each layer, (n,) each."""

    n_tokens: Floats
    hidden: Floats
    inter: Floats
    selections: Floats
    block_rows: Floats
    load: ExpertLoad
    sorts: NDArray[np.bool_]
    matrices: Floats
    kernel: Floats
    is_warm: Floats
    weight_bits: Floats
    value_bits: Floats
    speedup: Floats


def of_table(version: str, kernels: NDArray[np.str_], shapes: Shapes) -> dict[str, NDArray[Any]]:
    """Arguments that a measured table has no column for: what its generator did with leftovers (see expert_load.py), the kernel
    by the name in `kernels` and the version, experts of two matrices, and that one call is repeated. Raises ValueError if the
    version is none."""
    triton = TRITON if release(version) >= _DEALT_OUT_FROM else TRITON_BEFORE_16
    names = np.char.lower(kernels.astype(np.str_))
    named = {"trtllm": TRTLLM, "cutlass": CUTLASS, "marlinexperts": MARLIN}
    other = np.select([np.char.find(names, name) >= 0 for name in named], list(named.values()), triton)
    has_two = np.zeros(kernels.size, np.bool_)
    for sizes in _TWO_MATRICES:
        columns_of = ("hidden_size", "inter_size", "num_experts", "topk")
        has_two |= np.all([shapes[name] == size for name, size in zip(columns_of, sizes, strict=True)], axis=0)
    return {
        "leftovers_heaped": np.full(kernels.size, float(triton == TRITON_BEFORE_16)),
        "kernel": other,
        "matrices": np.where(has_two & (release(version) >= _TWO_MATRICES_FROM), 2.0, 3.0),
        "is_warm": np.ones(kernels.size),
    }


def least(shapes: Shapes) -> tuple[Floats, Floats]:
    """Of a rank with no more than its even share of the selections.

    Bytes are those of the fewest experts that these can be: of a known number, or, drawn, of one token's. Tokens are read once.
    """
    arguments = _of_shapes(shapes)
    layer, ep_size = _layer(None, *arguments), arguments[SIZES.index("moe_ep_size")]
    drawn = np.char.startswith(np.asarray(shapes.get("distribution", BALANCED), dtype=np.str_), POWER_LAW)
    top_k = layer.selections / layer.n_tokens
    experts = np.where(drawn, np.ceil(top_k / ep_size), layer.load.active_experts)
    weights = layer.matrices * layer.hidden * layer.inter
    ops = 2.0 * layer.selections / ep_size * weights
    n_bytes = layer.weight_bits * experts * weights + layer.value_bits * layer.n_tokens / ep_size * layer.hidden
    return ops, n_bytes / 8.0


def _terms(gpu: Gpu, constants: Floats, *arguments: Any) -> tuple[Floats, ...]:
    layer, (launch_s, bandwidth_frac, tile_load_ops, tensor_frac) = _layer(gpu, *arguments), constants
    hidden, inter, load = layer.hidden, layer.inter, layer.load
    gates = layer.matrices - 1.0  # of an expert, the matrices in front of the down product
    read = load.active_experts * (gates * inter * (hidden + _COLUMN_OVERHEAD_K) + hidden * (inter + _COLUMN_OVERHEAD_K))
    ops = _tile_ops(gpu, layer, gates * inter, hidden, tile_load_ops) + _tile_ops(gpu, layer, hidden, inter, tile_load_ops)
    written = np.where(_is_cutlass(layer.kernel), load.rows, layer.selections)
    activations = written * ((2.0 * gates + 1.0) * inter + 2.0 * hidden) + load.rows * (inter + hidden) + layer.n_tokens * hidden
    buffers = OUTPUT_BITS / 8.0 * written * (np.maximum(gates * inter, hidden) + inter)
    met = buffers + layer.weight_bits / 8.0 * load.active_experts * layer.matrices * hidden * inter
    kernels = _KERNELS + np.where(layer.value_bits < OUTPUT_BITS, _ROUNDING_KERNELS, 0.0)
    return (
        launch_s * gpu.slower * np.where(layer.sorts, 1.0, 1.0 - _SORTING_KERNELS / kernels),
        layer.weight_bits / 8.0 * read * gpu.s_per_byte(bandwidth_frac, np.where(layer.is_warm > 0, met, COLD)),
        ops / (gpu.peak_ops_per_s * layer.speedup * tensor_frac * _peak_share(gpu, layer.kernel)),
        OUTPUT_BITS / 8.0 * activations * gpu.s_per_byte(bandwidth_frac, met),
    )


def _tile_ops(gpu: Gpu, layer: _Layer, n: Floats, k: Floats, tile_load_ops: float) -> Floats:
    """Operations of one grouped product, (n,), loads and the idle SMs of its last wave counted as such."""
    blocks, rows = layer.load.blocks, layer.load.rows
    width = _block_columns(layer.kernel, layer.n_tokens, layer.block_rows)
    column_blocks = np.ceil(n / width)
    waves = blocks * column_blocks / gpu.n_sms
    hidden_bytes = np.minimum(layer.n_tokens, rows) * layer.hidden * layer.value_bits / 8.0
    missed = np.maximum(0.0, 1.0 - gpu.l2_bytes / hidden_bytes)
    multiplied = 2.0 * blocks * layer.block_rows * column_blocks * width
    loaded = rows * column_blocks * (1.0 + missed) + blocks * column_blocks * width
    idle = np.where(layer.kernel == MARLIN, np.maximum(1.0 / waves, 1.0), np.ceil(waves) / waves)
    return idle * (multiplied + tile_load_ops * loaded) * k


def _of_shapes(shapes: Shapes) -> list[Any]:
    """inter_size is of one expert. How tokens are spread over experts: active_experts of the rank, as a tape tells them, or
    distribution ("balanced", "power_law_<alpha>"), optionally with leftovers_heaped (0 where absent): in the place of a number,
    the load by the rows of a block."""
    if "active_experts" in shapes:
        return columns(shapes, ARGUMENTS, DEFAULTS)
    if "distribution" not in shapes:
        raise ValueError("shapes have neither 'active_experts' nor 'distribution' (\"balanced\" or \"power_law_1.2\")")
    given = columns(shapes, (*SIZES, *KINDS), DEFAULTS)
    n_tokens, _, _, top_k, n_experts, _, ep_size = sizes = given[: len(SIZES)]
    of, heaped = np.asarray(shapes["distribution"]), np.broadcast_to(shapes.get("leftovers_heaped", np.zeros(1)), n_tokens.shape)
    load_of = lambda block_rows: expert_load(of, n_tokens, top_k, n_experts, ep_size, block_rows, heaped)  # noqa: E731
    return [*sizes, load_of, *given[len(SIZES) :]]


def _layer(gpu: Gpu | None, *arguments: Any) -> _Layer:
    """Where the number of active experts is known, they share the tokens evenly: with the number of tokens the times may fall by
    some percent where the block height changes."""
    n_tokens, hidden, inter, top_k, n_experts, tp_size, ep_size, active, matrices, given, is_warm, *operands = arguments
    kernel = _kernel(gpu, given, operands[0]) if gpu is not None else given
    block_rows = _block_rows(kernel, n_tokens, top_k, n_experts, ep_size)
    load = active(block_rows) if callable(active) else even_load(n_tokens * top_k / ep_size, active, block_rows)
    is_triton = (kernel == TRITON) & (operands[0] >= _MARLIN_BELOW_BITS)
    sorts = ~is_triton | (ep_size > 1) | (_SORTED_ABOVE * n_tokens * top_k > n_experts)
    is_filled = (kernel == MARLIN) & (operands[0] < _FILLED_BELOW_BITS) if gpu is not None else False
    stored = ((hidden, _FILLED_HIDDEN), (inter / tp_size, _FILLED_INTER))
    hidden, inter = (np.where(is_filled, step * np.ceil(width / step), width) for width, step in stored)
    return _Layer(n_tokens, hidden, inter, n_tokens * top_k, block_rows, load, sorts, matrices, kernel, is_warm, *operands)


def _kernel(gpu: Gpu, given: Floats, weight_bits: Floats) -> Floats:
    """The kernel that runs, (n,)."""
    latest = TRITON if gpu.capability < 10.0 else CUTLASS if gpu.capability >= 12.0 else TRTLLM
    return np.where(given > 0, given, np.where(weight_bits < _MARLIN_BELOW_BITS, MARLIN, 1.0 * latest))


def _is_cutlass(kernel: Floats) -> NDArray[np.bool_]:
    return (kernel >= CUTLASS) & (kernel <= TRTLLM)


def _peak_share(gpu: Gpu, kernel: Floats) -> Floats:
    """Of the tensor peak, what the kernel's instructions can reach, (n,)."""
    of_warps = _MARLIN_OPS_PER_CYCLE * gpu.n_sms * gpu.clock_hz
    return np.where(kernel == MARLIN, np.minimum(1.0, of_warps / gpu.peak_ops_per_s), 1.0)


def _block_rows(kernel: Floats, n_tokens: Floats, top_k: Floats, n_experts: Floats, ep_size: Floats) -> Floats:
    of_old = np.where(n_tokens <= n_experts / ep_size, 16.0, 128.0)
    of_new = np.where(n_tokens <= 32, 16.0, np.where(n_tokens <= 96, 32.0, np.where(n_tokens <= 512, 64.0, 128.0)))
    per_expert = 2.0 ** np.ceil(np.log2(np.maximum(n_tokens * top_k / n_experts, 1.0)))
    of_power = np.minimum(np.maximum(per_expert, np.where(kernel == TRTLLM, 8.0, 16.0)), 128.0)
    filled = n_tokens * top_k * ep_size / n_experts / 0.9
    of_marlin = np.where(
        filled < 8, 8.0, np.where(filled < 16, 16.0, np.where(filled < 32, 32.0, np.where(filled < 48, 48.0, 64.0)))
    )
    of_triton = np.where(kernel == TRITON_BEFORE_16, of_old, of_new)
    return np.where(kernel == MARLIN, of_marlin, np.where(_is_cutlass(kernel), of_power, of_triton))


def _block_columns(kernel: Floats, n_tokens: Floats, block_rows: Floats) -> Floats:
    few = np.where(kernel == TRITON_BEFORE_16, block_rows < 128, n_tokens <= 64)
    return np.where((kernel < CUTLASS) & few, 64.0, 128.0)


MOE = Operator(
    name="moe",
    columns=COLUMNS,
    arguments=ARGUMENTS,
    parameters=PARAMETERS,
    grows=("num_tokens",),
    terms=_terms,
    regimes=("launch", "weights", "compute", "activations"),
    least=least,
    of_table=of_table,
    defaults=DEFAULTS,
    overlap=2.5,  # of weights and tiles
    of_shapes=_of_shapes,
)
