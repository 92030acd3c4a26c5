"""Placements that decide event by event which of a layer's experts compute where they lie, beside any cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tokentape.policies.kernels import array, float64, int64, kernel, uint8, void
from tokentape.policies.placement.importance import Floats

_I64, _U8, _F64 = (array(t, 1) for t in (int64, uint8, float64))
# where(layer, keys, counts, resident, near, params): an event's experts; what computes near is neither looked up nor admitted
#   layer     i64       MoE layer                    keys    (u,) i64  experts, in order of last mention
#   counts    (u,) i64  tokens of the event on each  resident (E,) u8  of the layer, in the fast tier
#   near      (u,) u8   out, zeros before            params  (p,) f64  the policy's parameters
WHERE_SIGNATURE = void(int64, _I64, _I64, _U8, _U8, _F64)


@dataclass(frozen=True)
class EventPlacement:
    """One function; plain Python is compiled."""

    kind: ClassVar[str] = "event"
    is_bound: ClassVar[bool] = False
    where: ClassVar[Any]  # of WHERE_SIGNATURE

    def params(self) -> Floats:
        """Handed to `where`, f64 (p,)."""
        return np.zeros(0)


@kernel(WHERE_SIGNATURE, allocates=False)
def near_if_rare(layer, keys, counts, resident, near, params):  # type: ignore[no-untyped-def]
    for i in range(keys.shape[0]):
        near[i] = not resident[keys[i]] and counts[i] <= params[0]


@dataclass(frozen=True)
class NearIfRare(EventPlacement):
    """A missing expert with few tokens computes where it lies, as KTransformers' on the host; with more it is fetched.

    most: tokens up to which it does.
    """

    most: int = 4
    where = staticmethod(near_if_rare)

    def __post_init__(self) -> None:
        if self.most < 0:
            raise ValueError(f"near_if_rare: most {self.most} must be 0 tokens or more")

    def params(self) -> Floats:
        return np.array([float(self.most)])
