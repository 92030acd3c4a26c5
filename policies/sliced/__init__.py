"""SliceMoE as a composition: a router, a sliced cache, a precision rule, a miss budget and a warm-up (SliceMoE section 4).

A class and one line in a dict add a part. The dicts map the name a person types to the class.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from tokentape.policies.resolve import NAMES
from tokentape.policies.sliced.buddy import Buddy
from tokentape.policies.sliced.cache import SlicedCache
from tokentape.policies.sliced.cache_prior import CachePrior
from tokentape.policies.sliced.controller import Controller, Events
from tokentape.policies.sliced.precision import Amat, Critical, Hard, HighBit, LowBit, NoBudget, Soft
from tokentape.policies.sliced.ranking import Router, Stock
from tokentape.policies.sliced.resident_first import Cumsum, MaxRank
from tokentape.policies.sliced.warmup import PCW, Empty, LastLayer, RandomFill

__all__ = ["BUDGETS", "PRECISIONS", "ROUTERS", "ROUTES", "WARMUPS", "Controller", "Events", "Route", "SliceMoE", "SlicedCache"]

ROUTERS: dict[str, type[Any]] = {
    "lru": Stock,
    "cache_prior": CachePrior,
    "cumsum": Cumsum,
    "max_rank": MaxRank,
    "buddy": Buddy,
}
# The four configurations of SliceMoE Fig. 8.
PRECISIONS: dict[str, type] = {"high-bit": HighBit, "low-bit": LowBit, "amat": Amat, "dbsc": Critical}
BUDGETS: dict[str, type] = {"none": NoBudget, "hard": Hard, "soft": Soft}
WARMUPS: dict[str, type] = {"empty": Empty, "last_layer": LastLayer, "random": RandomFill, "pcw": PCW}


@dataclass(frozen=True)
class SliceMoE:
    """The whole policy: route, precision and residency of a system. free_steps: decode steps of a generation before the budget
    acts and misses are counted.

    Raises ValueError for a combination that cannot work.
    """

    router: Any = field(default_factory=Stock, metadata={NAMES: ROUTERS})
    cache: SlicedCache = field(default_factory=SlicedCache)
    precision: Any = field(default_factory=Critical, metadata={NAMES: PRECISIONS})
    budget: Any = field(default_factory=NoBudget, metadata={NAMES: BUDGETS})
    warmup: Any = field(default_factory=PCW, metadata={NAMES: WARMUPS})
    free_steps: int = 10
    slots: ClassVar = ("route", "precision", "residency")

    def __post_init__(self) -> None:
        if self.free_steps < 0:
            raise ValueError(f"free_steps {self.free_steps} must be 0 or more")
        if isinstance(self.budget, Soft) and not isinstance(self.router, CachePrior):
            raise ValueError(f"a soft budget moves Cache-Prior's strength; {type(self.router).__name__} has none to move")
        if self.cache.skip_lsb_when_over_budget and isinstance(self.budget, NoBudget):
            raise ValueError("skip_lsb_when_over_budget needs a budget with a target: hard or soft")

    @property
    def draws(self) -> bool:
        """Whether a seed decides what it holds."""
        return isinstance(self.warmup, RandomFill)

    @property
    def needs_scores(self) -> bool:
        """True if a tape of top-k choices alone cannot drive it: it may route to any expert."""
        return bool(self.router.needs_scores) or not isinstance(self.budget, NoBudget)


# Routers of a system that text makes whole.
Route = Router | SliceMoE
ROUTES: dict[str, type[Route]] = {"slicemoe": SliceMoE} | {name: ROUTERS[name] for name in ("cache_prior", "cumsum", "max_rank")}
