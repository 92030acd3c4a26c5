"""A draft: a chain or tree of proposed tokens, grown level by level and cut to a budget of nodes to verify.

Greedy trees keep the `width` likeliest nodes of a depth and verify the likeliest of all (as EAGLE-2 does, arXiv 2406.16858). A
sampled tree has a shape that is fixed before anything is drawn: a shape that depended on the draws would bias the output.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.bounds import Bounded, Positive

Probabilities = NDArray[np.float64]


@dataclass(frozen=True)
class Shape(Bounded):
    """depth: levels of a draft; width: nodes per level, 1 is a chain; verify_nodes: most nodes that are verified, None: all."""

    depth: Positive = 4
    width: Positive = 1
    verify_nodes: Positive | None = None


class Draft:
    """The nodes of one round. Node 0 is the root: the last token that is already decided. Lists run over nodes.

    rng: draws the tokens; None: greedy. `proposals` holds the distribution (V,) that a node's children were drawn from.
    """

    def __init__(self, root: int, shape: Shape, rng: np.random.Generator | None = None) -> None:
        self.shape, self.rng = shape, rng
        self.tokens, self.parents, self.depths, self.ranks = [root], [-1], [0], [0]
        self.probs = [1.0]
        self.level = [0]  # nodes of the last depth: the next to be fed to the drafter
        self.proposals: dict[int, Probabilities] = {}
        self._order = [0.0]  # nodes are verified by rising order; a parent always comes before its children

    @property
    def n(self) -> int:
        """Drafted nodes, the root not counted."""
        return len(self.tokens) - 1

    def grow(self, probabilities: Probabilities) -> None:
        """One level more. probabilities: (len(level), V), the drafter's after each node of the level."""
        grown = self._likeliest(probabilities) if self.rng is None else self._drawn(probabilities)
        self.level = []
        for parent, rank, token, prob, order in grown:
            self.level.append(len(self.tokens))
            self.tokens.append(token)
            self.parents.append(parent)
            self.depths.append(self.depths[parent] + 1)
            self.ranks.append(rank)
            self.probs.append(prob)
            self._order.append(order)

    def _likeliest(self, probabilities: Probabilities) -> list[tuple[int, int, int, float, float]]:
        width = self.shape.width
        found: list[tuple[int, int, int, float, float]] = []
        for parent, row in zip(self.level, probabilities, strict=True):
            best = np.argsort(-row, kind="stable")[:width]
            with np.errstate(divide="ignore"):
                orders = self._order[parent] - np.log(row[best])
            found += [(parent, r, int(t), float(row[t]), float(o)) for r, (t, o) in enumerate(zip(best, orders, strict=True))]
        found.sort(key=lambda node: node[-1])
        return found[:width]

    def _drawn(self, probabilities: Probabilities) -> list[tuple[int, int, int, float, float]]:
        assert self.rng is not None
        found = []
        for parent, row, n in zip(self.level, probabilities, shares(len(self.level), self.shape.width), strict=True):
            if n:
                self.proposals[parent] = row
            for rank, token in enumerate(draw_distinct(row, n, self.rng)):
                found.append((parent, rank, token, float(row[token]), self._order[parent] + 1.0 + rank))
        return found

    def verified(self) -> list[int]:
        """Nodes to verify, the root first, parents before children: as many as the budget allows."""
        order = sorted(range(1, self.n + 1), key=lambda node: (self._order[node], node))
        kept = order if self.shape.verify_nodes is None else order[: self.shape.verify_nodes]
        return [0, *sorted(kept)]

    def children(self, node: int, among: list[int]) -> list[int]:
        """Children of a node among the given ones, by rank."""
        return sorted((c for c in among if self.parents[c] == node and c), key=lambda c: self.ranks[c])


def shares(n_parents: int, width: int) -> list[int]:
    """Children of each node of a level, `width` in all: half of what is left for each in turn, rounded up; the last takes it all.

    >>> shares(1, 4), shares(4, 4), shares(2, 2), shares(1, 1)
    ([4], [2, 1, 1, 0], [1, 1], [1])
    """
    left = width
    found: list[int] = []
    for place in range(n_parents):
        found.append(left if place == n_parents - 1 else -(-left // 2))
        left -= found[-1]
    return found


def draw(probabilities: Probabilities, rng: np.random.Generator) -> int:
    """A token; probabilities (V,) need not sum to 1."""
    upto = np.cumsum(probabilities)
    return int(min(np.searchsorted(upto, rng.random() * upto[-1], side="right"), np.flatnonzero(probabilities)[-1]))


def draw_distinct(probabilities: Probabilities, n: int, rng: np.random.Generator) -> list[int]:
    """n tokens without replacement, fewer where fewer are possible."""
    left = probabilities.copy()
    found: list[int] = []
    for _ in range(min(n, int(np.count_nonzero(left)))):
        found.append(draw(left, rng))
        left[found[-1]] = 0.0
    return found


def ancestors(parents: list[int]) -> NDArray[np.bool_]:
    """(n, n) bool: node j is node i or one of its ancestors. Parents come before their children; -1: none."""
    seen = np.eye(len(parents), dtype=np.bool_)
    for node, parent in enumerate(parents):
        if parent >= 0:
            seen[node] |= seen[parent]
    return seen
