"""At which precision an expert is computed: the four configurations of SliceMoE Fig. 8, kept apart.

tau: an expert is critical where its gate, renormalised within the chosen set, exceeds tau (SliceMoE section 4.3). A critical
expert asks for its LSB slice. At tau >= 1 none is critical, below 0 all are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


class Precision:
    """is_sliced: in decode an expert is two slices, MSB and LSB, else one unit; is_high: prefill computes with both."""

    is_sliced, is_high = True, True
    tau: float = math.inf


@dataclass(frozen=True)
class HighBit(Precision):
    """Every expert is one unit of MSB and LSB bytes."""

    is_sliced = False


@dataclass(frozen=True)
class LowBit(Precision):
    """Only MSB slices exist, in prefill too."""

    is_sliced, is_high = False, False


@dataclass(frozen=True)
class Amat(Precision):
    """High precision in prefill, MSB slices alone in decode."""


@dataclass(frozen=True)
class Critical(Precision):
    """DBSC: high precision in prefill; in decode the LSB slices of critical experts only. tau is the knob to calibrate."""

    tau: float = 0.35
