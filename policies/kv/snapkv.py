"""SnapKV-style observation window: what the last queries attended to stays (Li et al. 2024)."""

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from tokentape.policies.kernels import float32, float64, kernel, uint64
from tokentape.policies.kv.rule import WEIGH_SIGNATURE, Floats, KVPolicy


@dataclass(frozen=True)
class SnapKV(KVPolicy):
    """Ranks by the attention of the last `window` queries, which also stay; after the prompt smoothed over `pool` neighbours.

    The published method compresses once, after the prompt. Here the window moves on with every token, so that the budget holds;
    a slot's neighbours are then no longer those of the text, and nothing is smoothed.
    """

    sink: int = 0
    window: int = 16
    pool: int = 5

    @staticmethod
    @kernel(WEIGH_SIGNATURE)
    def weigh(mass, positions, now, total, rank, memory, salt, params):  # type: ignore[no-untyped-def]
        """memory: the last m masses of each slot, in a ring."""
        at = uint64(now % memory.shape[1])
        for s in range(uint64(mass.shape[0])):
            if positions[s] == now:
                memory[s, :] = 0.0
            seen = float32(mass[s])
            total[s] += float64(seen) - float64(memory[s, at])
            memory[s, at] = seen
            rank[s] = total[s]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.recent != "auto":
            raise ValueError(f"recent {self.recent}: snapkv keeps its observation window; give window instead")
        if self.window < 1 or self.pool < 1 or self.pool % 2 == 0:
            raise ValueError(f"window {self.window} must be 1 or more, pool {self.pool} odd")
        if self.budget is not None and self.sink + self.window >= self.budget:
            raise ValueError(f"window {self.window} fills the budget of {self.budget} tokens; give a smaller window")

    @property
    def limits(self) -> tuple[int, int, int]:
        return (*super().limits[:2], self.window if self.budget is not None else 0)

    @property
    def prompt_queries(self) -> int:  # type: ignore[override]
        return self.window

    @property
    def memory(self) -> int:  # type: ignore[override]
        return self.window

    def prompt_scores(self, mass: Floats, salts: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """The window's own tokens do not take part in the smoothing: they stay in any case."""
        observed = mass[:, : max(0, mass.shape[1] - self.window)]
        rank = mass.copy()
        if observed.shape[1]:
            padded = np.pad(observed, ((0, 0), (self.pool // 2, self.pool // 2)))
            rank[:, : observed.shape[1]] = sliding_window_view(padded, self.pool, axis=1).mean(axis=2)
        return self.window * (mass / self.window).astype(np.float32).astype(np.float64), rank  # as `memory` has it, to the bit
