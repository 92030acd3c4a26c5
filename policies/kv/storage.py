"""How keys and values lie in memory: 16-bit words that may lose bits between refreshes, or 4-bit ones after a rotation.

Words are fixed point, one scale per head, or IEEE half precision; bit 15 is the sign. Fixed point is sign and magnitude by
default: a lost sign then costs twice the value, and not half of the range as in two's complement. The paper does not say which.

QuaRot (Ashkboos et al. 2024) is the baseline that stores all tokens in fewer bits: a Hadamard rotation spreads the outliers of a
head's channels over all of them, so that few levels suffice; reading rotates back. It runs on numpy arrays and torch tensors.
"""

from dataclasses import astuple, dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.bounds import Bounded, Must
from tokentape.policies.kv.refresh import BitRates
from tokentape.policies.quantise import Array, cast, dequantise, namespace, quantise

BITS, LSB_BITS = 16, 8
LARGEST, SIGN = 32767, np.int16(-32768)
FP16_LARGEST = 65504.0
RARE = 2.0**-16  # rates below are drawn in double precision: single has steps of 2^-24, a 256th of this
Words = NDArray[np.int16]


def to_fixed(x: NDArray[np.floating[Any]], scale: NDArray[np.floating[Any]], twos: bool = False) -> Words:
    """Nearest words; scale broadcasts: the value of one step. Values beyond the range saturate. twos: two's complement."""
    words = np.clip(np.rint(x / scale), -LARGEST, LARGEST).astype(np.int16)
    return words if twos else np.where(words < 0, -words | SIGN, words)


def from_fixed(words: Words, scale: NDArray[np.floating[Any]], twos: bool = False) -> NDArray[np.float32]:
    if not twos:
        words = np.where(words < 0, -(words & np.int16(LARGEST)), words)
    return (words.astype(np.float32) * scale).astype(np.float32)


def to_half(x: NDArray[np.floating[Any]]) -> Words:
    words: Words = np.clip(x, -FP16_LARGEST, FP16_LARGEST).astype(np.float16).view(np.int16)
    return words


def from_half(words: Words) -> NDArray[np.float32]:
    """NaN reads as 0, infinities as the largest number."""
    return np.nan_to_num(words.view(np.float16).astype(np.float32), nan=0.0, posinf=FP16_LARGEST, neginf=-FP16_LARGEST)


def rates_by_bit(rates: BitRates) -> NDArray[np.float64]:
    """(2, 16) for HST and LST words, bit 0 first."""
    hst_msb, hst_lsb, lst_msb, lst_lsb = astuple(rates)
    n_msb = BITS - LSB_BITS
    return np.array([[hst_lsb] * LSB_BITS + [hst_msb] * n_msb, [lst_lsb] * LSB_BITS + [lst_msb] * n_msb])


def flip_masks(shape: tuple[int, ...], by_bit: NDArray[np.float64], rng: np.random.Generator) -> Words:
    """(k, *shape) masks to XOR with words, one for each row of by_bit (k, 16).

    All k are cut from one draw per bit: a bit that flips at a rate also flips at any higher one, so that a word that changes
    groups keeps what it has lost.
    """
    masks = np.zeros((len(by_bit), *shape), np.uint16)
    for bit in range(BITS):
        rates = by_bit[:, bit]
        if rates.any():
            is_rare = bool(np.any((rates > 0.0) & (rates < RARE)))
            drawn = rng.random(shape) if is_rare else rng.random(shape, np.float32)
            for mask, rate in zip(masks, rates, strict=True):
                mask |= (drawn < rate).astype(np.uint16) << np.uint16(bit)
    return masks.view(np.int16)


WORDS = ("int16", "int16-twos", "fp16")  # 16 bits that may be lost between refreshes
STORAGES = ("plain", *WORDS, "quarot")  # how keys and values lie in memory; plain: as computed, 16 bits


@dataclass(frozen=True)
class QuaRot(Bounded):
    """bits per value, asymmetric, one scale and zero point for a token's channels in a head."""

    bits: Annotated[int, Must("must lie in 1..8", lambda bits: 1 <= bits <= 8)] = 4

    def stored(self, x: Array) -> Array:
        """What reading gives back of x (..., head_dim), f32."""
        rotated = hadamard(cast(x, "float32"))
        return hadamard(dequantise(quantise(rotated, self.bits, x.shape[-1])))

    def bits_per_value(self, head_dim: int) -> float:
        """With the 16-bit scale and the zero point of each head."""
        return self.bits + (16 + self.bits) / head_dim


def hadamard(x: Array) -> Array:
    """x (..., n) times the orthonormal Walsh-Hadamard matrix; of n = m x 2^k each of m runs by itself. Its own inverse."""
    n = x.shape[-1]
    size = n & -n
    y = x.reshape(*x.shape[:-1], n // size, size)
    half = 1
    while half < size:
        pairs = y.reshape(*y.shape[:-1], size // (2 * half), 2, half)
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        y = namespace(x).stack([first + second, first - second], -2).reshape(*y.shape)
        half *= 2
    return (y / size**0.5).reshape(*x.shape)
