"""Draft and verify: every decoding request has drafted tokens checked in an iteration and keeps those that are accepted.

A round emits the token that plain decoding would and the accepted drafts before it (Leviathan et al., ICML 2023). How many are
accepted is drawn from given chances: conditional ones per position, or accepted lengths that were recorded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tokentape.policies.kernels import kernel, uint64

_UNIT = 2.0**-53


@dataclass(frozen=True)
class Speculation:
    """n_nodes: drafted tokens, of a chain or a tree, that each request has verified in a round. survival: chance that at least
    1, 2, ... of them are accepted, falling; none beyond. draft_s: seconds in which a round's drafts are made, of all requests.

    Raises ValueError for chances outside [0, 1] or rising, more of them than nodes, and drafting time without nodes.
    """

    n_nodes: int
    survival: tuple[float, ...]
    draft_s: float = 0.0

    def __post_init__(self) -> None:
        chances = np.array([1.0, *self.survival, 0.0])
        if self.n_nodes < 0 or len(self.survival) > self.n_nodes:
            raise ValueError(f"n_nodes is {self.n_nodes}; give at least as many as the {len(self.survival)} positions accepted")
        if not np.all(np.diff(chances) <= 0.0):
            raise ValueError(f"survival {self.survival}: chances of at least 1, 2, ... accepted lie in [0, 1] and do not rise")
        if not 0.0 <= self.draft_s < float("inf") or (self.draft_s and not self.n_nodes):
            raise ValueError(f"draft_s is {self.draft_s}; it is finite, at least 0, and 0 where nothing is drafted")

    @classmethod
    def conditional(cls, n_nodes: int, acceptance: float | Sequence[float], draft_s: float = 0.0) -> Self:
        """acceptance: chance that a draft is accepted once those before it are; one for all nodes of a chain, or by position."""
        chances = [acceptance] * n_nodes if isinstance(acceptance, int | float) else list(acceptance)
        if not all(0.0 <= chance <= 1.0 for chance in chances):
            raise ValueError(f"acceptance {acceptance} is no chance; give a number from 0 to 1, or one for each position")
        return cls(n_nodes, tuple(np.cumprod(chances).tolist()), draft_s)

    @classmethod
    def recorded(cls, n_nodes: int, n_accepted: ArrayLike, draft_s: float = 0.0) -> Self:
        """n_accepted: (rounds,) drafts accepted in each round of a recording; a longer run counts as n_nodes.

        Raises ValueError where there are none.
        """
        lengths = np.asarray(n_accepted)
        if not lengths.size:
            raise ValueError("no rounds were recorded; give accepted lengths, or an acceptance")
        return cls(n_nodes, tuple(float((lengths >= n).mean()) for n in range(1, n_nodes + 1)), draft_s)

    def chances(self) -> NDArray[np.float64]:
        return np.array(self.survival, np.float64)


@kernel("int64(int64, int64, int64, float64[::1])", allocates=False)
def accepted(seed, request, n_generated, survival):  # type: ignore[no-untyped-def]
    """Drafts accepted in the round after a request's n_generated tokens: the same whatever the scheduler and the order.

    One uniform number of a hash (splitmix64's finish) of the three numbers, against the chances.
    """
    x = uint64(seed) * uint64(0x9E3779B97F4A7C15) + uint64(request) * uint64(0xD1B54A32D192ED03)
    x += uint64(n_generated) * uint64(0x8CB92BA72F3D8DD7) + uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> uint64(27))) * uint64(0x94D049BB133111EB)
    x = x ^ (x >> uint64(31))
    drawn = float(x >> uint64(11)) * _UNIT
    n = 0
    while n < survival.shape[0] and drawn < survival[n]:
        n += 1
    return n
