"""What quantisation and slicing cost the weights of a checkpoint: error and size per scheme, streamed a piece at a time.

Errors are of weights, not of answers: those take a live model. Reads by capture/checkpoint.py, schemes of policies/matryoshka.py.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tokentape.capture.checkpoint import StoredTensor, pieces, stored_tensors
from tokentape.policies.matryoshka import MAT, SCHEMES, Scheme, named
from tokentape.policies.quantise import GROUP, Array, Quantised, namespace, quantise
from tokentape.warehouse.formats import SCALE_BYTES

# Routed experts: single matrices (Mixtral, Qwen, DeepSeek, OLMoE, Phi), stacks of them, or Granite's; not the shared experts that
# every token reads, not biases, not the scales of checkpoints that are quantised already.
EXPERTS = r"(\.experts\.|block_sparse_moe\.(input|output)_linear\.)(?!.*(bias|scales?|scale_inv)$)"
EXPERTS_NAME = "experts"  # what a person types for it
ZERO_POINT_BYTES = 1
BF16_BYTES = 2
PIECE_VALUES = 1 << 17  # half a MiB of f32: a piece and its copies stay in a core's cache
DEVICE_PIECE_VALUES = 1 << 24  # 64 MiB of f32: a GPU is kept busy
GROUPINGS = ("all", "layer")


# What a row is made of, added up piece by piece; squares: of w, near_squares: of w', products: w w'.
SUMMED = ("n_weights", "n_groups", "squares", "near_squares", "products", "squared_errors")


def report(
    model: str,
    pairs: Sequence[MAT] = (MAT(4, 2), MAT(8, 4)),
    schemes: Iterable[str] = tuple(SCHEMES),
    group: int = GROUP,
    only: str = EXPERTS_NAME,
    by: str = "all",
    device: str | None = None,
    show: Callable[..., None] | None = None,
) -> list[dict[str, Any]]:
    """Rows of every group of tensors (`all`, or `layer N`), pair and scheme; those of `all` come last.

    relative_mse: sum (w' - w)^2 / sum w^2. cosine: of w' and w as vectors. msb_bytes: what the low precision reads. lsb_bytes:
    what must be stored besides for the high one: the LSB slice, or a whole high-bit copy where the low bits are no slice of it.
    total_vs_bf16_frac: both together, over 2 bytes per weight.

    model: see stored_tensors. only: `experts`, or a regular expression searched in tensor names; 1-D tensors never count. by:
    all, or layer for rows per layer too. device: None calculates in numpy on one core, else torch there; f32 on both. Memory: a
    piece and its copies; of a stack stored inputs first, a matrix. Raises ValueError or OSError with one line.
    """
    chosen = {name: named(name) for name in schemes}
    _check(chosen, pairs, group, by)
    everything = stored_tensors(model)
    tensors = _matching(everything, only, model)
    turned = _input_first(everything)
    move, most_values = _mover(device)
    totals: dict[str, dict[tuple[MAT, str], Counter[str]]] = {}
    done, total = 0, sum(tensor.n_values for tensor in tensors)
    for tensor in tensors:
        numbered = re.search(r"(?:layers|blocks|h)\.(\d+)\.", tensor.name)
        groups = ("all",) if by == "all" else (f"layer {numbered[1]}" if numbered else "other", "all")
        for piece in pieces(tensor, tensor.name in turned, most_values):
            for key, part in _measure(move(piece), pairs, chosen, group):
                for name in groups:
                    totals.setdefault(name, {}).setdefault(key, Counter()).update(part)
            done += piece.size
            if show:
                show(done, total, tensor.name)
    order = sorted(totals, key=lambda name: (name == "all", [int(n) for n in re.findall(r"\d+", name)], name))
    return [_row(name, pair, scheme, sums) for name in order for (pair, scheme), sums in totals[name].items()]


def _measure(
    w: Array, pairs: Sequence[MAT], schemes: Mapping[str, Scheme], group: int
) -> Iterator[tuple[tuple[MAT, str], dict[str, float]]]:
    """((pair, scheme), sums) of one piece w (rows, inputs); every width is quantised once."""
    n_rows, n_inputs = w.shape
    flat = w.reshape(-1)
    squares = _product(flat, flat)
    made: dict[tuple[str, int], Quantised] = {}
    for pair in pairs:
        for name, scheme in schemes.items():
            key = (scheme.symmetry, scheme.stored_bits(pair))
            if key not in made:
                made[key] = quantise(w, key[1], group, scheme.symmetry)
            near = scheme.values(made[key], pair.dropped).reshape(-1)
            error = near - flat
            sums = (_product(*two) for two in ((near, near), (near, flat), (error, error)))
            found = (n_rows * n_inputs, n_rows * -(-n_inputs // group), squares, *sums)
            yield (pair, name), dict(zip(SUMMED, found, strict=True))


def _product(a: Array, b: Array) -> float:
    """Sum of products; where those of f32 leave its range, of what powers of two bring into it."""
    xp = namespace(a)
    if 1e-30 < abs(found := float(xp.vdot(a, b))) < 1e30:
        return found
    units = [2.0 ** (math.frexp(float(abs(x).max()))[1] - 1) for x in (a, b)]
    return float(xp.vdot(a / units[0], b / units[1])) * math.prod(units)


def _row(name: str, pair: MAT, scheme: str, sums: Mapping[str, Any]) -> dict[str, Any]:
    n_weights, n_groups, squares, near_squares, products, squared_errors = (sums[of] for of in SUMMED)
    msb, lsb = stored_bytes(n_weights, n_groups, pair, SCHEMES[scheme])
    norm = (squares * near_squares) ** 0.5
    return {
        "tensors": name,
        "pair": str(pair),
        "scheme": scheme,
        "n_weights": n_weights,
        "relative_mse": squared_errors / squares if squares else 0.0,  # zeros are quantised without error
        "cosine": products / norm if norm else 0.0,
        "msb_bytes": msb,
        "lsb_bytes": lsb,
        "total_vs_bf16_frac": (msb + lsb) / (BF16_BYTES * n_weights),
    }


def stored_bytes(n_weights: int, n_groups: int, pair: MAT, scheme: Scheme) -> tuple[int, int]:
    """(bytes the low precision reads, bytes stored besides for the high one) of weights in groups with an FP16 scale each.

    Asymmetric: scale and 1-byte zero point travel with the MSB slice (SliceMoE section 2). Symmetric: the scale is split evenly
    (ELMoE-3D section 3); with equal widths the only slice has all of it. A scheme whose low bits are no slice keeps two copies.
    """
    low, high, rest = (-(-n_weights * bits // 8) for bits in (pair.low, pair.high, pair.dropped))
    if scheme.symmetry == "asymmetric":
        metadata = n_groups * (SCALE_BYTES + ZERO_POINT_BYTES)
        return (low + metadata, rest if scheme.is_slice else high + metadata)
    metadata = n_groups * SCALE_BYTES
    if not scheme.is_slice:
        return low + metadata, high + metadata
    shared = metadata // 2 if pair.dropped else 0
    return low + metadata - shared, rest + shared


def _check(schemes: Mapping[str, Scheme], pairs: Sequence[MAT], group: int, by: str) -> None:
    """Refuses before anything is read what would fail at the first piece."""
    if by not in GROUPINGS:
        raise ValueError(f"unknown grouping {by!r}; known: {', '.join(GROUPINGS)}")
    if not schemes or not pairs:
        raise ValueError("give at least one scheme and one pair of widths")
    probe = np.zeros(1, np.float32)
    for pair in pairs:
        for name, scheme in schemes.items():
            try:
                quantise(probe, scheme.stored_bits(pair), group, scheme.symmetry)
            except ValueError as error:
                raise ValueError(f"{pair} with {name}: {error}; leave one of them out") from error


def _matching(tensors: list[StoredTensor], only: str, model: str) -> list[StoredTensor]:
    try:
        wanted = re.compile(EXPERTS if only == EXPERTS_NAME else only)
    except re.error as error:
        raise ValueError(f"{only!r} is not a regular expression ({error})") from error
    found = [t for t in tensors if len(t.shape) >= 2 and t.n_values and wanted.search(t.name)]
    if not found:
        example = next((t.name for t in tensors if len(t.shape) >= 2), "none")
        raise ValueError(f"{model}: no matrix matches --only {only}, of {len(tensors)} tensors such as {example}; give another")
    return found


def _input_first(tensors: list[StoredTensor]) -> set[str]:
    """Names of stacks stored (expert, inputs, outputs), as gpt-oss and Llama 4 do; everyone else stores inputs last.

    Told by the shapes of gate_up_proj (outputs 2 I, inputs H) and down_proj (outputs H, inputs I), which fit only one way.
    """
    shapes = {t.name: t.shape for t in tensors if len(t.shape) == 3}
    turned = set()
    for name, shape in shapes.items():
        down = name.replace("gate_up_proj", "down_proj")
        if down != name and down in shapes and shape[2] == 2 * shapes[down][1] and shape[1] == shapes[down][2]:
            turned |= {name, down}
    return turned


def _mover(device: str | None) -> tuple[Callable[[np.ndarray], Array], int]:
    """What takes a piece to where it is calculated, and how many values a piece may have there."""
    if device is None:
        return (lambda piece: piece), PIECE_VALUES
    import torch

    from tokentape.capture.models import resolve_device

    place = resolve_device(device)
    return (lambda piece: torch.from_numpy(piece).to(place)), DEVICE_PIECE_VALUES
