"""Which experts lie on the GPU while a sequence decodes, the others computing in memory. The dict maps a name to the class.

Three kinds: "fixed" scores every expert once (fixed.py, Capacity.hot), "reactive" moves experts before a layer-step
(reactive.py), "event" says event by event which experts compute where they lie, beside any cache (missed.py).
"""

from tokentape.policies.placement import fixed, missed, reactive
from tokentape.policies.placement.fixed import FixedPlacement, Seen
from tokentape.policies.placement.importance import Capacity, hot_set, importance, shares
from tokentape.policies.placement.missed import WHERE_SIGNATURE, EventPlacement
from tokentape.policies.placement.reactive import MIGRATE_SIGNATURE, ReactivePlacement, migrated, start_average

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
    "prefill_guided": fixed.PrefillGuided,
    "static_global": fixed.StaticGlobal,
    "random": fixed.RandomPlacement,
    "shuffled_prompts": fixed.ShuffledPrompts,
    "oracle": fixed.Oracle,
    "ema": reactive.EMA,
    "never": reactive.Never,
    "always": reactive.Always,
    "balance": reactive.Balance,
    "near_if_rare": missed.NearIfRare,
    "near_if_faster": missed.NearIfFaster,
    "near_beside_link": missed.NearBesideLink,
    "first_layers_near": missed.FirstLayersNear,
}
FIXED = tuple(name for name, kind in PLACEMENTS.items() if issubclass(kind, FixedPlacement))
