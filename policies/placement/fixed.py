"""Placements that stand through a decode: a score per expert, the highest of which are on the GPU (Capacity.hot).

Nothing migrates while tokens are generated. Baselines and the bound see what the method does not: `Seen` holds it all.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.bounds import Bounded, Count, Share
from tokentape.policies.placement.importance import Floats, importance, shares


@dataclass(frozen=True, eq=False)
class Seen:
    """What G groups of sequences did; a group is one sequence, or a batch that shares its placement (sums over members).

    prefill_counts, prefill_weights, decode_counts: (G, L, E). tape_counts: (L, E) selections in the whole tape.
    """

    prefill_counts: NDArray[np.integer]
    prefill_weights: Floats
    decode_counts: NDArray[np.integer]
    tape_counts: NDArray[np.integer]


@dataclass(frozen=True)
class FixedPlacement(Bounded, ABC):
    """is_bound: it sees the decode that it is judged on."""

    kind: ClassVar[str] = "fixed"
    is_bound: ClassVar[bool] = False
    by_machine: ClassVar[bool] = False

    @abstractmethod
    def scores(self, seen: Seen) -> Floats:
        """(G, L, E), the higher the rather on the GPU; comparable between layers."""


@dataclass(frozen=True)
class PrefillGuided(FixedPlacement):
    """By what the group's own prompts used. alpha: weight of selections against gate weights."""

    alpha: Share = 0.5

    def scores(self, seen: Seen) -> Floats:
        return importance(seen.prefill_counts, seen.prefill_weights, self.alpha)


@dataclass(frozen=True)
class StaticGlobal(FixedPlacement):
    """One set for all: by how often the whole tape, prompts and decode, selects an expert. A popularity list at its best."""

    def scores(self, seen: Seen) -> Floats:
        return np.broadcast_to(shares(seen.tape_counts), seen.prefill_counts.shape)


@dataclass(frozen=True)
class RandomPlacement(FixedPlacement):
    """Drawn for every group and layer: no knowledge."""

    seed: Count = 0

    def scores(self, seen: Seen) -> Floats:
        return np.random.default_rng(self.seed).random(seen.prefill_counts.shape)


@dataclass(frozen=True)
class ShuffledPrompts(PrefillGuided):
    """By the prompts of the group before, the last one's for the first: a control. What it hits is not the context."""

    def scores(self, seen: Seen) -> Floats:
        if len(seen.prefill_counts) < 2:
            raise ValueError("shuffled_prompts goes by another group's prompt; give two groups or more")
        return np.roll(super().scores(seen), 1, axis=0)


@dataclass(frozen=True)
class Oracle(FixedPlacement):
    """By the decode itself: no fixed set of the size is hit more often."""

    is_bound: ClassVar[bool] = True

    def scores(self, seen: Seen) -> Floats:
        return seen.decode_counts.astype(np.float64)
