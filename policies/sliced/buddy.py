"""Buddy substitution: a missing expert is replaced by the resident one that behaves most like it.

Source: the idea of BuddyMoE (arXiv 2511.10054); its prefetcher and its per-token criteria are left out, and similarity is taken
from recorded gates.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.kernels import kernel, uint64
from tokentape.policies.sliced.ranking import CHOOSE_SIGNATURE, Router


@dataclass(frozen=True, eq=False)
class Buddy(Router):
    """Of the model's top k, each missing expert by falling rank gives way to its most similar resident expert.

    similarity: (L, E, E) f32, row: the missing expert (see `gate_similarity`). threshold: least similarity to substitute; above
    every entry it is stock. An expert stands in once per token, and none of the top k stands in for another.
    """

    similarity: NDArray[np.float32] = field(repr=False)
    threshold: float = 0.5

    @staticmethod
    @kernel(CHOOSE_SIGNATURE, allocates=False)
    def choose(layer, values, gates, natural, resident, phase, params, work, ids):  # type: ignore[no-untyped-def]
        k, n_experts, may = uint64(ids.shape[1]), uint64(values.shape[1]), work[0]
        of_layer = uint64(1) + uint64(layer) * n_experts * n_experts
        for i in range(uint64(values.shape[0])):
            for e in range(n_experts):
                may[e] = values[i, e] > -np.inf and resident[e]  # stand in
            for j in range(k):
                ids[i, j] = natural[i, j]
                if natural[i, j] >= 0:
                    may[uint64(natural[i, j])] = 0
            for j in range(k):
                if ids[i, j] < 0 or resident[uint64(ids[i, j])]:
                    continue
                missing = uint64(ids[i, j])
                closest, has_buddy = params[0], False
                for e in range(n_experts):
                    likeness = params[of_layer + missing * n_experts + e]
                    if may[e] and (likeness > closest or (likeness == closest and not has_buddy)):
                        closest, has_buddy = likeness, True
                        ids[i, j] = e
                may[uint64(ids[i, j])] = 0

    def params(self, n_layers: int, n_experts: int) -> NDArray[np.float64]:
        wanted = (n_layers, n_experts, n_experts)
        if self.similarity.shape != wanted:
            raise ValueError(f"buddy: similarity is {self.similarity.shape}, the model needs {wanted} (layers, experts, experts)")
        return np.append(self.threshold, self.similarity).astype(np.float64)


def gate_similarity(layer: NDArray[np.int32], gates: NDArray[np.float32], n_layers: int) -> NDArray[np.float32]:
    """(L, E, E) f32 cosine of two experts' gates over the recorded tokens of a layer; 0 where an expert was never weighed.

    layer (n,) in 0..L-1, gates (n, E). Record it on other tokens than those replayed.
    """
    found = np.zeros((n_layers, gates.shape[1], gates.shape[1]), np.float32)
    for i in range(n_layers):
        of_layer = gates[layer == i].astype(np.float64)
        length = np.sqrt((of_layer**2).sum(axis=0))
        unit = of_layer / np.where(length > 0, length, 1.0)
        found[i] = unit.T @ unit
    return found
