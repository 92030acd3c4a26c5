"""Group-wise integer quantisation: every `group` weights along the last axis share a scale, and a zero point if asymmetric.

The same code runs on numpy arrays and torch tensors, on any device, with equal bits; torch is never imported here. How the codes
are cut into slices, and what a cut costs, is in policies/matryoshka.py. Formulas: docs/quantise.md (SliceMoE, section 4.1 of its
specification; round half to even throughout).
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Array = Any  # numpy.ndarray or torch.Tensor
Symmetry = Literal["asymmetric", "symmetric"]
SYMMETRIES: tuple[Symmetry, ...] = ("asymmetric", "symmetric")
GROUP = 32
MAX_BITS = 8  # a code and a zero point are one byte
SMALLEST_SCALE = 1e-12  # an all-zero group divides by this, not by zero


@dataclass(frozen=True)
class Quantised:
    """Codes shaped like the weights, and for every group of their last axis a scale and, if asymmetric, a zero point.

    codes: u8 in 0..2^bits-1 (asymmetric) or i8 in -2^(bits-1)..2^(bits-1)-1 (symmetric). scale: f32. zero_point: u8; None if
    symmetric. All three are of the library and on the device of the weights.
    """

    codes: Array
    scale: Array
    zero_point: Array | None
    bits: int
    group: int

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.codes.shape)

    @property
    def symmetry(self) -> Symmetry:
        return "symmetric" if self.zero_point is None else "asymmetric"


def quantise(w: Array, bits: int, group: int = GROUP, scheme: Symmetry = "asymmetric") -> Quantised:
    """Weights as integers of `bits`, one scale per `group` of the last axis; the last group of a row may be short.

    w: (..., n) of any float dtype, calculated in f32. Asymmetric: lo = min(0, w), hi = max(0, w), s = (hi - lo)/(2^bits - 1),
    zp = round(-lo/s), q = round(w/s) + zp. Symmetric: s = max|w|/(2^(bits-1) - 1), q = round(w/s). Raises ValueError for a
    value that is not finite (with its position), for a width outside 1..8 (symmetric: 2..8), and for a group below 1.
    """
    _check(w, bits, group, scheme)
    xp = namespace(w)
    values = _grouped(cast(w, "float32"), group)
    top = 2**bits - 1
    lo, hi = xp.clip(_over_group(xp.minimum, values), None, 0.0), xp.clip(_over_group(xp.maximum, values), 0.0, None)
    if scheme == "symmetric":
        scale = _scale(xp.maximum(-lo, hi), 2 ** (bits - 1) - 1)
        _refuse_not_finite(w, scale)
        codes = cast(xp.round(values / scale[..., None]), "int8")  # |w|/s never exceeds the largest code: no clamp
        return Quantised(_ungrouped(codes, w.shape), scale, None, bits, group)
    with np.errstate(over="ignore"):  # refused by name in the next line
        scale = _scale(hi - lo, top)
    _refuse_not_finite(w, scale)
    zero_point = xp.clip(xp.round(-lo / scale), 0, top)
    codes = cast(xp.clip(xp.round(values / scale[..., None]) + zero_point[..., None], 0, top), "uint8")
    return Quantised(_ungrouped(codes, w.shape), scale, cast(zero_point, "uint8"), bits, group)


def dequantise(q: Quantised) -> Array:
    """The weights that the codes stand for, f32, shaped as they were: (q - zp) * s, or q * s."""
    return scaled(q, q.codes, q.zero_point)


def scaled(q: Quantised, codes: Array, zero_point: Array | None, factor: float = 1.0) -> Array:
    """(codes - zero_point) * (scale * factor), f32: the shape every scheme has.

    codes: as q.codes, integer or f32; zero_point: as q.zero_point, None for no zero point. A power of two as factor is exact.
    """
    values = cast(_grouped(codes, q.group), "float32")
    if zero_point is not None:
        values = values - cast(zero_point, "float32")[..., None]
    return _ungrouped(values * (q.scale * factor)[..., None], q.shape)


def namespace(w: Array) -> Any:
    """The module whose functions take `w`: numpy, or torch, which must be loaded where there is a tensor."""
    return np if isinstance(w, np.ndarray) else sys.modules[type(w).__module__.partition(".")[0]]


def cast(w: Array, dtype: str) -> Array:
    """`w` in the dtype of that name; no copy where it already is."""
    kind = getattr(namespace(w), dtype)
    return w.astype(kind, copy=False) if isinstance(w, np.ndarray) else w.to(kind)


def _check(w: Array, bits: int, group: int, scheme: str) -> None:
    if scheme not in SYMMETRIES:
        raise ValueError(f"unknown quantisation {scheme!r}; known: {', '.join(SYMMETRIES)}")
    fewest = 2 if scheme == "symmetric" else 1  # one symmetric bit has no level but zero
    if not fewest <= bits <= MAX_BITS:
        raise ValueError(f"{scheme} quantisation needs {fewest} to {MAX_BITS} bits, got {bits}")
    if group < 1:
        raise ValueError(f"a group needs at least 1 weight, got {group}")
    if "float" not in str(getattr(w, "dtype", "")):
        raise ValueError(f"weights must be floating point, got {getattr(w, 'dtype', type(w).__name__)}")
    if len(w.shape) < 1 or 0 in w.shape:
        raise ValueError(f"there is nothing to quantise in an array of shape {tuple(w.shape)}")


def _over_group(pick: Callable[[Array, Array], Array], values: Array) -> Array:
    """The least or largest of the last axis by halving it: numpy's own reduction of short axes takes five times as long."""
    while (n := values.shape[-1]) > 1:
        half = n // 2
        best = pick(values[..., :half], values[..., half : 2 * half])
        if n % 2:
            best[..., 0] = pick(best[..., 0], values[..., -1])
        values = best
    return values[..., 0]


def _scale(span: Array, levels: int) -> Array:
    xp = namespace(span)
    # An array as divisor: torch on a GPU turns division by a Python number into a product with its reciprocal, with other bits.
    return xp.clip(span / xp.full_like(span, levels), SMALLEST_SCALE, None)


def _refuse_not_finite(w: Array, scale: Array) -> None:
    """Looks at the scales, which carry every NaN and infinity of their groups; the weights are searched only to name one."""
    xp = namespace(scale)
    if bool(xp.all(xp.isfinite(scale))):
        return
    wrong = xp.argwhere(~xp.isfinite(w))
    if len(wrong) == 0:
        raise ValueError("a group spans more than float32 holds; rescale the weights")
    at = tuple(int(i) for i in wrong[0])
    raise ValueError(f"value at {list(at)} is {float(w[at])}; weights must be finite")


def _grouped(x: Array, group: int) -> Array:
    """(..., n) -> (..., ceil(n/group), group). Zeros fill the last group: they widen no range and are cut off again."""
    *outer, n = x.shape
    fill = -n % group
    if fill:
        xp = namespace(x)
        zeros = xp.zeros_like(x[..., :1])
        x = xp.concatenate([x, xp.broadcast_to(zeros, (*outer, fill))], axis=-1)
    return x.reshape(*outer, (n + fill) // group, group)


def _ungrouped(x: Array, shape: tuple[int, ...]) -> Array:
    *outer, n = shape
    return x.reshape(*outer, x.shape[-2] * x.shape[-1])[..., :n]
