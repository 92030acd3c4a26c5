"""Caches that evict by no attention: the full one, where nothing leaves, and StreamingLLM (Xiao et al. 2024)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.kernels import kernel, uint64
from tokentape.policies.kv.importance import H2O
from tokentape.policies.kv.rule import WEIGH_SIGNATURE, Floats, KVPolicy


@dataclass(frozen=True)
class Full(KVPolicy):
    """Keeps every token; the baseline of all others. Scores, as H2O's, tell only whose words lose which bits."""

    budget: int | None = None
    sink: int = 0
    weigh = H2O.weigh
    params = H2O.params

    def __post_init__(self) -> None:
        if self.budget is not None:
            raise ValueError(f"budget {self.budget}: full keeps every token; leave budget out, or use another policy")
        super().__post_init__()


@dataclass(frozen=True)
class Streaming(KVPolicy):
    """Keeps `sink` first tokens and the latest of the rest; sink 0 is a plain window of recent tokens.

    The paper numbers positions within the cache; here keys keep the position they were rotated at.
    """

    sink: int = 4

    @staticmethod
    @kernel(WEIGH_SIGNATURE)
    def weigh(mass, positions, now, total, rank, memory, salt, params):  # type: ignore[no-untyped-def]
        for s in range(uint64(mass.shape[0])):
            rank[s] = positions[s]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.recent != "auto":
            raise ValueError(f"recent {self.recent}: streaming keeps what the sink leaves of the budget; leave recent out")

    @property
    def limits(self) -> tuple[int, int, int]:
        budget, sink, _ = super().limits
        return budget, sink, 0 if self.budget is None else budget - sink

    def prompt_scores(self, mass: Floats, salts: NDArray[np.int64]) -> tuple[Floats, Floats]:
        return mass, np.tile(np.arange(mass.shape[1], dtype=np.float64), (len(mass), 1))
