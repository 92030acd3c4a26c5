"""What is in the cache when decode starts (SliceMoE section 4.5): predictive cache warm-up and what it is compared with.

`state` sees what prefill left and says what decode finds; it never adds a slice that prefill did not pass through DRAM.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Prefilled:
    """What prefill leaves. msb, lsb: resident keys, least recently used first. rng: for the warm-up's draws.

    counted (3, K): tokens routed to each expert, their gate mass, and how often it was critical.
    """

    msb: Keys
    lsb: Keys
    counted: NDArray[np.float64]
    capacity_bytes: int
    msb_bytes: int
    lsb_bytes: int
    rng: np.random.Generator


class Warmup:
    """by_counts: prefill evicts by its own counts, else by last use."""

    by_counts: ClassVar[bool] = False

    def state(self, left: Prefilled) -> tuple[Keys, Keys]:
        """(MSB keys, LSB keys) that decode finds, least recently used first."""
        raise NotImplementedError


@dataclass(frozen=True)
class Empty(Warmup):
    """Decode starts with nothing."""

    def state(self, left: Prefilled) -> tuple[Keys, Keys]:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)


@dataclass(frozen=True)
class LastLayer(Warmup):
    """Decode finds what the layers that came last left: plain LRU."""

    def state(self, left: Prefilled) -> tuple[Keys, Keys]:
        return left.msb, left.lsb


@dataclass(frozen=True)
class RandomFill(Warmup):
    """Decode finds MSB slices of experts drawn at random, as many as fit. Nothing is charged for them."""

    def state(self, left: Prefilled) -> tuple[Keys, Keys]:
        drawn = left.rng.permutation(left.counted.shape[1])
        return drawn[: left.capacity_bytes // left.msb_bytes], np.zeros(0, np.int64)


@dataclass(frozen=True)
class PCW(Warmup):
    """Predictive cache warm-up: prefill keeps what its tokens used most, and decode evicts the rarest of it first.

    lsb_share_frac: share of the capacity that LSB slices of the most critical experts keep (3 to 5 %, assumed).
    """

    lsb_share_frac: float = 0.04
    by_counts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0.0 <= self.lsb_share_frac <= 1.0:
            raise ValueError(f"pcw: lsb_share_frac {self.lsb_share_frac} must lie in 0..1")

    def state(self, left: Prefilled) -> tuple[Keys, Keys]:
        count, _, critical = left.counted
        msb = left.msb[np.argsort(count[left.msb], kind="stable")]
        lsb = left.lsb[np.argsort(critical[left.lsb], kind="stable")]
        lsb = lsb[critical[lsb] > 0]
        n_kept = int(self.lsb_share_frac * left.capacity_bytes) // left.lsb_bytes if left.lsb_bytes else 0
        return msb, lsb[max(0, lsb.size - n_kept) :]
