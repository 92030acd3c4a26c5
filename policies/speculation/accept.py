"""What the target accepts of a draft, and the token it adds: output exactly as the target alone would have made it.

Greedy: the path of the target's own choices. Sampled: siblings were drawn from the drafter's distribution q without replacement,
and each is tried in turn against what is left of the target's p; chains are the case of one child (speculative sampling, arXiv
2211.17192 and 2302.01318; without replacement, arXiv 2402.14160).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.speculation.tree import Draft, Probabilities, draw


def accept_greedy(draft: Draft, nodes: Sequence[int], choices: Sequence[int]) -> tuple[list[int], int]:
    """(accepted path, bonus token). nodes: the verified ones, root first; choices: the target's token after each of them."""
    after = dict(zip(nodes, choices, strict=True))
    path: list[int] = []
    node = 0
    while True:
        hits = [c for c in draft.children(node, list(nodes)) if draft.tokens[c] == after[node]]
        if not hits:
            return path, int(after[node])
        node = hits[0]
        path.append(node)


def accept_sampled(
    draft: Draft, nodes: Sequence[int], probabilities: NDArray[np.float64], rng: np.random.Generator
) -> tuple[list[int], int]:
    """(accepted path, bonus token). probabilities: (len(nodes), V), the target's after each verified node, root first.

    A child x is accepted with min(1, p(x)/q(x)); if not, p becomes the normalised max(p - q, 0) and q loses x.
    """
    after = dict(zip(nodes, probabilities, strict=True))
    path: list[int] = []
    node = 0
    while True:
        taken, left = _try_children(draft, draft.children(node, list(nodes)), after[node], draft.proposals.get(node), rng)
        if taken is None:
            return path, draw(left, rng)
        node = taken
        path.append(node)


def _try_children(
    draft: Draft, children: list[int], p: Probabilities, q: Probabilities | None, rng: np.random.Generator
) -> tuple[int | None, Probabilities]:
    """The child that is accepted, or None and what is left of p."""
    for child in children:
        assert q is not None
        token = draft.tokens[child]
        rest = np.maximum(p - q, 0.0)
        total = rest.sum()
        if rng.random() * q[token] < p[token] or total <= 0.0:  # nothing left: p is q, but for rounding
            return child, p
        p, q = rest / total, q.copy()
        q[token] = 0.0
        if (left := q.sum()) > 0.0:
            q /= left
    return None, p
