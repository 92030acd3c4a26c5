"""Time of a fused MoE layer (routed experts, gated) on a GPU, as vLLM's Triton kernels run it: two grouped matrix products.

    seconds     = launch + (weights^2.5 + tiles^2.5)^(1/2.5) + activations
    weights     = active experts x (2i (h + 64) + h (i + 64)) x 2 bytes / (bandwidth_frac x peak)
    tiles       = sum over gate-and-up (n = 2i, k = h) and down (n = h, k = i) of
                  wave quantisation x (2 x padded rows x n + tile_load_ops x elements loaded per k) x k / tensor peak
    activations = traffic of all T k selections / (bandwidth_frac x peak)

- Tokens are sorted by expert and each expert's rows padded to whole blocks: of 32 rows where tokens are at most the experts of
  the rank, else of 128; a tile is a block by 128 columns. The switch is vLLM's own (get_default_config: M <= E). Its versions and
  tuned configurations take 16 to 64 and 64 to 128 rows; one pair stands for all, and tile_load_ops takes the rest.
- Inside a tile the tensor cores are held to their peak; fitted is the cost of loading operands. Per step of k a tile loads its
  real rows (padding is masked) and 128 weight columns. Rows are gathered: where the tokens' hidden states outgrow the L2 cache,
  the missing share of their loads counts twice.
- The first loads of a tile overlap with nothing: reading a column of weights takes as long as if it were 64 elements longer.
- Activations, for every selection of every token, whichever rank computes it: gate and up written (others' as zeros) and read,
  the activation's result written, the down product's written and read. For those of this rank also the gather and the down
  product's operand; once per token the output.
- Active experts and blocks: hw/operators/expert_load.py. Tensor parallelism divides i, expert parallelism the experts.

Sources: vLLM, vllm/model_executor/layers/fused_moe/fused_moe.py (fused_experts_impl, moe_align_block_size, get_default_config);
NVIDIA, "Matrix Multiplication Background User's Guide" (tile and wave quantisation). The 32, 64, 128 and 2.5 are chosen once for
all devices with the A100 and H100 tables in view. Not covered: the router's own product, shared experts, collectives
between ranks, quantised weights.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tokentape.hw.operators.expert_load import BALANCED, POWER_LAW, ExpertLoad, even_load, expert_load
from tokentape.hw.operators.operator import Floats, Gpu, Operator, Parameter, Shapes, columns, overlap, release, where

NUMBERS = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")
ARGUMENTS = (*NUMBERS, "active_experts")  # of `time`: where the active experts are known, as a tape or a curve tells them
DEFAULTS = {"moe_tp_size": 1, "moe_ep_size": 1}
PARAMETERS = (
    Parameter("launch_s", "s", 2e-5, 1e-6, 2e-4, "start and end of the layer's kernels with nothing to do, sorting included"),
    Parameter("bandwidth_frac", "frac", 0.9, 0.3, 1.0, "share of the peak bandwidth when weights and activations stream"),
    Parameter("tile_load_ops", "ops/element", 150.0, 5.0, 1000.0, "tensor operations in the time of loading one element"),
)

_FEW_ROWS, _MANY_ROWS = 32.0, 128.0
_BLOCK_COLUMNS = 128.0
_COLUMN_OVERHEAD_K = 64.0
_BYTES_PER_VALUE = 2
# First measured tables whose generator deals leftovers out rank by rank; between 0.14 and 0.19, which is all there is to tell.
_DEALT_OUT_FROM = (0, 16)
# Sharpness of max(weights, tiles): 1 would add them, infinity would take the larger.
_OVERLAP_POWER = 2.5


class _Terms(NamedTuple):
    """Parts of the time, each (n,) f64 seconds; weights and compute (the tiles) overlap."""

    launch_s: Floats
    weights_s: Floats
    compute_s: Floats
    activations_s: Floats


class _Layer(NamedTuple):
    """One rank's part of each layer, (n,) each."""

    n_tokens: Floats
    hidden: Floats
    inter: Floats
    selections: Floats
    block_rows: Floats
    load: ExpertLoad


def of_version(version: str) -> dict[str, float]:
    """Arguments that follow from the version of vLLM that was measured: leftovers_heaped, 1 or 0 (see expert_load.py).

    Raises ValueError if the text is not a version.
    """
    return {"leftovers_heaped": float(release(version) < _DEALT_OUT_FROM)}


def time(gpu: Gpu, constants: Floats, *arguments: Floats) -> Floats:
    """Seconds of layers whose active experts share the tokens evenly. With the number of tokens they may fall by some percent
    where the block height changes."""
    n_tokens, hidden, inter, top_k, n_experts, tp_size, ep_size, active = arguments
    block_rows = _block_rows(n_tokens, n_experts, ep_size)
    load = even_load(n_tokens * top_k / ep_size, active, block_rows)
    return _whole(_terms(gpu, constants, _Layer(n_tokens, hidden, inter / tp_size, n_tokens * top_k, block_rows, load)))


def _whole(terms: _Terms) -> Floats:
    return terms.launch_s + overlap(terms.weights_s, terms.compute_s, _OVERLAP_POWER) + terms.activations_s


def least(shapes: Shapes) -> tuple[Floats, Floats]:
    """Of a rank with no more than its even share of the selections.

    Bytes are those of the fewest experts that these can be: of a known number, or, drawn, of one token's. Tokens are read once.
    """
    layer, (_, ep_size) = _layer(shapes), columns(shapes, ["num_tokens", "moe_ep_size"], DEFAULTS)
    drawn = np.char.startswith(np.asarray(shapes.get("distribution", BALANCED), dtype=np.str_), POWER_LAW)
    top_k = layer.selections / layer.n_tokens
    experts = np.where(drawn, np.ceil(top_k / ep_size), layer.load.active_experts)
    weights = 3.0 * layer.hidden * layer.inter
    ops = 2.0 * layer.selections / ep_size * weights
    return ops, _BYTES_PER_VALUE * (experts * weights + layer.n_tokens / ep_size * layer.hidden)


def _terms(gpu: Gpu, constants: Floats, layer: _Layer) -> _Terms:
    launch_s, bandwidth_frac, tile_load_ops = constants
    bytes_per_s = gpu.peak_bytes_per_s * bandwidth_frac
    hidden, inter, load = layer.hidden, layer.inter, layer.load
    weights = load.active_experts * (2.0 * inter * (hidden + _COLUMN_OVERHEAD_K) + hidden * (inter + _COLUMN_OVERHEAD_K))
    ops = _tile_ops(gpu, layer, 2.0 * inter, hidden, tile_load_ops) + _tile_ops(gpu, layer, hidden, inter, tile_load_ops)
    activations = layer.selections * (5.0 * inter + 2.0 * hidden) + load.rows * (inter + hidden) + layer.n_tokens * hidden
    return _Terms(
        launch_s + 0.0 * hidden,
        weights * _BYTES_PER_VALUE / bytes_per_s,
        ops / gpu.peak_ops_per_s,
        activations * _BYTES_PER_VALUE / bytes_per_s,
    )


def _tile_ops(gpu: Gpu, layer: _Layer, n: Floats, k: Floats, tile_load_ops: float) -> Floats:
    """Operations of one grouped product, (n,), loads and the idle SMs of its last wave counted as such."""
    blocks, rows = layer.load.blocks, layer.load.rows
    column_blocks = np.ceil(n / _BLOCK_COLUMNS)
    waves = blocks * column_blocks / gpu.n_sms
    hidden_bytes = np.minimum(layer.n_tokens, rows) * layer.hidden * _BYTES_PER_VALUE
    missed = np.maximum(0.0, 1.0 - gpu.l2_bytes / hidden_bytes)
    multiplied = 2.0 * blocks * layer.block_rows * column_blocks * _BLOCK_COLUMNS
    loaded = rows * column_blocks * (1.0 + missed) + blocks * column_blocks * _BLOCK_COLUMNS
    return np.ceil(waves) / waves * (multiplied + tile_load_ops * loaded) * k


def _layer(shapes: Shapes) -> _Layer:
    """inter_size is of one expert. How tokens are spread over experts: active_experts of the rank, as a tape tells them, or
    distribution ("balanced", "power_law_<alpha>"), optionally with leftovers_heaped (0 where absent)."""
    n_tokens, hidden, inter, top_k, n_experts, tp_size, ep_size = columns(shapes, NUMBERS, DEFAULTS)
    block_rows = _block_rows(n_tokens, n_experts, ep_size)
    if "active_experts" in shapes:
        load = even_load(n_tokens * top_k / ep_size, columns(shapes, ["active_experts"])[0], block_rows)
    elif "distribution" in shapes:
        heaped = np.broadcast_to(shapes.get("leftovers_heaped", np.zeros(1)), n_tokens.shape)
        load = expert_load(np.asarray(shapes["distribution"]), n_tokens, top_k, n_experts, ep_size, block_rows, heaped)
    else:
        raise ValueError("shapes have neither 'active_experts' nor 'distribution' (\"balanced\" or \"power_law_1.2\")")
    return _Layer(n_tokens, hidden, inter / tp_size, n_tokens * top_k, block_rows, load)


def _block_rows(n_tokens: Floats, n_experts: Floats, ep_size: Floats) -> Floats:
    return where(n_tokens <= n_experts / ep_size, _FEW_ROWS, _MANY_ROWS)


MOE = Operator(
    name="moe",
    arguments=ARGUMENTS,
    defaults=DEFAULTS,
    columns=(*NUMBERS, "distribution"),
    parameters=PARAMETERS,
    terms=_terms,
    whole=_whole,
    time=time,
    least=least,
    of_shapes=lambda shapes: (_layer(shapes),),
    of_version=of_version,
)
