"""What the target accepts of a draft, and the token it adds: output exactly as the target alone would have made it.

Greedy: the path of the target's own choices. Sampled: siblings were drawn from the drafter's distribution q without replacement,
and each is tried in turn against what is left of the target's p; chains are the case of one child (speculative sampling, arXiv
2211.17192 and 2302.01318; without replacement, arXiv 2402.14160).

What rounds say together has every metric by its name, for "acceptance" alone means too many things:

    tau_accepted          mean of the drafted tokens accepted per round
    tau_committed         tau_accepted + 1: with the token that the target adds
    alpha_i_conditional   share of the rounds that accepted depth i among those that accepted depth i - 1
    alpha_i_marginal      share of the rounds that accepted depth i
    accepted_j            share of the rounds that accepted exactly j: the histogram

Rounds that a stop token or the length limit cut short are left out. Metrics of trees start with `tree_`: a tree's depth is
accepted if any of its nodes is, so they are never put in one column with a chain's.
"""

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


def acceptance_metrics(
    n_accepted: NDArray[np.integer], is_clipped: NDArray[np.bool_], depth: int, is_tree: bool
) -> dict[str, float]:
    """Metrics of rounds, n_accepted and is_clipped (n,) each, whose drafts reach down to `depth`; empty: all were clipped."""
    whole = np.asarray(n_accepted)[~np.asarray(is_clipped)]
    if whole.size == 0:
        return {}
    if whole.max() > depth:
        raise ValueError(f"a round accepted {whole.max()} tokens of drafts {depth} deep")
    found = {"tau_accepted": float(whole.mean()), "tau_committed": float(whole.mean()) + 1.0}
    for i in range(1, depth + 1):
        reached = int((whole >= i - 1).sum())
        if reached:
            found[f"alpha_{i}_conditional"] = float((whole >= i).sum()) / reached
        found[f"alpha_{i}_marginal"] = float((whole >= i).mean())
    found |= {f"accepted_{j}": float((whole == j).mean()) for j in range(depth + 1)}
    return {f"tree_{name}": value for name, value in found.items()} if is_tree else found
