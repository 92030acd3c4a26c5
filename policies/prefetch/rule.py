"""What a prefetcher is: a frozen dataclass whose one function scores, as a layer's event begins, the experts of a later layer.

Two that need no more than that: the bound of all that foretell, and what was used most so far.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.bounds import Bounded, Count, Positive
from tokentape.policies.kernels import F64, F64_3D, int64, kernel, void

Floats = NDArray[np.float64]
# predict(layer, target, tokens, weights, memory, params, scores): called at every event, before its experts are looked up
#   layer, target  i64            MoE layers: of the event, and the one to foretell; after the last comes 0: nothing is fetched
#   tokens         (E,) f64       of the event, on each expert       weights  (E,) f64  their gate weights; else as tokens
#   memory         (L, M, E) f64  the policy's own, kept over a run  params   (p,) f64  the policy's parameters
#   scores         (E,) f64       out, zeros before: experts with the highest above 0 are fetched, ties by number
PREDICT_SIGNATURE = void(int64, int64, F64, F64, F64_3D, F64, F64)


@dataclass(frozen=True)
class Prefetcher(Bounded):
    """n: experts foretold at an event; 0: as many as it has itself. distance: MoE layers between an event and what it foretells.

    One function; plain Python is compiled. sees: scores begin as the tokens that layer `target` is about to have on each expert.
    profile_frac: share of the tape's tokens, from its start, that `memory` is made of; nothing is foretold by these.
    """

    n: Count = 0
    distance: Positive = 1
    sees: ClassVar[bool] = False
    profile_frac = 0.0  # without a type it is no field, and those of a policy stay in its order
    predict: ClassVar[Any]  # of PREDICT_SIGNATURE

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.profile_frac <= 1.0:
            raise ValueError(f"prefetch: profile_frac {self.profile_frac} in 0..1")

    @property
    def is_bound(self) -> bool:
        return self.sees

    def params(self) -> Floats:
        """Handed to `predict`, f64 (p,)."""
        return np.zeros(0)

    def memory(self, ids: NDArray[np.int16], n_experts: int) -> Floats:
        """(MoE layers, M, E) as a run begins. ids (tokens, MoE layers, k): of the share that is profiled; -1: not run."""
        return np.zeros((ids.shape[1], 1, n_experts))


@dataclass(frozen=True)
class Oracle(Prefetcher):
    """All experts that the next layer is about to look up (n: those with most tokens)."""

    sees: ClassVar[bool] = True

    @staticmethod
    @kernel(PREDICT_SIGNATURE, allocates=False)
    def predict(layer, target, tokens, weights, memory, params, scores):  # type: ignore[no-untyped-def]
        """The scores are the tokens to come."""


@dataclass(frozen=True)
class Popularity(Prefetcher):
    """Experts by the tokens that chose them since the run began."""

    @staticmethod
    @kernel(PREDICT_SIGNATURE, allocates=False)
    def predict(layer, target, tokens, weights, memory, params, scores):  # type: ignore[no-untyped-def]
        for e in range(tokens.shape[0]):
            memory[layer, 0, e] += tokens[e]
            scores[e] = memory[target, 0, e]
