"""Attention-based eviction: AEP, AERP (Kelle section 4) and H2O, which rank tokens by the attention they have received.

    s[h, n] = sum over queries i >= n of A[i, h, n]

a column sum: the printed Eq. 3 of Kelle sums a row, which is always 1.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.bounds import Must, one_of
from tokentape.policies.kernels import float64, kernel, uint64
from tokentape.policies.kv.rule import WEIGH_SIGNATURE, Floats, KVPolicy

IMPORTANCE = ("sum", "mean", "decay")
SCORE_KINDS = ("softmax", "raw")
_, _MEAN, _DECAY = range(3)
# The register file's range: twice the mean size of the head's scores; larger ones saturate (assumed, the paper gives none).
REGISTER_SPAN = 2.0


@dataclass(frozen=True)
class AEP(KVPolicy):
    """Attention-based eviction, one set of tokens per head (with GQA: per KV head, its query heads' scores summed).

    importance: sum of the attention received, its mean over the queries that could see the token, or a sum that decays by `gamma`
    a query (of a prompt's queries only the mean is kept, decayed as if each had it). score_kind: softmax, or raw logits (the
    hardware's). score_bits: width of the register that scores are compared in; None: not rounded. is_per_head False:
    the heads of a layer share one set.
    """

    importance: Annotated[str, one_of(IMPORTANCE)] = "sum"
    gamma: Annotated[float, Must("must lie between 0 and 1", lambda gamma: 0.0 < gamma < 1.0)] = 0.98
    score_kind: Annotated[str, one_of(SCORE_KINDS)] = "softmax"
    score_bits: Annotated[int | None, Must("must lie in 2..16, or be left out", lambda bits: 2 <= bits <= 16)] = None
    is_per_head: bool = True

    @staticmethod
    @kernel(WEIGH_SIGNATURE)
    def weigh(mass, positions, now, total, rank, memory, salt, params):  # type: ignore[no-untyped-def]
        kind, gamma, lowest, highest = params[0], params[1], params[2], params[3]
        n = uint64(mass.shape[0])
        for s in range(n):
            total[s] = (gamma if kind == _DECAY else 1.0) * total[s] + mass[s]
            rank[s] = total[s] / float64(now - positions[s] + 1) if kind == _MEAN else total[s]
        if highest > 0.0:
            size, count = 0.0, 0
            for s in range(n):
                if positions[s] >= 0:
                    size += abs(rank[s])
                    count += 1
            step = REGISTER_SPAN * size / (count * highest)
            for s in range(n):
                if step > 0.0:
                    rank[s] = min(max(np.floor(rank[s] / step), lowest), highest)

    @property
    def needs_raw(self) -> bool:  # type: ignore[override]
        return self.score_kind == "raw"

    def params(self) -> Floats:
        lowest, highest = 0, 0
        if self.score_bits is not None:
            signed = self.score_bits - self.needs_raw
            lowest, highest = -(2**signed) * self.needs_raw, 2**signed - 1
        return np.array([IMPORTANCE.index(self.importance), self.gamma, lowest, highest], np.float64)

    def prompt_scores(self, mass: Floats, salts: NDArray[np.int64]) -> tuple[Floats, Floats]:
        n_seen = np.arange(mass.shape[1], 0, -1, dtype=np.float64)  # queries that could see each key
        if self.importance == "sum":
            return mass, mass
        if self.importance == "mean":
            return mass, mass / n_seen
        decayed = mass / n_seen * (1.0 - self.gamma**n_seen) / (1.0 - self.gamma)
        return decayed, decayed


@dataclass(frozen=True)
class AERP(AEP):
    """AEP that also stores a popular token's layer input in place of its keys and values (recompute.py).

    theta: a token is popular if more than this share of the heads retain it. accounting: paper, or physical, where the layer
    input must be the smaller of the two to be stored.
    """

    theta: Annotated[float, Must("must be a share of the heads, 0 to 1", lambda theta: 0.0 <= theta <= 1.0)] = 0.5
    accounting: Annotated[str, Must("is unknown; choose paper or physical", ("paper", "physical").__contains__)] = "paper"


@dataclass(frozen=True)
class H2O(KVPolicy):
    """Heavy hitters: half of the budget for the tokens with the most attention, half for recent ones (Zhang et al. 2023)."""

    sink: int = 0
    weigh = AEP.weigh

    def params(self) -> Floats:
        return AEP().params()
