"""Least-stale: experts that this pass did not use leave first, of layers whose turn is farthest away.

Source of the two tiers: D. Hoang et al., SpecMD, arXiv 2602.03921, Least-Stale, as tinyserve has it (LeastStalePolicy): what this
pass has not used is stale, and leaves before what it has. There each tier leaves in order of entry; here by the distance to the
layer's next turn, as layers take turns in one order and one just passed comes last. A pass is an event per MoE layer: look up
atomically, or passes are not told apart.
"""

from dataclasses import dataclass
from typing import ClassVar

from tokentape.policies.kernels import kernel
from tokentape.policies.protocol import RANK_SIGNATURE, Ranked


@dataclass(frozen=True)
class LeastStale(Ranked):
    """Ties, all of a layer, leave by least recent use."""

    ages: ClassVar[bool] = True

    @staticmethod
    @kernel(RANK_SIGNATURE, allocates=False)
    def rank(of):  # type: ignore[no-untyped-def]
        passed = of.at_layer - of.layer
        distance = of.n_layers - passed if passed >= 0 else -passed
        is_fresh = of.is_used or of.since <= of.at_layer
        return -distance if is_fresh else -distance - of.n_layers
