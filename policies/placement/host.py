"""What a placement may know of the model and machine that it runs on, and what those that decide as requests decode share."""

from dataclasses import asdict, dataclass, replace
from typing import ClassVar, Self

import numpy as np

from tokentape.policies.bounds import Bounded
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


@dataclass(frozen=True)
class AsItDecodes(Bounded):
    """Its fields are its parameters; those that are None are the machine's. by_machine: it decides by the times of a machine."""

    is_bound: ClassVar[bool] = False
    by_machine: ClassVar[bool] = False

    def params(self) -> Floats:
        """Handed to its function, f64 (p,). Raises ValueError where one is left to a machine."""
        told = asdict(self)
        if missing := [name for name, value in told.items() if value is None]:
            left = ", ".join(missing)
            why = f"{type(self).__name__} goes by a machine's {left}"
            raise ValueError(f"{why}; run it on one whose experts are moved, or give {left}")
        return np.array(list(told.values()), np.float64)

    def on(self, host: Host) -> Self:
        """The same, as it decides on that machine."""
        left = [name for name, value in asdict(self).items() if value is None and hasattr(host, name)]
        return replace(self, **{name: getattr(host, name) for name in left})
