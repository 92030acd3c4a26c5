"""Resident experts go first among the model's best: its top M (Max-Rank), or the smallest prefix of experts that holds a given
share of the gate mass (Cumsum).

Source: arXiv 2412.00099, as SliceMoE section 4.4 names them.
"""

from dataclasses import dataclass
from typing import ClassVar

from tokentape.policies.bounds import Count, Positive, Share
from tokentape.policies.kernels import kernel, uint64
from tokentape.policies.sliced.ranking import CHOOSE_SIGNATURE, Router, top_k


@kernel(inline="always")
def _prefix(values, gates, share, k, keys, order):  # type: ignore[no-untyped-def]
    """Length of the prefix, at least k; `order` holds the ranking up to there and somewhat beyond."""
    total = 0.0
    for e in range(uint64(gates.shape[0])):
        total += gates[e]
    ranked, n = k, values.shape[0]
    while True:
        top_k(values, ranked, keys, order)
        mass = 0.0
        for j in range(uint64(ranked)):
            if order[j] < 0:
                return max(int(j), k)
            mass += gates[uint64(order[j])]
            if mass >= share * total:
                return max(int(j) + 1, k)
        if ranked == n:
            return n
        ranked = min(2 * ranked, n)


@kernel(inline="always")
def _resident_first(order, length, protect, resident, ids):  # type: ignore[no-untyped-def]
    """Fills ids (k,) from order[:length]: protected and resident ones, then the others, each by rank."""
    k, n = uint64(ids.shape[0]), uint64(0)
    ids[:] = -1
    for first in (True, False):
        for j in range(length):
            e = order[j]
            goes_first = j < protect or (e >= 0 and resident[uint64(e)] == 1)
            if n < k and e >= 0 and goes_first == first:
                ids[n] = e
                n += uint64(1)


@dataclass(frozen=True)
class MaxRank(Router):
    """k experts from the model's top `max_rank`: resident ones by rank, then the rest by rank. max_rank <= k is stock."""

    max_rank: Positive = 12
    n_natural: ClassVar[int | None] = 0

    @staticmethod
    @kernel(CHOOSE_SIGNATURE, allocates=False)
    def choose(layer, values, gates, natural, resident, phase, params, work, ids):  # type: ignore[no-untyped-def]
        m = min(max(int(params[0]), ids.shape[1]), values.shape[1])
        for i in range(uint64(values.shape[0])):
            top_k(values[i], m, work[0], work[1])
            _resident_first(work[1], uint64(m), uint64(0), resident, ids[i])


@dataclass(frozen=True)
class Cumsum(Router):
    """k experts from the smallest prefix by rank whose gates sum to `share_frac` of all gates (at least k experts).

    The model's own top `protect` are always chosen, then resident experts by rank, then the rest by rank. share_frac 0 is stock.
    """

    share_frac: Share = 0.7
    protect: Count = 2
    n_natural: ClassVar[int | None] = 0

    @staticmethod
    @kernel(CHOOSE_SIGNATURE, allocates=False)
    def choose(layer, values, gates, natural, resident, phase, params, work, ids):  # type: ignore[no-untyped-def]
        for i in range(uint64(values.shape[0])):
            length = uint64(_prefix(values[i], gates[i], params[0], ids.shape[1], work[0], work[1]))
            _resident_first(work[1], length, uint64(int(params[1])), resident, ids[i])
