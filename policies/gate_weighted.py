"""Gate-weighted: the expert that weighed least in what the model computed leaves.

Lookups are counted by the largest gate weight among the tokens of the event, added up since the start, whether or not the expert
was resident; the sum may halve with time, as the counts of LRFU (D. Lee et al., IEEE Transactions on Computers 50(12), 2001).
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tokentape.policies.bounds import FromZero
from tokentape.policies.kernels import kernel
from tokentape.policies.protocol import RANK_SIGNATURE, Ranked


@dataclass(frozen=True)
class GateWeighted(Ranked):
    """half_life_passes: passes, of an event per MoE layer, in which what was added halves; 0: never."""

    half_life_passes: FromZero = 0.0
    needs: ClassVar[tuple[str, ...]] = ("gate",)

    @staticmethod
    @kernel(RANK_SIGNATURE, allocates=False)
    def rank(of):  # type: ignore[no-untyped-def]
        half_life = of.params[0] * of.n_layers
        if half_life == 0.0:
            of.memory[0] += of.gate
            return of.memory[0]
        of.memory[0] = of.memory[0] * 2.0 ** (-of.since / half_life) + of.gate
        return of.now / half_life + np.log2(of.memory[0])  # all halve alike: this order is that of the masses at any time
