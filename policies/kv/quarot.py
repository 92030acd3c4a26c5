"""4-bit KV after a Hadamard rotation (QuaRot, Ashkboos et al. 2024): the baseline that stores all tokens in fewer bits.

A rotation spreads the outliers of a head's channels over all of them, so that few levels suffice; reading rotates back. The same
code runs on numpy arrays and torch tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokentape.policies.quantise import Array, cast, dequantise, namespace, quantise

WORDS = ("int16", "int16-twos", "fp16")  # 16 bits that may be lost between refreshes (flips.py)
STORAGES = ("plain", *WORDS, "quarot")  # how keys and values lie in memory; plain: as computed, 16 bits


@dataclass(frozen=True)
class QuaRot:
    """bits per value, asymmetric, one scale and zero point for a token's channels in a head."""

    bits: int = 4

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 8:
            raise ValueError(f"bits {self.bits} must lie in 1..8")

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
