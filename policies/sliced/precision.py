"""At which precision an expert is computed: the four configurations of SliceMoE Fig. 8, kept apart.

tau: an expert is critical where its gate, renormalised within the chosen set, exceeds tau (SliceMoE section 4.3). A critical
expert asks for its LSB slice. At tau >= 1 none is critical, below 0 all are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class HighBit:
    """Every expert is one unit of MSB and LSB bytes."""

    is_sliced: ClassVar[bool] = False
    is_high: ClassVar[bool] = True
    tau: ClassVar[float] = math.inf


@dataclass(frozen=True)
class LowBit:
    """Only MSB slices exist, in prefill too."""

    is_sliced: ClassVar[bool] = False
    is_high: ClassVar[bool] = False
    tau: ClassVar[float] = math.inf


@dataclass(frozen=True)
class Amat:
    """High precision in prefill, MSB slices alone in decode."""

    is_sliced: ClassVar[bool] = True
    is_high: ClassVar[bool] = True
    tau: ClassVar[float] = math.inf


@dataclass(frozen=True)
class Critical:
    """DBSC: high precision in prefill; in decode the LSB slices of critical experts only. tau is the knob to calibrate."""

    tau: float = 0.35
    is_sliced: ClassVar[bool] = True
    is_high: ClassVar[bool] = True
