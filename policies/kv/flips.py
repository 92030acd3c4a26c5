"""Bit flips in stored words: 16-bit fixed point, one scale per head, or IEEE half precision; bit 15 is the sign.

Fixed point is sign and magnitude by default: a lost sign then costs twice the value, and not half of the range as in two's
complement. The paper does not say which it is.
"""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.kv.refresh import BitRates

BITS, LSB_BITS = 16, 8
LARGEST, SIGN = 32767, np.int16(-32768)
FP16_LARGEST = 65504.0
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
            drawn = rng.random(shape, np.float32)
            for mask, rate in zip(masks, rates, strict=True):
                mask |= (drawn < rate).astype(np.uint16) << np.uint16(bit)
    return masks.view(np.int16)
