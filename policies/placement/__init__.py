"""Which experts lie on the GPU while a sequence decodes, the others computing in memory. The dict maps a name to the class.

Three kinds: "fixed" scores every expert once (fixed.py, Capacity.hot), "reactive" moves experts before a layer-step
(reactive.py), "event" says event by event which experts compute where they lie, beside any cache (missed.py).
"""

from tokentape.policies.placement.fixed import (
    FixedPlacement,
    Oracle,
    PrefillGuided,
    RandomPlacement,
    Seen,
    ShuffledPrompts,
    StaticGlobal,
)
from tokentape.policies.placement.importance import Capacity, hot_set, importance, shares
from tokentape.policies.placement.missed import (
    WHERE_SIGNATURE,
    EventPlacement,
    FirstLayersNear,
    NearBesideLink,
    NearIfFaster,
    NearIfRare,
)
from tokentape.policies.placement.reactive import (
    EMA,
    MIGRATE_SIGNATURE,
    Always,
    Balance,
    Never,
    ReactivePlacement,
    migrated,
    start_average,
)

__all__ = [
    "FIXED",
    "MIGRATE_SIGNATURE",
    "PLACEMENTS",
    "WHERE_SIGNATURE",
    "Capacity",
    "EventPlacement",
    "FixedPlacement",
    "Placement",
    "ReactivePlacement",
    "Seen",
    "hot_set",
    "importance",
    "migrated",
    "shares",
    "start_average",
]

Placement = FixedPlacement | ReactivePlacement | EventPlacement
PLACEMENTS: dict[str, type[FixedPlacement] | type[ReactivePlacement] | type[EventPlacement]] = {
    "prefill_guided": PrefillGuided,
    "static_global": StaticGlobal,
    "random": RandomPlacement,
    "shuffled_prompts": ShuffledPrompts,
    "oracle": Oracle,
    "ema": EMA,
    "never": Never,
    "always": Always,
    "balance": Balance,
    "near_if_rare": NearIfRare,
    "near_if_faster": NearIfFaster,
    "near_beside_link": NearBesideLink,
    "first_layers_near": FirstLayersNear,
}
FIXED = tuple(name for name, kind in PLACEMENTS.items() if issubclass(kind, FixedPlacement))
