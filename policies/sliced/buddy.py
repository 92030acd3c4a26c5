"""Buddy substitution: a missing expert is replaced by the resident one that behaves most like it.

Source: the idea of BuddyMoE (arXiv 2511.10054); its prefetcher and its per-token criteria are left out, and similarity is taken
from recorded gates.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.kernels import kernel, uint64
from tokentape.policies.sliced.ranking import SELECT_SIGNATURE, Router, top_k


@kernel(SELECT_SIGNATURE)
def _substituted(values, gates, resident, strength, params, table, memory, scratch, keys, order, chosen):  # type: ignore[no-untyped-def]
    k = uint64(chosen.shape[0])
    n_experts = uint64(values.shape[0])
    top_k(values, chosen.shape[0], keys, order)
    for e in range(n_experts):
        scratch[e] = 1.0 if values[e] > -np.inf and resident[e] else 0.0  # who may still stand in
    for j in range(k):
        chosen[j] = order[j]
        if order[j] >= 0:
            scratch[uint64(order[j])] = 0.0
    for j in range(k):
        if chosen[j] < 0 or resident[uint64(chosen[j])]:
            continue
        missing = uint64(chosen[j])
        closest, has_buddy = params[0], False
        for e in range(n_experts):
            likeness = table[missing, e]
            if scratch[e] > 0.0 and (likeness > closest or (likeness == closest and not has_buddy)):
                closest, has_buddy = likeness, True
                chosen[j] = e
        scratch[uint64(chosen[j])] = 0.0


@dataclass(frozen=True, eq=False)
class Buddy(Router):
    """Of the model's top k, each missing expert by falling rank gives way to its most similar resident expert.

    similarity: (L, E, E) f32, row: the missing expert (see `gate_similarity`). threshold: least similarity to substitute; above
    every entry it is stock. An expert stands in once per token, and none of the top k stands in for another.
    """

    similarity: NDArray[np.float32] = field(repr=False)
    threshold: float = 0.5
    select = staticmethod(_substituted)

    def params(self) -> NDArray[np.float64]:
        return np.array([self.threshold], np.float64)

    def table(self, n_layers: int, n_experts: int) -> NDArray[np.float32]:
        wanted = (n_layers, n_experts, n_experts)
        if self.similarity.shape != wanted:
            raise ValueError(f"buddy: similarity is {self.similarity.shape}, the model needs {wanted} (layers, experts, experts)")
        return np.ascontiguousarray(self.similarity, np.float32)


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
