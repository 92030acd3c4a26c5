"""A placement of one's own, in docs/examples/my_system.toml: what is missing and asked for by few computes where it lies."""

from dataclasses import dataclass

from tokentape.policies.placement import EventPlacement


@dataclass(frozen=True)
class NearWhenFew(EventPlacement):
    """Missing experts compute near their memory as long as no more than `most` of a layer's experts are missing."""

    most: int = 6

    @staticmethod
    def where(layer, keys, counts, resident, near, params):
        n_missing = 0
        for i in range(keys.size):
            n_missing += not resident[keys[i]]
        for i in range(keys.size):
            near[i] = not resident[keys[i]] and n_missing <= params[0]
