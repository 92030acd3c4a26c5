"""How wide a missed expert is fetched, by the gates of the tokens that ask for it, as in HOBBIT (P. Tang et al., HOBBIT: a mixed
precision expert offloading system for fast MoE inference, arXiv 2411.01433, equation 2; thresholds those of Mixtral-8x7B).

The gates above an expert's own, as a share of the token's, say how unimportant it is to the token: its first expert's are 0.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tokentape.policies.bits.rule import Floats
from tokentape.policies.kernels import F32, F64, I16, U8, int64, kernel, void


@kernel(void(I16, F32, U8, F64, F64), allocates=False)
def ask_by_gate(ids, gates, there, params, widths):  # type: ignore[no-untyped-def]
    """Raises `widths` (E,) f64, shares of full width, to what a token asks: ids, gates (k,) by falling gate, -1: none; there (E,)
    u8: resident, of which none is left out; params: high_until, low_until, the low width."""
    total = above = 0.0
    for j in range(ids.shape[0]):
        total += gates[j] if ids[j] >= 0 else 0.0
    for j in range(ids.shape[0]):
        e = int64(ids[j])
        if e < 0:
            continue
        asked = 1.0 if above <= params[0] * total else params[2] if above <= params[1] * total or there[e] else 0.0
        widths[e] = max(widths[e], asked)
        above += gates[j]


@dataclass(frozen=True)
class ByGate:
    """high_until: share of the gates above it up to which an expert is fetched whole; low_until: at low_bits, and beyond it,
    where it is missing, the token goes without. An expert is as wide as any token of the event asks."""

    is_bound: ClassVar[bool] = False
    high_until: float = 0.6
    low_until: float = 0.9
    low_bits: float = 4.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.high_until <= self.low_until or not 1.0 <= self.low_bits <= 16.0:
            raise ValueError(
                f"by_gate: 0 <= high_until {self.high_until} <= low_until {self.low_until}, and low_bits {self.low_bits} in 1..16"
            )

    def params(self, full_bits: float) -> Floats:
        """Of `ask_by_gate`, where an expert has full_bits."""
        return np.array([self.high_until, self.low_until, min(1.0, self.low_bits / full_bits)])
