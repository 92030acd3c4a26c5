"""Prefetching by a recorded transition table: what tokens choose in a layer, given what they chose in an earlier one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.kernels import kernel
from tokentape.policies.prefetch.rule import PREDICT_SIGNATURE, Floats, Prefetcher


@kernel(PREDICT_SIGNATURE, allocates=False)
def _by_table(layer, target, tokens, weights, memory, params, scores):  # type: ignore[no-untyped-def]
    for e in range(tokens.shape[0]):
        used = weights[e] if params[0] else tokens[e]
        if used > 0.0:
            for other in range(tokens.shape[0]):
                scores[other] += used * memory[target, e, other]


@dataclass(frozen=True)
class Transitions(Prefetcher):
    """Experts by how often the first `profile_frac` of the tape's tokens went to them from those of the event.

    by_gate: an expert speaks by the gate weights of its tokens, else by their number. Tokens that the table is made of foretell
    nothing; at 1.0 it is made of the tape itself, and is a bound.
    """

    profile_frac: float = 0.1
    by_gate: bool = True
    predict = staticmethod(_by_table)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.profile_frac <= 1.0:
            raise ValueError(f"transitions: profile_frac {self.profile_frac} must lie in (0, 1]")

    @property
    def is_bound(self) -> bool:
        return self.profile_frac >= 1.0

    @property
    def profiled_frac(self) -> float:
        return self.profile_frac

    def params(self) -> Floats:
        return np.array([float(self.by_gate)])

    def memory(self, ids: NDArray[np.int16], n_experts: int) -> Floats:
        """(MoE layers, E, E): of layer m, shares of the choices there by the expert `distance` layers before."""
        found = np.zeros((ids.shape[1], n_experts, n_experts))
        for target in range(self.distance, ids.shape[1]):
            here, there = (ids[:, m].astype(np.int64) for m in (target - self.distance, target))
            pairs = (here[:, :, None] * n_experts + there[:, None])[(here >= 0)[:, :, None] & (there >= 0)[:, None]]
            counts = np.bincount(pairs, minlength=n_experts**2).reshape(n_experts, n_experts)
            found[target] = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        return found
