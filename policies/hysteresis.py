"""LRU with pins: an expert used more often than an upper threshold is pinned until it is used less often than a lower one.

How often: lookups, of which each counts half after half_life_passes (a pass is an event per MoE layer). Between two lookups the
count only falls, so the event in which it crosses `lower` is known at the first; a pinned expert leaves as if used then. Where
all are pinned, the pin that ends first leaves. A rule of our own.
"""

from dataclasses import dataclass

import numpy as np

from tokentape.policies.kernels import kernel
from tokentape.policies.protocol import RANK_SIGNATURE, Ranked


@dataclass(frozen=True)
class Hysteresis(Ranked):
    """upper, lower: lookups, those of an expert that every pass uses being about 1.44 half_life_passes."""

    upper: float = 4.0
    lower: float = 2.0
    half_life_passes: float = 16.0

    @staticmethod
    @kernel(RANK_SIGNATURE, allocates=False)
    def rank(of):  # type: ignore[no-untyped-def]
        upper, lower, half_life = of.params[0], of.params[1], of.params[2] * of.n_layers
        count = of.memory[0] * 2.0 ** (-of.since / half_life) + 1.0
        is_pinned = count > upper or of.now < of.memory[1]
        end = of.now + half_life * np.log2(count / lower) if is_pinned else 0.0
        of.memory[0], of.memory[1] = count, end
        return max(end, of.now)

    def __post_init__(self) -> None:
        if not (0 < self.lower <= self.upper and self.half_life_passes > 0):
            raise ValueError(
                f"hysteresis: 0 < lower {self.lower} <= upper {self.upper}, and half_life_passes {self.half_life_passes} above 0"
            )
