"""Parts of SliceMoE without a kernel of their own: at which precision an expert is computed, and how a target miss rate is held.

Precision: the four configurations of SliceMoE Fig. 8, kept apart. tau: an expert is critical where its gate, renormalised within
the chosen set, exceeds tau (SliceMoE section 4.3). A critical expert asks for its LSB slice. At tau >= 1 none is critical, below
0 all are.

Budgets: the paper names no controller, both are assumptions (SliceMoE section 4.4). The miss rate is the high-bit-normalised one:
Flash bytes / (accesses x high-bit expert bytes). A budget acts after the free steps of a generation.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from tokentape.policies.bounds import Bounded, Share, Weight


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


class Budget(Bounded):
    """What a controller is told of any budget. kind: none, a bucket, or a moved strength."""

    kind: ClassVar[int] = 0
    target_frac: float = 1.0
    cap_steps: float = 0.0
    gain: float = 0.0
    decay: float = 0.0


@dataclass(frozen=True)
class NoBudget(Budget):
    """Misses cost what they cost."""


@dataclass(frozen=True)
class Hard(Budget):
    """A token bucket: every step adds target_frac - its miss rate, up to cap_steps x target_frac.

    In debt, only resident experts are routed to (where a layer holds k of them) and LSB misses degrade. Steps are charged layer
    by layer, each layer its share of both terms: charged at its end, one free step that misses 40 % would spend 40 steps of a 1 %
    target.
    """

    target_frac: Share = 0.05
    cap_steps: float = 20.0
    kind: ClassVar[int] = 1


@dataclass(frozen=True)
class Soft(Budget):
    """Moves Cache-Prior's strength by gain x (mean miss rate - target_frac) after every step, within 0..1.

    decay: weight of the past in the exponential mean of the steps' miss rates (assumed). Strength 1 still leaves some 10 %
    misses: a lower target is not reached.
    """

    target_frac: Share = 0.1
    gain: float = 0.5
    decay: Weight = 0.9
    kind: ClassVar[int] = 2
