"""The choices that decide what a hit is and what a miss costs: papers rarely state them and results hinge on them.

They are stored with every result.
"""

from dataclasses import dataclass

CHOICES: dict[str, tuple[str, ...]] = {
    "scope": ("global", "per-layer"),
    "lookup": ("atomic", "serial"),
    "recency": ("list-order", "hits-first"),
    "prefill": ("layer-major", "token-major"),
    "start": ("persistent", "cold"),
    "overflow": ("evict", "keep"),
    "fetching": ("blocking", "overlapped"),
}


@dataclass(frozen=True)
class Semantics:
    """How a tape is looked up.

    scope: one cache for all layers, or one per layer with an equal share of the capacity. Has no default: must be given.
    lookup: atomic, the experts of one event (token and layer) are looked up together and none of them is its victim; serial,
    one by one in order of weight.
    recency: how the experts of one atomic event follow each other in the order of use. list-order, as the event lists them (by
    weight; of repeats the last mention); hits-first, its hits and then its misses, each in that order, as an engine has it that
    refreshes what it finds while it looks up and appends what it loads. Decides whom LRU and ties by recency evict.
    prefill: layer-major, each expert loaded once per layer pass (repeats only refresh it); token-major, token after token.
    start: persistent across requests, or cold: empty at every request (of a batch: where no request of the pass before goes on).
    overflow: evict, an event larger than the cache keeps no more than fits; keep, it stays until the next event.
    fetching: blocking, a layer waits for its missing experts; overlapped, a pass's fetches hide behind its other work.
    Raises ValueError on an unknown word, and for hits-first of serial lookups, whose order is their own.
    """

    scope: str
    lookup: str = "atomic"
    recency: str = "list-order"
    prefill: str = "layer-major"
    start: str = "persistent"
    overflow: str = "evict"
    fetching: str = "blocking"

    def __post_init__(self) -> None:
        for field, allowed in CHOICES.items():
            if getattr(self, field) not in allowed:
                raise ValueError(f"{field} {getattr(self, field)!r} is unknown; choose {' or '.join(allowed)}")
        if self.recency == "hits-first" and self.lookup == "serial":
            raise ValueError("recency hits-first orders the experts of one atomic event; serial lookups take list-order")


# BigMoeOnEdge's engine: one batch per layer in prefill, repeats promote, evict after the batch and never a member of it.
ENGINE_BIGMOE = Semantics(scope="global", overflow="keep")
