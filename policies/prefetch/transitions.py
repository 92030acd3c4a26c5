"""Prefetching by what a recorded stretch of the tape shows: what tokens choose in a layer, given what they chose in an earlier
one, and what a stretch of text like the one being written took there.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.bounds import Positive, Share, SomeShare
from tokentape.policies.kernels import kernel
from tokentape.policies.prefetch.rule import PREDICT_SIGNATURE, Floats, Prefetcher


@dataclass(frozen=True)
class Transitions(Prefetcher):
    """Experts by how often the first `profile_frac` of the tape's tokens went to them from those of the event.

    by_gate: an expert speaks by the gate weights of its tokens, else by their number. Tokens that the table is made of foretell
    nothing; at 1.0 it is made of the tape itself, and is a bound.
    """

    profile_frac: SomeShare = 0.1
    by_gate: bool = True

    @staticmethod
    @kernel(PREDICT_SIGNATURE, allocates=False)
    def predict(layer, target, tokens, weights, memory, params, scores):  # type: ignore[no-untyped-def]
        for e in range(tokens.shape[0]):
            used = weights[e] if params[0] else tokens[e]
            if used > 0.0:
                for other in range(tokens.shape[0]):
                    scores[other] += used * memory[target, e, other]

    @property
    def is_bound(self) -> bool:
        return self.profile_frac >= 1.0

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


@dataclass(frozen=True)
class ActivationMatrix(Transitions):
    """Experts by the tokens that went to them in the recorded stretch whose counts by layer and expert are most like those of the
    run (by cosine), as MoE-Infinity (L. Xue et al., arXiv:2401.14361), whose matrices are of sequences and chosen by
    clustering.

    n_matrices: stretches that the first `profile_frac` of the tape's tokens are cut into. keep_frac: of what the run has counted,
    that is left with every iteration. by_gate: counts gate weights in place of tokens, of the run alone.
    """

    by_gate: bool = False
    n_matrices: Positive = 16
    keep_frac: Share = 0.95

    @staticmethod
    @kernel(PREDICT_SIGNATURE, allocates=False)
    def predict(layer, target, tokens, weights, memory, params, scores):  # type: ignore[no-untyped-def]
        for m in range(memory.shape[0] * (layer == 0)):
            for e in range(tokens.shape[0]):
                memory[m, 0, e] *= params[1]
        for e in range(tokens.shape[0]):
            memory[layer, 0, e] += weights[e] if params[0] else tokens[e]
        nearest, found = 0.0, -1
        for i in range(1, memory.shape[1]):
            alike = 0.0
            for m in range(memory.shape[0]):
                for e in range(tokens.shape[0]):
                    alike += memory[m, 0, e] * memory[m, i, e]
            if alike > nearest:
                nearest, found = alike, i
        if found > 0:
            for e in range(tokens.shape[0]):
                scores[e] = memory[target, found, e]

    def params(self) -> Floats:
        return np.array([float(self.by_gate), self.keep_frac])

    def memory(self, ids: NDArray[np.int16], n_experts: int) -> Floats:
        """(MoE layers, 1 + n_matrices, E): of the run, 0, and of stretches, each of length 1."""
        found = np.zeros((ids.shape[1], 1 + self.n_matrices, n_experts))
        for i, stretch in enumerate(np.array_split(ids, self.n_matrices), 1):
            for m in range(ids.shape[1]):
                chosen = stretch[:, m][stretch[:, m] >= 0]
                found[m, i] = np.bincount(chosen, minlength=n_experts)
        found /= np.maximum(np.sqrt((found**2).sum(axis=(0, 2))), 1e-300)[None, :, None]
        return found
