"""One quantised tensor that holds two precisions: the upper bits of its codes are the low-bit weights (Matryoshka).

AMAT (SliceMoE, asymmetric Matryoshka) shifts the zero point with the codes, so that the low-bit weights need no calibration and
no second copy. The other schemes are what it is compared with: independent copies, naive truncation, rounding, augmented bits.
All work on numpy arrays and torch tensors, as policies/quantise.py does. Formulas and sources: docs/quantise.md.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from tokentape.policies.quantise import GROUP, MAX_BITS, Array, Quantised, Symmetry, cast, dequantise, namespace, quantise, scaled


@dataclass(frozen=True)
class MAT:
    """A pair of widths in bits: MAT(8, 4) is written MAT84. Raises ValueError unless 1 <= low <= high <= 8."""

    high: int
    low: int

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.high <= MAX_BITS:
            raise ValueError(f"a pair of widths needs 1 <= low <= high <= {MAX_BITS}, got high {self.high} and low {self.low}")

    @classmethod
    def parse(cls, name: str) -> Self:
        """`MAT84` -> MAT(8, 4). Raises ValueError for anything else than MAT and two digits that make a pair."""
        match = re.fullmatch(r"MAT(\d)(\d)", name.strip(), flags=re.IGNORECASE)
        if match is None:
            raise ValueError(f"unknown pair of widths {name!r}; write MAT and the high and low width in bits, such as MAT84")
        return cls(int(match[1]), int(match[2]))

    @property
    def dropped(self) -> int:
        """Bits of the LSB slice; 0 where the two widths are equal."""
        return self.high - self.low

    def __str__(self) -> str:
        return f"MAT{self.high}{self.low}"


def split(q: Quantised, bits_low: int) -> tuple[Array, Array]:
    """(MSB, LSB) slices of the codes: their upper `bits_low` bits, sign kept, and the rest, both in the codes' dtype.

    The LSB slice is all zero where bits_low is the full width. Raises ValueError unless 1 <= bits_low <= q.bits.
    """
    k = MAT(q.bits, bits_low).dropped
    return q.codes >> k, q.codes & (2**k - 1)


def low(q: Quantised, bits_low: int, scheme: str = "amat") -> Array:
    """Low-bit weights made from high-bit codes by a scheme of SCHEMES, f32, shaped like the weights.

    Raises ValueError for an unknown scheme, for one that needs the weights themselves (base_asym, base_sym) and where `q` is
    symmetric and the scheme is not, or the other way round.
    """
    chosen = named(scheme)
    if chosen.is_requantised:
        raise ValueError(f"scheme {scheme} is quantised from the weights; use approximate(weights, pair, {scheme!r})")
    if chosen.symmetry != q.symmetry:
        raise ValueError(f"scheme {scheme} cuts {chosen.symmetry} codes, got {q.symmetry} ones")
    return chosen.values(q, MAT(q.bits, bits_low).dropped)


def approximate(w: Array, pair: MAT, scheme: str = "amat", group: int = GROUP) -> Array:
    """What a scheme makes of weights w (..., n), f32: quantised, cut and turned back. Raises ValueError as `quantise` does."""
    chosen = named(scheme)
    q = quantise(w, chosen.stored_bits(pair), group, chosen.symmetry)
    return chosen.values(q, pair.dropped)


@dataclass(frozen=True)
class Scheme:
    """One row of the comparison. values(q, k): the weights left of codes `q` when k of their bits are gone."""

    symmetry: Symmetry
    values: Callable[[Quantised, int], Array]
    is_slice: bool = True  # the low-bit codes are the upper bits of the high-bit ones: stored once for both widths
    is_requantised: bool = False  # quantised at the low width from the weights themselves

    def stored_bits(self, pair: MAT) -> int:
        """Width at which the weights are quantised before `values` is called."""
        return pair.low if self.is_requantised else pair.high


def named(scheme: str) -> Scheme:
    """SCHEMES[scheme]; raises ValueError naming the known ones."""
    if scheme not in SCHEMES:
        raise ValueError(f"unknown scheme {scheme!r}; known: {', '.join(SCHEMES)}")
    return SCHEMES[scheme]


def _whole(q: Quantised, k: int) -> Array:
    return dequantise(q)


def _round_sym(q: Quantised, k: int) -> Array:
    rounded = namespace(q.codes).floor(cast(q.codes, "float32") * 2.0**-k + 0.5)
    return scaled(q, _clipped(rounded, q.bits - k), None, 2**k)


def _clipped(codes: Array, bits: int) -> Array:
    return namespace(codes).clip(codes, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


# Names a person types. high_*: no bit missing, the reference; base_*: quantised at the low width from the weights.
SCHEMES: dict[str, Scheme] = {
    "high_asym": Scheme("asymmetric", _whole),
    "high_sym": Scheme("symmetric", _whole),
    "base_asym": Scheme("asymmetric", _whole, is_slice=False, is_requantised=True),
    "base_sym": Scheme("symmetric", _whole, is_slice=False, is_requantised=True),
    # (q>>k - zp>>k) * s*2^k: a zero weight has q = zp and stays exactly zero.
    "amat": Scheme("asymmetric", lambda q, k: scaled(q, q.codes >> k, None if q.zero_point is None else q.zero_point >> k, 2**k)),
    # The middle of the 2^k codes that share their upper bits, on the high grid; zero weights do not stay zero.
    "amat_mid": Scheme("asymmetric", lambda q, k: scaled(q, cast((q.codes >> k) << k, "float32") + (2**k - 1) / 2, q.zero_point)),
    # (q>>k - zp) * s*2^k: the zero point is left as it was, and every weight moves by as much. Diverges.
    "trunc_asym": Scheme("asymmetric", lambda q, k: scaled(q, q.codes >> k, q.zero_point, 2**k)),
    # Lower bits set to zero on the high grid.
    "trunc_asym_floor": Scheme("asymmetric", lambda q, k: scaled(q, (q.codes >> k) << k, q.zero_point)),
    "trunc_sym": Scheme("symmetric", lambda q, k: scaled(q, q.codes >> k, None, 2**k)),
    # A symmetric grid stored from zero up, b bits, cut without its midpoint: 2^(b-1) stays where 2^(b-1-k) is meant. Diverges.
    "trunc_sym_unshifted": Scheme(
        "symmetric",
        lambda q, k: scaled(q, cast(q.codes >> k, "float32") + ((1 << q.bits - 1 - k) - (1 << q.bits - 1)), None, 2**k),
    ),
    # Truncated codes under the scale of the whole ones. Diverges.
    "trunc_sym_unscaled": Scheme("symmetric", lambda q, k: scaled(q, q.codes >> k, None)),
    # Codes beyond the low width saturate under the scale of the whole ones. Diverges.
    "clip_sym": Scheme("symmetric", lambda q, k: scaled(q, _clipped(q.codes, q.bits - k), None), is_slice=False),
    # A one in the place of the highest missing bit; with no bit missing, the codes themselves.
    "lsb_aug": Scheme("symmetric", lambda q, k: scaled(q, cast(q.codes >> k, "float32") + (0.5 if k else 0.0), None, 2**k)),
    # Codes rounded, not cut, to the low width, halves up as an adder does: the slice is no longer a part of the code.
    "round_sym": Scheme("symmetric", _round_sym, is_slice=False),
}
