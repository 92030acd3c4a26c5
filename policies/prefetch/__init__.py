"""Which experts of a later layer are fetched while a layer computes. The dict maps a name to the class."""

from tokentape.policies.prefetch.rule import PREDICT_SIGNATURE, Oracle, Popularity, Prefetcher
from tokentape.policies.prefetch.transitions import ActivationMatrix, Transitions

__all__ = ["PREDICT_SIGNATURE", "PREFETCHERS", "Prefetcher"]

PREFETCHERS: dict[str, type[Prefetcher]] = {
    "popularity": Popularity,
    "transitions": Transitions,
    "activation_matrix": ActivationMatrix,
    "oracle": Oracle,
}
