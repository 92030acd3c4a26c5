"""How keys and values lie in a live cache: as computed, in 4 bits after a rotation, or in words that lose bits between refreshes.

A storage turns what a layer computed into planes that are kept by slot, and planes into what attention reads. Words of tokens
with high scores (HST) and of the others (LST) may lose bits at different rates; a frozen draw then keeps two planes, and a token
reads from the one of the group it is in.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from tokentape.policies.kv import storage as memory
from tokentape.policies.kv.refresh import BitRates

NONE = BitRates()
HEADROOM = 1.25  # of the largest value in the prompt, for those of later tokens (assumed)
Planes = tuple[torch.Tensor, ...]


class Plain:
    """As the model computed them, counted as 16-bit values."""

    needs_groups = False

    def begin(self) -> None:
        """A new batch comes."""

    def bits_of(self, width: int) -> float:
        """Bits that a value of a head of that width takes."""
        return float(memory.BITS)

    def write(self, x: torch.Tensor, place: tuple[int, str], is_prompt: bool) -> Planes:
        """Planes of x (batch, heads, n, width); place: layer and `keys`, `values` or, of one head, `inputs`."""
        return (x,)

    def read(self, planes: Planes, is_hst: torch.Tensor | None, place: tuple[int, str]) -> torch.Tensor:
        """What attention gets; is_hst (batch, heads, slots) bool where the storage `needs_groups`."""
        return planes[0]


@dataclass
class Rotated(Plain):
    """QuaRot-style quantisation (policies/kv/storage.py)."""

    method: memory.QuaRot = field(default_factory=memory.QuaRot)

    def bits_of(self, width: int) -> float:
        return self.method.bits_per_value(width)

    def write(self, x: torch.Tensor, place: tuple[int, str], is_prompt: bool) -> Planes:
        return (self.method.stored(x).to(x) if place[1] != "inputs" else x,)  # layer inputs stay in 16 bits


@dataclass
class Leaking(Plain):
    """16-bit words that lose bits. word: int16 (fixed point, sign and magnitude), int16-twos (complement), fp16.

    Fixed point spans HEADROOM times the prompt's largest value, by request, layer, head, keys or values, and channel; what is
    larger later saturates.
    resample False: bits are lost once, when the token is stored; a token that changes group reads what that group has lost. True:
    anew at every read.
    """

    rates: BitRates = field(default_factory=BitRates)
    word: str = "int16"
    resample: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.word not in memory.WORDS:
            raise ValueError(f"word {self.word!r} is unknown; choose {', '.join(memory.WORDS)}")
        self.is_twos = self.word == "int16-twos"
        by_bit = memory.rates_by_bit(self.rates)
        self.needs_groups = not np.array_equal(*by_bit)
        self.by_bit = by_bit if self.needs_groups else by_bit[:1]  # one plane: all tokens lose the same
        self.rng, self.dtype = np.random.default_rng(self.seed), torch.float32  # what the model computes in
        self.scales: dict[tuple[int, str], Any] = {}

    def begin(self) -> None:
        self.scales = {}

    def write(self, x: torch.Tensor, place: tuple[int, str], is_prompt: bool) -> Planes:
        values, self.dtype = x.detach().float().cpu().numpy(), x.dtype
        if is_prompt:
            largest = HEADROOM * np.abs(values).max(axis=2, keepdims=True)
            self.scales[place] = np.maximum(largest / memory.LARGEST, 1e-30).astype(np.float32)
        is_half = self.word == "fp16"
        words = memory.to_half(values) if is_half else memory.to_fixed(values, self.scales[place], self.is_twos)
        if self.resample:
            return (torch.from_numpy(words).to(x.device),)
        masks = memory.flip_masks(words.shape, self.by_bit, self.rng)
        return tuple(self._floats(words ^ mask, place, x) for mask in masks)

    def read(self, planes: Planes, is_hst: torch.Tensor | None, place: tuple[int, str]) -> torch.Tensor:
        if not self.needs_groups:
            is_hst = None
        if not self.resample:
            return planes[0] if is_hst is None else torch.where(is_hst[..., None], planes[0], planes[1])
        words = planes[0].cpu().numpy()
        masks = memory.flip_masks(words.shape, self.by_bit, self.rng)
        lost = masks[0] if is_hst is None else np.where(is_hst.cpu().numpy()[..., None], *masks)
        return self._floats(words ^ lost, place, planes[0])

    def _floats(self, words: np.ndarray, place: tuple[int, str], like: torch.Tensor) -> torch.Tensor:
        is_half = self.word == "fp16"
        values = memory.from_half(words) if is_half else memory.from_fixed(words, self.scales[place], self.is_twos)
        return torch.from_numpy(values).to(like.device, self.dtype)


def storage_of(name: str, rates: BitRates = NONE, resample: bool = False, bits: int = 4, seed: int = 0) -> Plain:
    """A storage by its name; rates: of the bits that words lose. Raises ValueError for an unknown name, and where bits are to be
    lost that do not lie in words."""
    if name not in memory.STORAGES:
        raise ValueError(f"storage {name!r} is unknown; choose {', '.join(memory.STORAGES)}")
    if name in memory.WORDS:
        return Leaking(rates, name, resample, seed)
    if resample or rates != NONE:
        raise ValueError(f"storage {name} loses no bits: give rate, intervals or resample with storage int16 or fp16")
    return Rotated(memory.QuaRot(bits)) if name == "quarot" else Plain()
