"""Hot experts at full precision, the others at 1 to 4 bits: a placement and a bit-width rule for every sequence, decided once.

CXL GPU-NDP's method is placement prefill_guided with rule prefix_split; the others stand beside it. Used inside a live model
(capture/cxl_ndp); docs/losses.md.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.bits import BIT_RULES, assign, budget_bits
from tokentape.policies.placement import FIXED, PLACEMENTS, Capacity, FixedPlacement, Seen, importance, shares

FULL = "full"
RULES = (FULL, *BIT_RULES)
LOSS_WEIGHTS = ("none", "prefill_share")


@dataclass(frozen=True)
class MixedPrecision:
    """hot: experts per layer at full precision. bits: mean width of the others. rule: of policies.bits, or full (no replicas).

    alpha: of importance, which ranks experts for the rule and for prefill_guided. placement: one of FIXED. loss_weight: none (all
    experts' losses count alike, the paper's text) or prefill_share (by how often the prompt selected them). seed: of random.
    """

    hot: int
    bits: float = 2.0
    rule: str = "prefix_split"
    alpha: float = 0.5
    placement: str = "prefill_guided"
    loss_weight: str = "none"
    seed: int = 0

    def __post_init__(self) -> None:
        for field, known in (("rule", RULES), ("placement", FIXED), ("loss_weight", LOSS_WEIGHTS)):
            if (name := getattr(self, field)) not in known:
                raise ValueError(f"unknown {field} {name!r}; known: {', '.join(known)}")
        if self.hot < 0:
            raise ValueError(f"{self.hot} hot experts per layer; give 0 or more")
        for field in ("bits", "alpha"):  # 2 and 2.0 are one policy, also as text
            object.__setattr__(self, field, float(getattr(self, field)))
        budget_bits(0, self.bits)
        self._placement()  # refuses a bad alpha

    def _placement(self) -> FixedPlacement:
        fields = PLACEMENTS[self.placement].__dataclass_fields__
        given = {name: getattr(self, name) for name in ("alpha", "seed") if name in fields}
        made = PLACEMENTS[self.placement](**given)
        assert isinstance(made, FixedPlacement)
        return made

    @property
    def needs_decode(self) -> bool:
        """It places by more than each sequence's own prompt."""
        return self.placement not in ("prefill_guided", "random")

    def widths(self, seen: Seen, losses: NDArray[np.generic]) -> NDArray[np.int8]:
        """(G, L, E) bits of every expert's replica for G sequences, 0 for full precision. losses: (L, E, 4) at 1 to 4 bits.

        Raises ValueError for more hot experts than a layer has, and losses of another model or not finite.
        """
        if self.rule == FULL:
            return np.zeros(seen.prefill_counts.shape, np.int8)
        hot = Capacity(self.hot).hot(self._placement().scores(seen))
        ranked = importance(seen.prefill_counts, seen.prefill_weights, self.alpha)
        share = shares(seen.prefill_counts) if self.loss_weight == "prefill_share" else None
        return assign(BIT_RULES[self.rule], losses, ranked, hot, self.bits, share=share)
