"""What a placement may know of the model and machine that it runs on, and what those that decide as requests decode share."""

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from tokentape.policies.placement.importance import Floats


@dataclass(frozen=True)
class Host:
    """Times of one expert of full width, in reads of it where it lies when it is not in the fast tier: moved there
    (fetch_reads), a token's operations where it lies (token_reads), read in the fast tier (main_reads). n_away: MoE
    layers, the first ones, that the fast tier has no room for. Defaults: all experts lie in one memory.
    """

    n_away: int = 0
    fetch_reads: float = 0.0
    token_reads: float = 0.0
    main_reads: float = 1.0


class AsItDecodes:
    """by_machine: it decides by the times of a machine."""

    is_bound: ClassVar[bool] = False
    by_machine: ClassVar[bool] = False

    def params(self) -> Floats:
        """Handed to its function, f64 (p,)."""
        return np.zeros(0)

    def on(self, host: Host) -> Self:
        """The same, as it decides on that machine."""
        return self
