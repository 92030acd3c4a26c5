"""Random eviction: a token drawn anew at every step leaves; what scores are worth is what beats it."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.bounds import Must
from tokentape.policies.kernels import F64_2D, I64, float64, int64, kernel, uint64, void
from tokentape.policies.kv.rule import WEIGH_SIGNATURE, Floats, KVPolicy


@kernel(float64(int64, int64, int64, int64))
def drawn(seed, salt, position, now):  # type: ignore[no-untyped-def]
    """A number in [0, 1) that depends on the arguments alone (splitmix64), so that a tape and a live model draw the same."""
    z = uint64(seed) * uint64(0x9E3779B97F4A7C15) + uint64(salt)
    for word in (position, now):
        z = (z ^ uint64(word)) + uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> uint64(27))) * uint64(0x94D049BB133111EB)
        z = z ^ (z >> uint64(31))
    return float64(z >> uint64(11)) * 2.0**-53


@kernel(void(int64, I64, F64_2D))
def _draw_prompt(seed, salts, ranks):  # type: ignore[no-untyped-def]
    for g in range(ranks.shape[0]):
        for position in range(ranks.shape[1]):
            ranks[g, position] = drawn(seed, salts[g], position, ranks.shape[1] - 1)


@dataclass(frozen=True)
class RandomEviction(KVPolicy):
    """Evicts any token outside sink and recent window; with both 0 it is unprotected, and the newest may leave too."""

    # Exact as one of `params`.
    seed: Annotated[int, Must("must lie in 0..2^53 - 1", lambda seed: 0 <= seed < 2**53)] = 0

    @staticmethod
    @kernel(WEIGH_SIGNATURE)
    def weigh(mass, positions, now, total, rank, memory, salt, params):  # type: ignore[no-untyped-def]
        for s in range(uint64(mass.shape[0])):
            rank[s] = drawn(int64(params[0]), salt, positions[s], now)

    def params(self) -> Floats:
        return np.array([float(self.seed)])

    def prompt_scores(self, mass: Floats, salts: NDArray[np.int64]) -> tuple[Floats, Floats]:
        rank = np.empty_like(mass)
        _draw_prompt(self.seed, salts, rank)
        return mass, rank
